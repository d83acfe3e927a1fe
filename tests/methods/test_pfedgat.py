"""pFedGAT against its paper: in plain loops, by hand-made examples, and in its reductions."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fedkin
from fedkin.client.evaluate import evaluate
from fedkin.client.training import sgd
from fedkin.engine.runner import client_seed
from fedkin.methods import METHODS
from fedkin.methods.pfedgat import PFedGAT
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Replies, Server, Training
from fedkin.results.store import equal

NAMES = [name for name in METHODS if name.startswith("pfedgat")]
SETTINGS = {"rounds": 4, "lr": 0.1, "epochs": 1, "batch_size": 16, "seed": 5, "engine": "serial"}
SMALL = {"model": "mlp", "model_options": {"width": 0.1}}
V2 = METHODS["pfedgat-v2"].preset


@pytest.fixture(scope="module")
def fed():
    return fedkin.federate("digits", partition="pathological", clients=6, samples_per_client=50, seed=3)


def run(method, fed, **changes):
    return fedkin.run(method, fed, **{**SETTINGS, **SMALL, **changes})


def by_round(result, metric):
    return [record.value for record in result.history.select(metric)]


def network(fed):
    return Network(maker("mlp", fed.shape, fed.classes, SETTINGS["seed"], SMALL["model_options"])(0), fed.example)


def server(fed, net):
    ids = torch.arange(len(fed))
    training = Training(SETTINGS["lr"], SETTINGS["epochs"], SETTINGS["batch_size"])
    return Server(
        ids, fed.sizes, fed.classes, SETTINGS["seed"], 1.0, training, net.layout, lambda k: net.initial.clone()
    )


# ---- the whole algorithm
def allocation(method, parameters, models):
    """eq. (3) to (7), client by client and pair by pair."""
    n = len(models)
    if method.features == "centered":
        models = [theta - sum(models) / n for theta in models]
    h = []
    for theta in models:
        epsilon = 1e-5 if method.features == "weights" else 1e-12
        h.append((theta - theta.mean()) / (theta.var(unbiased=False) + epsilon).sqrt())  # eq. (3)
    R = [[torch.tensor(0.0, dtype=torch.double) for _ in range(n)] for _ in range(n)]
    for k in range(method.heads):
        for i in range(n):
            e = []
            for j in range(n):
                a = parameters["a"][k]
                if method.attention == "gat":
                    z_i, z_j = parameters["W"][k] @ h[i], parameters["W"][k] @ h[j]  # eq. (4)
                    e.append(F.leaky_relu(a @ torch.cat([z_i, z_j]), method.slope))  # eq. (5)
                else:
                    e.append(a @ F.leaky_relu(parameters["W1"][k] @ h[i] + parameters["W2"][k] @ h[j], method.slope))
            total = sum(value.exp() for value in e)
            for j in range(n):
                R[i][j] = R[i][j] + e[j].exp() / total / method.heads  # eq. (6) and (7)
    return torch.stack([torch.stack(row) for row in R])


def paper(method, fed, answered, tilts):
    """Algorithm 1 in plain loops and double precision; yields W, a, R and the mixed models after each round."""
    net = network(fed)
    parameters = {k: v.double() for k, v in method.init(server(fed, net))["gat"].items()}
    moments = {k: [torch.zeros_like(v), torch.zeros_like(v)] for k, v in parameters.items()}
    training = Training(SETTINGS["lr"], SETTINGS["epochs"], SETTINGS["batch_size"])
    received = {i: net.initial.clone() for i in range(len(fed))}
    last, before, steps = {}, {}, 0  # the clients' models of the last graph; losses of the + half
    for t, ids in enumerate(answered, start=1):
        models, losses, slopes = {}, {}, {}
        for i in ids:
            client = Client({}, fed.data(i), client_seed(SETTINGS["seed"], t, i), net, training)
            if i in last:
                net.load(received[i])
                loss = F.cross_entropy(net.module.eval()(client.data.validation.x), client.data.validation.y)
                losses[i] = float(loss.detach())
                slopes[i] = torch.cat([g.flatten() for g in torch.autograd.grad(loss, net.parameters)]).double()
            models[i] = sgd(client, received[i])
            if method.feedback == "delta" and i in last:
                slopes[i] = (received[i] - models[i]).double()
        pair = method.feedback == "scalar" and t % 2 == 1  # rounds 1, 3: + is sent; 2, 4: −
        heard = {i for i in losses if method.feedback != "scalar" or (pair and i in before)}
        if heard:
            leaves = {k: v.clone().requires_grad_() for k, v in parameters.items()}
            R = allocation(method, leaves, [last[j].double() for j in last])
            objective = torch.tensor(0.0, dtype=torch.double)
            for i in heard:  # eq. (9): its gradient along W and a is that of Σ_i ⟨∇L_i, Σ_j R_ij θ_j⟩
                row = R[list(last).index(i)]
                if method.feedback == "scalar":
                    tilt = [float(tilts[t - 2][i, j]) for j in last]
                    for j in range(len(last)):
                        slope = (before[i] - losses[i]) / (2 * method.perturbation) * tilt[j]
                        objective = objective + slope * row[j].log()
                else:
                    for j, other in enumerate(last):
                        objective = objective + row[j] * (slopes[i] @ last[other].double())
                for j in range(len(last)):
                    objective = objective - method.prior / len(last) * row[j].log()
            steps += 1
            for (k, v), g in zip(parameters.items(), torch.autograd.grad(objective, list(leaves.values()))):
                if method.gat_optimizer == "sgd":
                    parameters[k] = v - method.gat_lr * g  # eq. (10)
                else:
                    m, s = moments[k]
                    m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g * g
                    step = (m / (1 - 0.9**steps)) / ((s / (1 - 0.999**steps)).sqrt() + 1e-8)
                    parameters[k], moments[k] = v - method.gat_lr * step, [m, s]
        before = losses
        last = models
        R = allocation(method, parameters, [theta.double() for theta in models.values()]).detach()
        if method.feedback == "scalar":
            sign = 1 if t % 2 == 1 else -1
            chosen = tilts[t - 1][ids][:, ids].double()
            R = (R.log() + sign * method.perturbation * chosen).softmax(1)
        for row, i in enumerate(ids):
            received[i] = sum(R[row, c] * models[j].double() for c, j in enumerate(ids)).float()  # eq. (8)
        yield parameters, R, dict(received)


@pytest.mark.parametrize(
    "method",
    [
        PFedGAT(heads=2, hidden=3, gat_lr=0.5),
        PFedGAT(heads=2, hidden=3, gat_lr=0.5, feedback="delta"),
        PFedGAT(heads=2, hidden=3, attention="gatv2", features="centered", gat_optimizer="adam", prior=0.2),
        PFedGAT(heads=2, hidden=3, attention="gatv2", features="centered", gat_lr=0.02, feedback="scalar"),
    ],
    ids=["printed", "delta", "gatv2 centered adam prior", "scalar"],
)
def test_every_round_is_that_of_the_paper(method, fed):
    changes = {"participation": 0.7, "lost": 0.15, "rounds": 5}
    results = [run(method, fed, **{**changes, "rounds": t}) for t in range(1, 6)]
    answered = [r.state["nodes"].tolist() for r in results]
    assert len({tuple(ids) for ids in answered}) > 1, "somebody must be missing now and then"
    reference = paper(method, fed, answered, [r.state["tilt"] for r in results])
    start = method.init(server(fed, network(fed)))["gat"]
    for t, (result, (parameters, R, received)) in enumerate(zip(results, reference), start=1):
        state = result.state
        ids = answered[t - 1]
        assert torch.allclose(state["R"][ids][:, ids], R.float(), atol=2e-4), t
        for k, v in parameters.items():
            wanted, moved = v - start[k], state["gat"][k] - start[k]  # how far it came, not where it is
            assert torch.allclose(moved, wanted.float(), atol=0.02 * float(wanted.abs().max()) + 1e-7), (t, k)
        for i, row in received.items():
            assert torch.allclose(state["mixed"][i], row, atol=2e-4), (t, i)
    assert all(float((results[-1].state["gat"][k] - start[k]).abs().max()) > 1e-5 for k in start)


# ---- a toy: client i wants to be at the center of its group, L_i = ½‖θ − c_i‖²
GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])


class Toy:
    """Six clients in two groups, whose models lie near the centers of their groups; the server's hooks by hand."""

    def __init__(self, method, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.centers = torch.randn(2, 40, generator=g)[GROUPS]
        self.models = self.centers + 0.3 * torch.randn(6, 40, generator=g)
        layout = network_of_forty().layout
        ids = torch.arange(6)
        self.fed = Server(ids, torch.ones(6), 2, seed, 1.0, Training(), layout, lambda k: torch.zeros(40))
        self.method, self.seed = method, seed

    def round(self, state, number):
        """Feedback on what was sent, and the same models again; for "delta" the trained ones follow the gradient."""
        sent = self.method.send(state, self.fed.ids)
        slope = sent.own[0] - self.centers
        loss = slope.square().sum(1, keepdim=True) / 2
        had = len(state["nodes"]) > 0
        body = (self.models, loss if had else loss[:, :0], slope if had else slope[:, :0])
        if self.method.feedback == "delta":
            body = (sent.own[0] - slope if had else self.models,)
        kept = body if self.method.feedback != "scalar" else body[:2]
        replies = Replies(self.fed.ids, torch.ones(6), kept, torch.arange(6), 100 * self.seed + number)
        return self.method.merge(state, sent, replies)

    def loss(self, gat):
        """L of the untilted mix of the models with these parameters, eq. (9)."""
        h = self.method._inputs({"parameters": 40, "seed": 0}, self.models)
        R = self.method._heads(gat, self.fed.ids, h).mean(0)
        return float((R @ self.models - self.centers).square().sum() / 2), R


def network_of_forty():
    return Network(torch.nn.Linear(20, 2, bias=False), torch.zeros(1, 20))


@pytest.mark.parametrize("attention", ["gatv2", "direct"])
@pytest.mark.parametrize("feedback", ["gradient", "delta", "scalar"])
def test_one_step_in_every_mode_lowers_the_loss_on_two_groups(feedback, attention):
    """In "scalar" a step is right on average: the tilts are random."""
    method = PFedGAT(attention=attention, features="centered", feedback=feedback, gat_lr=1e-3, perturbation=0.1)
    drops = []
    for seed in range(10):
        toy = Toy(method, seed)
        state = toy.round(toy.method.init(toy.fed), 1)
        before = toy.loss(state["gat"])[0]
        for number in range(2, 4 if feedback == "scalar" else 3):
            state = toy.round(state, number)
        assert state["steps"] == 1
        drops.append(before - toy.loss(state["gat"])[0])
    if feedback == "scalar":
        assert np.mean(drops) > 0
        assert sum(drop > 0 for drop in drops) >= 8
    else:
        assert min(drops) > 0


def test_gatv2_on_centered_models_finds_the_groups_and_the_printed_attention_cannot():
    same = GROUPS[:, None] == GROUPS[None]
    found = {}
    for name in ("pfedgat", "pfedgat-v2", "pfedgat-v2-direct"):
        method = replace(fedkin.method(name), gat_lr=0.01 if name != "pfedgat-v2-direct" else 0.1, projection="none")
        toy = Toy(method)
        state = method.init(toy.fed)
        for number in range(30):
            state = toy.round(state, number)
        R = state["R"]
        found[name] = float(R[same].mean() / R[~same].mean())
    assert found["pfedgat-v2"] > 2
    assert found["pfedgat-v2-direct"] > 2
    assert found["pfedgat"] < 1.5


@pytest.mark.parametrize("name", NAMES)
def test_permuting_the_clients_permutes_everything(name):
    method = fedkin.method(name)
    toy = Toy(method)
    order = torch.tensor([4, 0, 3, 5, 1, 2])
    other = Toy(method)
    other.models, other.centers = toy.models[order], toy.centers[order]
    one, two = method.init(toy.fed), method.init(toy.fed)
    for number in range(4):
        one, two = toy.round(one, number), other.round(two, number)
    assert torch.allclose(two["R"], one["R"][order][:, order], atol=1e-4)
    assert torch.allclose(two["mixed"], one["mixed"][order], atol=1e-4)


@pytest.mark.parametrize("name", ["pfedgat", "pfedgat-v2"])
def test_identical_models_are_mixed_uniformly(name):
    toy = Toy(fedkin.method(name, start="glorot"))
    toy.models = toy.models[:1].repeat(6, 1)
    state = toy.round(toy.method.init(toy.fed), 1)
    assert torch.allclose(state["R"], torch.full((6, 6), 1 / 6), atol=1e-3)


# ---- reductions and what travels
def test_uniform_attention_of_equal_clients_is_fedavg():
    fed = fedkin.federate("digits", partition="iid", clients=4, samples_per_client=40, seed=1)
    average = run("fedavg", fed, rounds=1).state["model"]
    for method in (fedkin.method("pfedgat-v2"), fedkin.method("pfedgat-direct")):
        mixed = run(method, fed, rounds=1).state["mixed"]
        assert torch.allclose(mixed, average.expand(4, -1), atol=1e-6)


@pytest.mark.parametrize(("feedback", "extra"), [("gradient", "model"), ("delta", 0), ("scalar", 4)])
def test_bytes_are_those_of_the_mode(fed, feedback, extra):
    size = network(fed).layout.size * 4
    result = run(PFedGAT(feedback=feedback), fed, rounds=3)
    up = [{record.value for record in result.history.select("bytes_up", round=t)} for t in (1, 2, 3)]
    more = size + 4 if extra == "model" else extra
    assert up == [{size}, {size + more}, {size + more}], "nothing more in round 1: there was no graph yet"
    down = {record.value for record in result.history.select("bytes_down")}
    assert down == {size if feedback == "delta" else size + 1}


def test_a_client_of_an_older_graph_is_not_asked_for_feedback(fed):
    result = run(PFedGAT(), fed, participation=0.5, rounds=6)
    size = network(fed).layout.size * 4
    last: set[int] = set()
    for t in range(1, 7):
        up = {record.client: record.value for record in result.history.select("bytes_up", round=t)}
        assert {client for client, value in up.items() if value > size} == last & set(up), t
        last = set(up)


def test_those_who_did_not_answer_keep_their_last_model(fed):
    three, four = (run(PFedGAT(), fed, participation=0.5, rounds=t).state for t in (3, 4))
    away = [i for i in range(len(fed)) if i not in four["nodes"].tolist()]
    assert away
    assert torch.equal(four["mixed"][away], three["mixed"][away])
    assert torch.equal(four["R"][away], three["R"][away])


def test_test_examples_are_seen_only_when_told(fed):
    assert not PFedGAT().sees_test
    assert PFedGAT(feedback_split="test").sees_test
    one, two = run(PFedGAT(), fed, rounds=2), run(PFedGAT(feedback_split="test"), fed, rounds=2)
    assert by_round(one, "feedback_loss") != by_round(two, "feedback_loss")


@pytest.mark.parametrize("feedback", ["gradient", "scalar"])
def test_clients_without_validation_examples_get_a_row_but_give_no_feedback(fed, feedback):
    empty = [replace(s, validation=s.validation[:0]) if i in (1, 4) else s for i, s in enumerate(fed.splits)]
    result = run(PFedGAT(feedback=feedback), replace(fed, splits=tuple(empty)))
    assert by_round(result, "feedback_clients") == [0, 4, 4, 4]
    assert not result.state["gave"][[1, 4]].any()
    assert torch.allclose(result.state["R"].sum(1), torch.ones(6), atol=1e-5)
    assert result.state["R"][1].max() < 0.9


def test_nobody_with_validation_examples_is_an_error_not_a_silence(fed):
    empty = replace(fed, splits=tuple(replace(s, validation=s.validation[:0]) for s in fed.splits))
    with pytest.raises(ValueError, match=r"validation=0\.1"):
        run(PFedGAT(), empty)
    run(PFedGAT(feedback="delta"), empty)


# ---- coming, going, losing, resuming
@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_joins_has_a_row_and_a_column_at_once(name, fed):
    method = fedkin.method(name)
    before, after = (run(method, fed, arrive={5: 4}, rounds=t).state for t in (3, 4))
    assert torch.equal(before["R"][5], torch.eye(6)[5])
    assert (before["R"][:5, 5] == 0).all()
    assert (after["R"] > 0).all()
    assert after["mixed"][5].ne(before["mixed"][5]).any()
    if method.attention != "direct":  # nothing in the network has the size of the federation
        assert 6 not in {size for value in after["gat"].values() for size in value.shape}


def test_a_late_client_of_the_free_matrix_has_learned_nothing(fed):
    state = run(fedkin.method("pfedgat-direct"), fed, arrive={5: 4}).state
    logits = state["gat"]["logits"]
    assert (logits[5] == 0).all()
    assert (logits[:, 5] == 0).all()
    assert (logits[:5, :5] != 0).any()


@pytest.mark.parametrize("name", NAMES)
def test_lost_replies_partial_participation_and_leaving(name, fed):
    result = run(fedkin.method(name), fed, lost=0.4, participation=0.7, leave={0: 3}, rounds=6)
    mixing = result.state["R"]
    assert torch.allclose(mixing.sum(1), torch.ones(6), atol=1e-5)
    assert 0 not in result.state["nodes"].tolist()
    assert np.isfinite(result.summary["personal"]["mean"])


@pytest.mark.parametrize("feedback", ["gradient", "delta", "scalar"])
def test_a_stopped_run_goes_on_with_the_same_bits(feedback, fed, tmp_path):
    method = PFedGAT(**{**V2, "feedback": feedback})
    straight = run(method, fed)
    run(method, fed, rounds=2, out=tmp_path, checkpoint_every=1)
    resumed = run(method, fed, out=tmp_path, checkpoint_every=1)
    assert equal(resumed.state, straight.state)


# ---- what is shown and said
def test_the_history_has_attention_heads_and_loss(fed):
    result = run(PFedGAT(), fed, rounds=3)
    heads = np.array(by_round(result, "attention_heads")[-1])
    assert heads.shape == (8, 6, 6)
    assert np.allclose(heads.mean(0), by_round(result, "mixing")[-1], atol=1e-5)
    assert len(by_round(result, "feedback_loss")) == 2


def test_the_model_used_is_the_trained_one_or_the_one_received(fed):
    one, two = run(PFedGAT(use="received"), fed, rounds=2), run(PFedGAT(), fed, rounds=2)
    assert one.summary["personal"]["mean"] == one.summary["received"]["mean"] == two.summary["received"]["mean"]
    assert two.summary["personal"]["mean"] != two.summary["received"]["mean"]
    client = network(fed)
    for i, value in two.history.values("personal_loss", round=2).items():  # trained on as round 3 would
        me = Client({}, fed.data(i), client_seed(5, 3, i), client, Training(0.1, 1, 16))
        expected = evaluate(client, sgd(me, two.state["mixed"][i]), fed.test(i))[1]
        assert value == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("name", "counterpart"), [("pfedgat-direct", "pfedgat"), ("pfedgat-v2-direct", "pfedgat-v2")])
def test_without_the_network_the_optimizer_rate_and_prior_are_the_counterparts(name, counterpart):
    """Table 4 compares two ways to make R, not two optimizers."""
    ours, theirs = asdict(fedkin.method(name)), asdict(fedkin.method(counterpart))
    of_the_network = {"attention", "features", "start", "projection", "projection_size"}
    assert {k for k in ours if ours[k] != theirs[k]} <= of_the_network
    assert ours["attention"] == "direct"
    assert fedkin.method("pfedgat") == PFedGAT()


def test_a_network_too_large_for_the_server_says_what_to_do():
    wide = torch.nn.Linear(1000, 1000)
    toy = Toy(PFedGAT())
    fed = replace(toy.fed, layout=Network(wide, torch.zeros(1, 1000)).layout)
    PFedGAT().init(replace(fed, ids=fed.ids[:1]))
    with pytest.raises(ValueError, match=r"1466 MiB; the limit is 1024 MiB: use projection='random'"):
        PFedGAT(attention="gatv2", gat_optimizer="adam").init(fed)
    assert PFedGAT(projection="random").init(fed)["gat"]["W"].shape == (8, 8, 4096)


@pytest.mark.parametrize(
    "fields",
    [
        {"heads": 0},
        {"gat_lr": -1.0},
        {"slope": 1.0},
        {"prior": -0.1},
        {"projection_size": 5000},
        {"feedback": "delta", "feedback_split": "test"},
    ],
)
def test_bad_fields_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        PFedGAT(**fields)
