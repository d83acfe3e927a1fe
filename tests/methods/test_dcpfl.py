"""DC-PFL against the paper, in plain loops, and what the paper leaves to be decided."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedkin
from fedkin.client.evaluate import evaluate
from fedkin.client.training import sgd
from fedkin.engine.runner import client_seed
from fedkin.methods.dcpfl import DCPFL
from fedkin.methods.dcpfl.curvature import rapid_decrease_end
from fedkin.methods.dcpfl.tree import cut
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Training
from fedkin.results.store import equal

SMALL = {"model": "mlp", "model_options": {"width": 0.25}, "lr": 0.1, "batch_size": 16, "seed": 5, "engine": "serial"}
SOON = {"start_rounds": 2, "window": 2, "patience": 1, "hold": 1, "alpha": 2, "low": 0.5}
NEVER = 10_000  # a patience that no run reaches: no trial


@pytest.fixture(scope="module")
def fed():
    return fedkin.federate("digits", partition="dirichlet", clients=6, alpha=0.3, samples_per_client=50, seed=3)


def run(method, fed, **changes):
    return fedkin.run(method, fed, **{**SMALL, "rounds": 8, "evaluate_every": 0, **changes})


def reported(result, metric):
    return {record.round: record.value for record in result.history.select(metric) if record.client is None}


def bytes_of(result, way, client=0):
    return {record.round: record.value for record in result.history.select(f"bytes_{way}") if record.client == client}


# ---- the paper in plain loops
def plain(fed, m: DCPFL, rounds: int, epochs: int, lr: float):
    """Everybody takes part and no reply is lost. `period` training rounds make one communication round k."""
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {"width": 0.25})(0), fed.example)
    layers = [layer.positions for layer in net.layout.layers]
    training = Training(lr, epochs, 16)
    everyone = range(len(fed))
    data = [fed.data(i) for i in everyone]
    period = (m.tau if m.tau_counts == "rounds" else -(-m.tau // epochs)) or 1

    def train(row, i, t):
        return sgd(Client({}, data[i], client_seed(5, t, i), net, training), row)

    def loss(row, i):
        return evaluate(net, row, data[i].train)[1]

    def mean(rows, group):
        total = sum(int(fed.sizes[i]) for i in group)
        return sum(rows[i].double() * (int(fed.sizes[i]) / total) for i in group).float()

    def scaled(x, low, high):
        return (x - low) / (high - low)

    def layer_discrepancy(rows, center, group, at, uploaded):  # eq. (5)
        def limits(row):
            inside = at if m.layer_scale.startswith("layer") else torch.cat([layers[k] for k in uploaded])
            return row[inside].min(), row[inside].max()

        if m.layer_scale.endswith("own"):
            ranges, middle = {i: limits(rows[i]) for i in group}, limits(center)
        else:
            lows, highs = zip(*(limits(rows[i]) for i in group))
            middle = (min(lows), max(highs))
            ranges = dict.fromkeys(group, middle)
        apart = [(scaled(rows[i][at], *ranges[i]) - scaled(center[at], *middle)).abs().sum() / len(at) for i in group]
        return float(sum(apart)) / len(group)

    def measured(before, rows, center, group, uploaded, waited):
        """Eq. (5) of a group: by interval when all layers came, or of whatever came as it is."""
        if m.layer_drift == "per_interval" and len(uploaded) < len(layers):
            return list(before)
        out = list(before)
        for layer in uploaded:
            out[layer] = layer_discrepancy(rows, center, group, layers[layer], uploaded)
            if m.layer_drift == "per_interval":
                out[layer] /= waited[layer] / min(waited)
        return out

    def cut(distance, gamma):  # sec. II-C and III-B, by hand
        merged, heights, steps = [[i] for i in everyone], [], []

        def apart(pair):
            return np.mean([distance[i, j] for i in pair[0] for j in pair[1]])

        while len(merged) > 1:
            pair = min(itertools.combinations(merged, 2), key=apart)
            heights.append(apart(pair))
            merged = [g for g in merged if g not in pair] + [pair[0] + pair[1]]
            steps.append(merged)
        kept = [[i] for i in everyone]
        for height, step in zip(heights, steps):
            if gamma > 0 and height <= gamma * heights[-1]:
                kept = step
        return sorted(sorted(g) for g in kept)

    def decrease_ended(curve):  # sec. III-C
        smooth = [np.mean(curve[max(0, t - m.window + 1) : t + 1]) for t in range(len(curve))]
        r = {}
        for t in range(max(2, m.window), len(curve)):
            slope, before = smooth[t] - smooth[t - 1], smooth[t - 1] - smooth[t - 2]
            r[t] = (1 + slope**2) ** 1.5 / (slope - before) if slope > before else np.inf  # eq. (4)
        best = min(r, key=r.get) if r else None
        return best is not None and r[best] < np.inf and len(curve) - 1 - best >= m.patience

    w = {i: net.initial.clone() for i in everyone}
    groups, models, spread = [list(everyone)], [net.initial.clone()], [[np.inf] * len(layers)]
    fresh = [list(range(len(layers)))]  # layers of each group that were aggregated just before
    last = [[0] * len(layers)]  # communication round in which each layer of each group was last aggregated
    distance, gamma, curve, wait, trial = np.zeros((len(fed), len(fed))), 1.0, [], None, None
    seen = {"losses": {}, "trials": {}, "down": {}, "up": {}, "low": 0}

    def download(i, gs, ms):
        g = next(k for k, members in enumerate(gs) if i in members)
        parent = next(k for k, members in enumerate(groups) if i in members)
        row = w[i].clone()
        for layer in fresh[parent]:
            row[layers[layer]] = ms[g][layers[layer]]
        return row, sum(len(layers[layer]) for layer in fresh[parent])

    for k in range(1, rounds // period + 1):
        first = (k - 1) * period + 1
        starts = {i: download(i, groups, models) for i in everyone}
        seen["down"][first] = 4 * starts[0][1]
        before = np.mean([loss(starts[i][0], i) for i in everyone])
        w_old = {i: train(starts[i][0], i, first) for i in everyone}
        if trial is None:
            w = w_old
            curve.append(before)
        else:
            starts_new = {i: download(i, trial["groups"], trial["models"])[0] for i in everyone}
            seen["down"][first] *= 2
            w_new = {i: train(starts_new[i], i, first) for i in everyone}
            old, new = (np.mean([loss(rows[i], i) for i in everyone]) for rows in (w_old, w_new))
            seen["trials"][first] = ("accepted" if new < old else "refused", old, new)
            if new < old:
                before = np.mean([loss(starts_new[i], i) for i in everyone])
                w, groups, models, spread = w_new, trial["groups"], trial["models"], trial["spread"]
                gamma, curve, wait, last = trial["gamma"], [before], None, trial["last"]
            else:
                w, wait = w_old, m.hold
                curve.append(before)
            trial = None
        seen["losses"][first] = before
        for t in range(first + 1, first + period):  # local work, nothing travels
            w = {i: train(w[i], i, t) for i in everyone}
        fresh, waited = [], []
        for g, members in enumerate(groups):
            against = np.sum(spread[g]) if m.layer_reference == "sum" else np.mean(spread[g])
            high = [layer for layer in range(len(layers)) if not spread[g][layer] < m.low * against]  # eq. (6)
            whole = not m.layerwise or k <= m.start_rounds or k % m.alpha == 0
            seen["low"] += 0 if whole else len(layers) - len(high)
            fresh.append(list(range(len(layers))) if whole else high)
            if len(members) == 1 and m.lone == "silent":
                fresh[-1] = []
            if 0 in members:
                seen["up"][first + period - 1] = 4 * sum(len(layers[layer]) for layer in fresh[-1])
            center = mean(w, members)
            waited.append([k - t for t in last[g]])
            spread[g] = measured(spread[g], w, center, members, fresh[-1], waited[-1])
            for layer in fresh[-1]:
                models[g][layers[layer]] = center[layers[layer]]
                last[g][layer] = k
        if k <= m.start_rounds:
            low, high = min(w[i].min() for i in everyone), max(w[i].max() for i in everyone)
            for i, j in itertools.product(everyone, everyone):  # eq. (3), averaged over the first T_start rounds
                d = (scaled(w[i], low, high) - scaled(w[j], low, high)).abs().double().mean()
                distance[i, j] += float(d) / m.start_rounds
        if k < m.start_rounds:
            continue
        ready = decrease_ended(curve) if wait is None else wait == 0
        if wait is not None:
            wait = None if wait == 0 else wait - 1
        lower, wanted = gamma, groups
        while ready and wanted == groups and lower > 0:
            lower = max(0.0, round(lower - m.step, 9))
            wanted = cut(distance, lower)
        if wanted != groups:
            trial = {"groups": wanted, "gamma": lower, "models": [], "spread": [], "last": []}
            for members in wanted:
                g = next(k for k, old in enumerate(groups) if members[0] in old)
                model, center = models[g].clone(), mean(w, members)
                for layer in fresh[g]:
                    model[layers[layer]] = center[layers[layer]]
                trial["models"].append(model)
                trial["spread"].append(measured(spread[g], w, center, members, fresh[g], waited[g]))
                trial["last"].append(list(last[g]))
    seen["groups"], seen["models"], seen["gamma"], seen["distance"] = groups, models, gamma, distance
    return seen


@pytest.mark.parametrize(
    ("changes", "rounds", "epochs", "lr", "outcomes"),
    [
        ({"step": 0.1}, 14, 1, 0.3, "refused refused refused accepted"),
        ({"step": 1.0, "hold": 2, "alpha": 3, "layer_scale": "own"}, 11, 1, 0.3, "accepted"),
        (
            {"step": 0.1, "layer_scale": "layer", "layer_reference": "mean", "low": 0.95},
            14,
            1,
            0.3,
            "refused refused refused accepted",
        ),
        ({"alpha": 3, "layer_drift": "raw"}, 14, 1, 0.3, "accepted accepted"),
        ({"layer_scale": "layer_own", "layer_reference": "mean", "low": 1.0}, 11, 1, 0.3, "accepted"),
        ({"tau": 2, "tau_counts": "rounds"}, 18, 1, 0.1, "accepted"),
        ({"tau": 3, "layerwise": False, "lone": "sends"}, 16, 2, 0.1, "accepted"),
    ],
)
def test_is_the_paper_in_plain_loops(fed, changes, rounds, epochs, lr, outcomes):
    method = DCPFL(**{**SOON, **changes})
    expected = plain(fed, method, rounds, epochs, lr)
    result = run(method, fed, rounds=rounds, epochs=epochs, lr=lr)
    found = reported(result, "trial")
    assert {t: v["outcome"] for t, v in found.items()} == {t: v[0] for t, v in expected["trials"].items()}
    assert " ".join(v["outcome"] for v in found.values()) == outcomes
    for t, (_, old, new) in expected["trials"].items():
        assert (found[t]["old"], found[t]["new"]) == pytest.approx((old, new), rel=1e-4)
    losses = reported(result, "loss")
    assert losses.keys() == expected["losses"].keys()
    assert list(losses.values()) == pytest.approx(list(expected["losses"].values()), rel=1e-4)
    np.testing.assert_allclose(
        np.array(next(iter(reported(result, "discrepancy").values()))), expected["distance"], rtol=1e-4, atol=1e-9
    )
    labels = result.state["labels"]
    assert result.state["gamma"] == expected["gamma"]
    for g, members in enumerate(expected["groups"]):
        assert (labels == labels[members[0]]).nonzero().flatten().tolist() == members
        torch.testing.assert_close(
            result.state["groups"]["models"][int(labels[members[0]])], expected["models"][g], rtol=1e-3, atol=1e-4
        )
    assert (expected["low"] > 0) == method.layerwise  # otherwise this test sees nothing of eq. (6)
    # bytes: the layers, one byte a layer where there is something to say, losses of four bytes
    down, up = bytes_of(result, "down"), bytes_of(result, "up")
    for t in range(1, rounds + 1):
        assert 0 <= down[t] - expected["down"].get(t, 0) <= 6
        assert 0 <= up[t] - expected["up"].get(t, 0) <= 16
        if t not in expected["down"]:
            assert down[t] in (0, 2)


# ---- reductions
@pytest.mark.parametrize("changes", [{}, {"participation": 0.6, "lost": 0.3}, {"epochs": 2, "momentum": 0.9}])
def test_one_group_tau_1_and_all_layers_high_is_fedavg_to_the_bit(fed, changes):
    ours = run(DCPFL(tau=1, low=0, patience=NEVER), fed, rounds=7, **changes)
    theirs = run("fedavg", fed, rounds=7, **changes)
    assert torch.equal(ours.state["groups"]["models"][0], theirs.state["model"])
    assert torch.equal(ours.state["groups"]["shares"][0, 0], theirs.state["share"])
    for scope in ("participants", "all"):
        pairs = [
            {(record.round, record.client): record.value for record in r.history.select("personal_loss", scope=scope)}
            for r in (ours, theirs)
        ]
        assert pairs[0] == pairs[1]


def test_batch_norm_and_its_buffers_are_averaged_too(fed):
    def network(shape, classes):
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, affine=False), nn.Linear(64, 12), nn.Linear(12, classes))

    changes = {"model": network, "model_options": {}, "rounds": 4}
    ours, theirs = run(DCPFL(tau=1, low=0, patience=NEVER), fed, **changes), run("fedavg", fed, **changes)
    assert torch.equal(ours.state["groups"]["models"][0], theirs.state["model"])


def test_tau_in_epochs_or_in_rounds(fed):
    """τ = 4: with two epochs a round, every 2 rounds or every 4."""
    for counts, period in (("epochs", 2), ("rounds", 4)):
        result = run(DCPFL(tau=4, tau_counts=counts), fed, epochs=2)
        up = bytes_of(result, "up")
        assert [t for t, value in up.items() if value > 1000] == list(range(period, 9, period))
        assert result.state["period"] == period
    assert run(DCPFL(tau=5), fed, epochs=3, rounds=1).state["period"] == 2  # the first round end with 5 epochs done


def test_the_same_clients_work_until_they_upload(fed):
    result = run(DCPFL(tau=2, tau_counts="rounds"), fed, rounds=8, participation=0.5)
    took_part = [{record.client for record in result.history.select("bytes_up", round=t)} for t in range(1, 9)]
    assert took_part[0::2] == took_part[1::2]
    assert len({frozenset(who) for who in took_part}) > 1


# ---- the cost
@dataclass(frozen=True)
class FirstLayerLow(DCPFL):
    def _low(self, state):
        return torch.tensor([[True, False]] * len(state["groups"]["models"]) + [[False, False]])


@pytest.mark.parametrize("period", [1, 2])
def test_bytes_over_alpha_tau_rounds_are_the_formula(fed, period):
    alpha, layers = 3, 2
    method = FirstLayerLow(tau=period, tau_counts="rounds", alpha=alpha, start_rounds=1, patience=NEVER)
    result = run(method, fed, rounds=3 * alpha * period)
    low, high = 64 * 16 + 16, 16 * 10 + 10
    down, up = bytes_of(result, "down"), bytes_of(result, "up")
    for begin in (alpha * period, 2 * alpha * period):  # after the starting phase
        rounds = range(begin + 1, begin + alpha * period + 1)
        weights = 4 * (alpha * high + low)
        # downloads lag uploads by one round, so any α·τ rounds have one download of everything
        plans = layers * alpha * min(period, 2)
        assert sum(up[t] for t in rounds) == weights + 4 * alpha
        assert sum(down[t] for t in rounds) == weights + plans
    full = [t for t, value in up.items() if value >= 4 * (low + high)]
    assert full == [period, *range(alpha * period, 3 * alpha * period + 1, alpha * period)]
    assert result.summary["bytes_up"] < run("fedavg", fed, rounds=3 * alpha * period).summary["bytes_up"]


def test_a_trial_doubles_what_goes_down_and_the_work_but_not_what_goes_up(fed):
    result = run(DCPFL(**{**SOON, "layerwise": False, "lone": "sends"}), fed, rounds=8)
    model, (trial, *_) = 4 * (64 * 16 + 16 + 170), list(reported(result, "trial"))
    down, up = bytes_of(result, "down"), bytes_of(result, "up")
    assert down[trial - 1] == model + 2
    assert down[trial] == 2 * model + 1 + 2 + 1 + 2  # both models, the flag; then the verdict; a plan with each
    assert up[trial - 1] == model + 4
    assert up[trial] == model + 16  # two losses before, two after
    flops = {record.round: record.value for record in result.history.select("flops") if record.client == 0}
    assert 2 * flops[trial - 1] < flops[trial] < 2.8 * flops[trial - 1]
    # participants are measured in a trial, too: with the model that they have before it
    assert len(result.history.values("personal", round=trial - 1, scope="participants")) == 6


# ---- trials
@dataclass(frozen=True)
class WorseSplit(DCPFL):
    def _split(self, state, gamma, replies, uploads, due):
        trial = super()._split(state, gamma, replies, uploads, due)
        worse = {**trial["groups"], "models": -3 * trial["groups"]["models"]}
        return {**trial, "groups": worse}


@pytest.mark.parametrize("hold", [0, 3])
def test_a_worse_split_keeps_the_old_groups_and_waits(fed, hold):
    settings = {**SOON, "hold": hold}
    result = run(WorseSplit(**settings), fed, rounds=14)
    trials = reported(result, "trial")
    assert len(trials) > 1
    assert all(v["outcome"] == "refused" and v["new"] > v["old"] for v in trials.values())
    assert {b - a for a, b in itertools.pairwise(trials)} == {hold + 1}
    assert {v["gamma"] for v in trials.values()} == {next(iter(trials.values()))["gamma"]}  # γ̃ falls with the groups
    assert all(set(labels) == {0} for labels in reported(result, "clusters").values())
    # a trial that is refused leaves no trace in the models
    without = run(DCPFL(**{**settings, "patience": NEVER}), fed, rounds=14)
    assert torch.equal(result.state["groups"]["models"], without.state["groups"]["models"])
    assert equal(result.state["losses"], without.state["losses"])


def test_groups_only_ever_split_and_gamma_only_falls(fed):
    result = run(DCPFL(**SOON), fed, rounds=20)
    clusters, gammas = list(reported(result, "clusters").values()), list(reported(result, "gamma").values())
    assert sorted(gammas, reverse=True) == gammas
    assert max(clusters[-1]) > 0
    for before, after in itertools.pairwise(clusters):
        assert len(set(zip(before, after))) == len(set(after))
    accepted = [t for t, v in reported(result, "trial").items() if v["outcome"] == "accepted"]
    assert [t + 1 for t, (a, b) in enumerate(itertools.pairwise(clusters), 1) if a != b] == accepted
    # a new period has a loss curve of its own: nothing is said before it is `window` rounds long
    assert all(reported(result, "radius")[t] is None for t in accepted)
    ends = reported(result, "rdp_end")
    assert all(t + 1 in reported(result, "trial") for t in ends if t < 20)
    assert all(end <= t - SOON["patience"] for t, end in ends.items())


def test_a_step_that_changes_no_group_is_followed_by_the_next(fed):
    result = run(DCPFL(**{**SOON, "step": 0.01}), fed, rounds=16)
    tree = torch.tensor(next(iter(reported(result, "tree").values())))
    gamma, steps = 1.0, []
    for trial in reported(result, "trial").values():
        below = (gamma - k / 100 for k in range(1, 101))
        wanted = next(g for g in below if not torch.equal(cut(tree, g), cut(tree, gamma)))
        assert trial["gamma"] == pytest.approx(wanted)
        steps.append(gamma - wanted)
        gamma = wanted if trial["outcome"] == "accepted" else gamma
    assert max(steps) > 0.015  # more than one step somewhere, or this test sees nothing


def test_fixed_groups_are_cut_once_the_tree_is_there(fed):
    result = run(DCPFL(**{**SOON, "dynamic": False, "gamma": 0.7}), fed, rounds=6)
    counts = [len(set(labels)) for labels in reported(result, "clusters").values()]
    assert counts[0] == 1
    assert counts[1] > 1
    assert set(counts[1:]) == {counts[1]}
    assert not reported(result, "trial")
    assert list(reported(result, "tree")) == list(reported(result, "discrepancy")) == [2]  # reported once


def test_a_client_alone_has_the_same_model_whether_it_sends_it_or_not(fed):
    fields = {**SOON, "dynamic": False, "gamma": 0.8}
    silent, sends = (run(DCPFL(**fields, lone=lone), fed, rounds=6) for lone in ("silent", "sends"))
    labels = silent.state["labels"]
    alone = [i for i in range(6) if int((labels == labels[i]).sum()) == 1]
    assert 0 < len(alone) < 6
    for scope in ("participants", "all"):
        assert [record[:4] for record in silent.history.select("personal_loss", scope=scope)] == [
            record[:4] for record in sends.history.select("personal_loss", scope=scope)
        ]
    for client in alone:  # a byte a layer down to ask for the loss, the loss up
        assert [bytes_of(silent, way, client)[6] for way in ("down", "up")] == [2, 4]
        assert bytes_of(sends, "up", client)[6] > 1000
    assert reported(silent, "loss") == reported(sends, "loss")
    everyone = run(DCPFL(**{**fields, "gamma": 0.0}), fed, rounds=6)
    assert {record.value for record in everyone.history.select("bytes_up") if record.round > 2} == {4}


def test_presets():
    assert fedkin.method("dcpfl") == DCPFL()
    assert fedkin.method("dcpfl-nola") == DCPFL(layerwise=False)
    assert fedkin.method("dcpfl-nodc") == DCPFL(dynamic=False, gamma=0.8)


# ---- who holds what
def test_a_client_is_sent_what_its_group_averaged_since_it_last_had_it(fed):
    method = FirstLayerLow(tau=1, start_rounds=1, alpha=4, patience=NEVER)
    state = run(method, fed, rounds=6).state  # fc1 was averaged in round 1 and 4, fc2 in every round
    model, low = state["groups"]["models"][0], 64 * 16 + 16
    assert state["groups"]["version"].tolist() == [[4, 6]]
    held = state["held"].clone()
    held[0], held[1] = -1, torch.tensor([1, 1])  # never there; there in round 2 for the last time
    message = method.send({**state, "held": held}, torch.arange(6))
    assert torch.equal(message.own[0][0], model)
    assert torch.equal(message.own[0][1], model)
    assert torch.equal(message.own[0][2], model[low:])
    assert message.own[1][2].tolist() == [4, 1 + 2 + 4]  # fc2 is here, fc2 is wanted back, and the loss
    silent = method.send({**state, "held": held + 10, "period": 100, "clock": 101}, torch.arange(6))
    assert [len(part) for own in silent.own for part in own] == [0] * 12


def test_layers_not_due_stay_the_clients_own(fed, make_client):
    method = DCPFL(tau=1)
    client = make_client(0, lr=0.1)
    first, second = (layer.positions for layer in client.net.layout.layers)
    own, part = torch.randn(client.net.layout.size), torch.randn(len(second))
    client = client._replace(state={"models": [own], "received": own, "made": 0})
    message = Message(own=(part, torch.tensor([4, 1 + 2 + 4], dtype=torch.uint8)))  # type: ignore[arg-type]
    start = own.clone()
    start[second] = part
    assert torch.equal(method.received(client, message), start)
    reply = method.local(client, message)
    expected = sgd(client, start)
    assert torch.equal(reply.state["models"][0], expected)
    assert torch.equal(reply.body[0], expected[second])
    assert not torch.equal(expected[first], own[first])  # they are trained all the same
    assert float(reply.body[1][0]) == pytest.approx(evaluate(client.net, start, client.data.train)[1])
    # after the work, as in a round: still the model as it was received
    after = client._replace(state=reply.state)
    assert torch.equal(method.received(after, message), start)
    assert torch.equal(method.personal(after, message, lambda: reply), start)
    assert torch.equal(DCPFL(use="trained").personal(after, message, lambda: reply), expected)


def test_a_client_that_missed_the_trial_has_nothing_to_settle(make_client):
    message = Message((torch.tensor([1], dtype=torch.uint8),), (torch.tensor([2, 2], dtype=torch.uint8),))
    with pytest.raises(RuntimeError, match="took no part in the trial"):
        DCPFL().settle(make_client(0), message)


@pytest.mark.parametrize("alpha", [1, 100])
def test_a_latecomer_follows_the_clients_that_learn_like_it(alpha):
    """Four hidden groups of three clients; a client of two of them comes when the others have long been split."""
    fed = fedkin.federate(
        "synthetic", partition="by_group", clients=12, seed=0, data_options={"samples": 1200, "shared": 0.0}
    )
    late = {2: 7, 11: 8}
    method = FirstLayerLow(start_rounds=2, tau=1, alpha=alpha, dynamic=False, gamma=0.9)
    result = run(method, fed, rounds=10, arrive=late, lr=0.05)
    labels, truth = reported(result, "clusters"), fed.groups
    assert labels[2][2] == labels[6][2] == -1
    assert labels[7][11] == -1
    for client in late:
        same = [i for i in range(12) if truth[i] == truth[client] and i not in late]
        assert labels[10][client] == labels[10][same[0]]
    assert result.state["leader"].min() >= 0
    # first the mean of all groups, whole; then its group's model, whole; then what its group averages: fc2
    size, head = result.state["groups"]["models"].shape[1], 16 * 10 + 10
    down = bytes_of(result, "down", 2)
    assert [down[t] for t in (7, 8, 9)] == [4 * size + 2, 4 * size + 2, 4 * (head if alpha > 1 else size) + 2]


# ---- rough weather
@pytest.mark.parametrize(
    "changes",
    [
        {"lost": 0.4},
        {"participation": 0.5, "lost": 0.2},
        {"arrive": {4: 6, 5: 2}, "leave": {0: 9}},
        {"tau_counts": "rounds", "tau": 2, "participation": 0.5, "lost": 0.3, "arrive": {1: 4}},
    ],
)
def test_survives_and_goes_on_with_the_same_bits(fed, tmp_path, changes):
    fields = {k: changes[k] for k in ("tau", "tau_counts") if k in changes}
    settings = {k: v for k, v in changes.items() if k not in fields}
    method = DCPFL(**{**SOON, **fields})
    straight = run(method, fed, rounds=11, **settings)
    losses = [record.value for record in straight.history.select("personal_loss")]
    assert np.isfinite(losses).all()
    assert not [record.value for record in straight.history.select("dropped") if record.value != "lost on the way"]
    for half in (6, 11):
        resumed = run(method, fed, rounds=half, out=tmp_path, checkpoint_every=1, **settings)
    assert equal(resumed.state, straight.state)
    for record in straight.history.select("mixing"):
        for matrix in record.value.values():
            np.testing.assert_allclose(np.sum(matrix, axis=1), 1, atol=1e-4)


def test_mixing_says_for_each_layer_who_is_in_what_would_be_sent(fed):
    method = FirstLayerLow(**{**SOON, "alpha": 4, "dynamic": False, "gamma": 0.7, "start_rounds": 2})
    state = run(method, fed, rounds=3).state
    mixing, labels = method.mixing(state), state["labels"]
    together = (labels[:, None] == labels[None]).float()
    weights = together * fed.sizes.float()
    assert torch.equal(mixing["fc1"], torch.eye(6))  # not averaged in round 3: everybody's own
    torch.testing.assert_close(mixing["fc2"], weights / weights.sum(1, keepdim=True))
    after = run(method, fed, rounds=4).state
    both = method.mixing(after)
    assert list(both) == ["fc1, fc2"]
    torch.testing.assert_close(both["fc1, fc2"], weights / weights.sum(1, keepdim=True))


@pytest.mark.parametrize(
    "fields",
    [
        {"start_rounds": 0},
        {"tau": -1},
        {"layer_scale": "x"},
        {"layer_reference": "x"},
        {"alpha": 0},
        {"step": 0.0},
        {"gamma": 1.5},
        {"scale": "other"},
        {"use": "x"},
    ],
)
def test_impossible_fields_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        DCPFL(**fields)


# ---- layers of low discrepancy (eq. 6)
@pytest.mark.slow
def test_on_lenet_the_two_wide_layers_are_low_in_every_round(real_data):
    """They hold 94 % of the parameters. conv2 is close to the threshold, conv1 and fc3 are far above it."""
    real_data("fashion-mnist")
    fed = fedkin.federate("fashion-mnist", partition="primary_secondary", clients=12, samples_per_client=400, seed=0)
    result = run(DCPFL(), fed, model="lenet", model_options={}, epochs=5, lr=0.01, batch_size=32, rounds=11)
    for table in reported(result, "layer_discrepancy").values():
        values = table["0"]
        share = {name: value / sum(values.values()) for name, value in values.items()}
        assert max(share["fc1"], share["fc2"]) < 0.1
        assert min(share["conv1"], share["fc3"]) > 0.2
    whole, up = 4 * result.state["groups"]["models"].shape[1], bytes_of(result, "up")
    assert [up[t] - 4 for t in (1, 5, 6)] == [whole] * 3  # until the tree is there, and in round 6 = 2 α
    assert up[9] - 4 == whole
    assert max(up[t] for t in (7, 8, 10, 11)) < 0.07 * whole


# ---- defaults and fixed groups
def test_with_defaults_the_tree_is_built_and_groups_split_within_20_rounds():
    """The run of `fedkin run dcpfl --rounds 20`."""
    fed = fedkin.federate("digits", partition="dirichlet", clients=20)
    result = fedkin.run("dcpfl", fed, rounds=20, evaluate_every=0, engine="serial")
    assert list(reported(result, "tree")) == [5]
    assert any(trial["outcome"] == "accepted" for trial in reported(result, "trial").values())
    assert reported(result, "group_count")[20] > 1
    assert not reported(result, "warning")


def test_tau_0_is_one_round_whatever_the_epochs(fed):
    one, two = (run(DCPFL(tau=tau), fed, epochs=3, rounds=4) for tau in (0, 3))
    assert one.state["period"] == 1
    assert equal(one.state, two.state)


def test_it_says_before_it_starts_that_it_cannot_split(fed):
    """Rounds 1 to 9 make a curve whose minimum has stood for three rounds; the first trial is in round 10."""
    short, enough = run(DCPFL(), fed, rounds=9), run(DCPFL(), fed, rounds=10)
    text = reported(short, "warning")[0]
    assert "cannot split in 9 rounds" in text
    assert "round 10" in text
    assert not reported(short, "trial")
    assert not reported(enough, "warning")
    curve = [1.0, 1, 1, 1, 0, 1, 1, 1, 1]  # the smoothed curve falls in round 5 and is flat from round 6 on
    assert [rapid_decrease_end(curve[:t], 5, 3) for t in (8, 9)] == [None, 6]
    fixed = run(DCPFL(dynamic=False, split_after=7), fed, rounds=7)
    assert "round 8" in reported(fixed, "warning")[0]
    assert not reported(run(DCPFL(dynamic=False, split_after=7), fed, rounds=8), "warning")


def test_it_says_when_the_sum_over_layers_makes_most_layers_low(fed):
    """Two layers: below 0.5 of the sum is at most one of them."""
    text = reported(run(DCPFL(low=0.5), fed, rounds=10), "warning")[0]
    assert "low=0.5 of the sum over 2 layers" in text
    assert not reported(run(DCPFL(low=0.49), fed, rounds=10), "warning")


def test_naive_dynamic_splits_once_after_a_given_round_into_two_groups(fed):
    result = run(DCPFL(dynamic=False, start_rounds=2, split_after=4, split_into=2), fed, rounds=6)
    assert list(reported(result, "tree")) == [2]
    assert list(reported(result, "group_count").values()) == [1, 1, 1, 2, 2, 2]
    alone = run("fedavg", fed, rounds=4)  # until then it is FedAvg
    assert reported(result, "gamma")[3] == 1.0
    before = run(DCPFL(dynamic=False, start_rounds=2, split_after=9, low=0), fed, rounds=4)
    assert torch.equal(before.state["groups"]["models"][0], alone.state["model"])


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_oracle_names_the_groups(fed, after):
    groups = (5, 2, 5, 2, 2, 5)
    method = DCPFL(dynamic=False, oracle=groups, split_after=after, layerwise=False, start_rounds=2)
    result = run(method, fed, rounds=5)
    assert reported(result, "clusters") == {t: [0, 1, 0, 1, 1, 0] if t >= after else [0] * 6 for t in range(1, 6)}
    if after == 0:  # FedAvg within each group, from the first round on
        own = DCPFL(dynamic=False, oracle=(0,) * 6, layerwise=False)
        assert torch.equal(run(own, fed).state["groups"]["models"][0], run("fedavg", fed).state["model"])
        everyone = result.state["groups"]["shares"][0, 0]
        assert (everyone > 0).tolist() == [True, False, True, False, False, True]


@pytest.mark.parametrize(
    "fields",
    [{"oracle": (0, 1)}, {"split_into": 2}, {"split_after": 3}, {"dynamic": False, "oracle": (0,), "split_into": 2}],
)
def test_fixed_groups_need_dynamic_off_and_one_rule(fields):
    with pytest.raises(ValueError, match=r"oracle|split_"):
        DCPFL(**fields)


def test_an_oracle_of_another_federation_is_refused(fed):
    with pytest.raises(ValueError, match="oracle names 2 clients; the federation has 6"):
        run(DCPFL(dynamic=False, oracle=(0, 1)), fed)
