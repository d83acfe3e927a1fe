"""Defenses against plain loops, on arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin.protocol import Message
from fedkin.robust.defenses import Defense, krum_scores, median, norm_bounded, trimmed, unlike
from fedkin.robust.updates import references

RNG = np.random.default_rng(7)
UPDATES = RNG.normal(size=(9, 5))
UPDATES[2] *= 40
UPDATES[6] *= -3


def updates(count: int = 9) -> torch.Tensor:
    return torch.from_numpy(UPDATES[:count].copy()).float()


def test_norm_bound_in_plain_loops():
    lengths = sorted(sum(v * v for v in row) ** 0.5 for row in UPDATES)
    bound = 1.5 * lengths[4]
    expected = []
    for row in UPDATES:
        length = sum(v * v for v in row) ** 0.5
        expected.append([v * min(1.0, bound / length) for v in row])
    np.testing.assert_allclose(norm_bounded(updates(), 1.5).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("count", [8, 9])
def test_median_in_plain_loops(count):
    expected = []
    for column in range(5):
        values = sorted(UPDATES[i][column] for i in range(count))
        expected.append(values[count // 2] if count % 2 else (values[count // 2 - 1] + values[count // 2]) / 2)
    np.testing.assert_allclose(median(updates(count)).numpy(), expected, rtol=1e-5)


def test_trimmed_in_plain_loops():
    cut = 2  # 0.25 · 9, rounded
    expected = [[0.0] * 5 for _ in range(9)]
    for column in range(5):
        values = sorted(UPDATES[i][column] for i in range(9))
        low, high = values[cut], values[8 - cut]
        for i in range(9):
            expected[i][column] = min(max(UPDATES[i][column], low), high)
    np.testing.assert_allclose(trimmed(updates(), 0.25).numpy(), expected, rtol=1e-5)


def test_trimming_almost_half_is_the_median():
    assert torch.equal(trimmed(updates(), 0.49), median(updates()).expand(9, 5))


def test_krum_in_plain_loops():
    expected = []
    for i in range(9):
        distances = sorted(sum((a - b) ** 2 for a, b in zip(UPDATES[i], UPDATES[j])) for j in range(9) if j != i)
        expected.append(sum(distances[: 9 - 2 - 2]))  # n − f − 2 nearest, f = 2
    np.testing.assert_allclose(krum_scores(updates(), 2).numpy(), expected, rtol=1e-4)


def test_outliers_are_named_by_length_and_by_direction():
    crowd = torch.ones(8, 6) + 0.1 * torch.from_numpy(RNG.normal(size=(8, 6))).float()
    crowd[3] *= 50
    crowd[5] *= -1
    found = unlike(crowd)
    assert sorted(found) == [3, 5]
    assert "times as long" in found[3]
    assert "cosine" in found[5]
    assert unlike(torch.ones(8, 6)) == {}


# ---- whole replies
SENT = torch.arange(4.0)


def replies(changes: torch.Tensor) -> dict[int, tuple[torch.Tensor, ...]]:
    return {10 + i: (SENT + change, torch.tensor([i], dtype=torch.int32)) for i, change in enumerate(changes)}


def changed(name: str, changes: torch.Tensor, message: Message | None = None) -> dict[int, torch.Tensor]:
    bodies = replies(changes)
    defense = Defense.read(name)
    assert defense is not None
    found = defense.apply(bodies, {client: message or Message(shared=(SENT,)) for client in bodies})
    for client, body in found.bodies.items():
        assert torch.equal(body[1], bodies[client][1]), "whole numbers stay as they are"
    return {client: body[0] - SENT for client, body in found.bodies.items()}


def test_a_weighted_mean_of_defended_replies_is_the_robust_aggregate():
    changes = torch.from_numpy(RNG.normal(size=(7, 4))).float()
    weights = torch.from_numpy(RNG.dirichlet(np.ones(7))).float()
    mean = weights @ torch.stack(list(changed("median", changes).values()))
    torch.testing.assert_close(mean, median(changes), atol=1e-6, rtol=1e-5)
    mean = weights @ torch.stack(list(changed("krum", changes).values()))
    best = int(krum_scores(changes, 1).argmin())
    torch.testing.assert_close(mean, changes[best], atol=1e-6, rtol=1e-5)
    mean = weights @ torch.stack(list(changed("trimmed:0.2", changes).values()))
    low, high = changes.sort(0).values[1], changes.sort(0).values[5]
    assert bool(((low - 1e-5 <= mean) & (mean <= high + 1e-5)).all())


def test_multikrum_leaves_the_worst_out():
    changes = torch.ones(10, 4) + 0.01 * torch.from_numpy(RNG.normal(size=(10, 4))).float()
    changes[4], changes[7] = -30.0, 70.0
    kept = changed("multikrum:0.2", changes)
    assert sorted(set(range(10, 20)) - set(kept)) == [14, 17]
    bodies = replies(changes)
    left = Defense("multikrum", 0.2).apply(bodies, {c: Message(shared=(SENT,)) for c in bodies}).left_out
    assert sorted(left) == [14, 17]
    assert "multikrum" in left[14]


def test_the_report_changes_nothing():
    changes = torch.from_numpy(RNG.normal(size=(6, 4))).float()
    bodies = replies(changes)
    found = Defense("report", 0.0).apply(bodies, {c: Message(shared=(SENT,)) for c in bodies})
    assert all(found.bodies[c] is not None and torch.equal(found.bodies[c][0], bodies[c][0]) for c in bodies)


def test_own_models_keep_what_is_personal():
    """Each client was sent another model: the defended reply is that model plus the safe change."""
    own = 100 * torch.arange(5.0)[:, None] * torch.ones(4)
    changes = torch.from_numpy(RNG.normal(size=(5, 4))).float()
    bodies = {i: (own[i] + changes[i],) for i in range(5)}
    found = Defense("median", 0.0).apply(bodies, {i: Message(own=(own[i],)) for i in range(5)})
    for i in range(5):
        torch.testing.assert_close(found.bodies[i][0], own[i] + median(changes), atol=1e-3, rtol=1e-5)


def test_krum_judges_clients_with_the_same_model_among_themselves():
    """Two groups of five that learn opposite things: without groups, Krum would drop one side."""
    own = torch.zeros(10, 4)
    own[5:] = 7.0
    changes = 0.01 * torch.from_numpy(RNG.normal(size=(10, 4))).float()
    changes[:5] += 1
    changes[5:] -= 1
    changes[2] = 50.0
    changes[8] = -50.0
    bodies = {i: (own[i] + changes[i],) for i in range(10)}
    sent = {i: Message(own=(own[i],)) for i in range(10)}
    assert sorted(Defense("multikrum", 0.2).apply(bodies, sent).left_out) == [2, 8]
    one = Defense("krum", 0.2).apply(bodies, sent).bodies
    assert all(abs(float(one[i][0].mean()) - 1.0) < 0.1 for i in range(5))
    assert all(abs(float(one[i][0].mean()) - 6.0) < 0.1 for i in range(5, 10))


@pytest.mark.parametrize("name", ["krum", "multikrum"])
def test_models_that_differ_by_rounding_are_the_same_to_krum(name):
    """kin's mixture and its mean, once equal, differ in the last bit: that made groups out of nothing."""
    own = torch.full((10, 4), 7.0)
    own[5:] = torch.nextafter(own[5:], torch.tensor(8.0))
    changes = torch.ones(10, 4) + 0.01 * torch.from_numpy(RNG.normal(size=(10, 4))).float()
    changes[5:8] = 3.0  # three hostile clients of ten: the most of the second five
    bodies = {i: (own[i] + changes[i],) for i in range(10)}
    found = Defense(name, 0.3).apply(bodies, {i: Message(own=(own[i],)) for i in range(10)})
    assert all(abs(float(body[0].mean()) - 8.0) < 0.1 for body in found.bodies.values())


@pytest.mark.parametrize("name", ["krum", "multikrum"])
def test_krum_judges_the_few_that_were_sent_another_model_too(name):
    """Eight clients took the mean, two their own mixture: these two are no way past Krum."""
    shared = torch.zeros(4)
    changes = torch.ones(10, 4) + 0.01 * torch.from_numpy(RNG.normal(size=(10, 4))).float()
    changes[9] = -30.0
    own = {8: torch.full((4,), 50.0), 9: torch.full((4,), 60.0)}
    bodies = {i: (own.get(i, shared) + changes[i],) for i in range(10)}
    sent = {i: Message((shared,), (own.get(i, torch.full((4,), 90.0)),)) for i in range(10)}
    found = Defense(name, 0.1).apply(bodies, sent)
    assert 9 in found.left_out if name == "multikrum" else abs(float(found.bodies[9][0].mean()) - 61.0) < 0.1
    assert abs(float(found.bodies[8][0].mean()) - 51.0) < 0.1


def test_a_client_that_chose_among_models_is_compared_with_the_nearest():
    table = torch.stack([torch.zeros(4), torch.full((4,), 10.0)])
    bodies = {i: (table[i % 2] + (50.0 if i == 4 else 0.1),) for i in range(6)}
    found = Defense("normbound", 1.0).apply(bodies, {i: Message(shared=(table,)) for i in range(6)})
    for i in range(6):
        away = min(float((found.bodies[i][0] - row).norm()) for row in table)
        assert away == pytest.approx(0.2, abs=1e-4)


def test_a_client_that_was_offered_two_models_is_compared_with_the_nearer():
    shared, own = torch.zeros(4), torch.full((4,), 10.0)
    bodies = {
        i: ((own if i % 2 else shared) + (50.0 if i == 4 else 0.1), torch.tensor([float(i % 2)])) for i in range(6)
    }
    found = Defense("normbound", 1.0).apply(bodies, {i: Message((shared,), (own,)) for i in range(6)})
    for i in range(6):
        away = min(float((found.bodies[i][0] - model).norm()) for model in (shared, own))
        assert away == pytest.approx(0.2, abs=1e-4)


@pytest.mark.parametrize("name", ["normbound", "median", "trimmed", "krum", "multikrum"])
def test_a_reply_without_an_array_that_others_have_is_judged_by_the_rest(name):
    """pFedGAT's feedback is missing in some replies: that must not be a way past the defense."""
    bodies = {i: (SENT + 0.1 * (i + 1), torch.tensor([1.0])) for i in range(6)}
    bodies |= {i: (SENT + 1000.0, torch.empty(0)) for i in (6, 7)}
    found = Defense(name, {"normbound": 1.0, "median": 0.0}.get(name, 0.25)).apply(
        bodies, {i: Message(shared=(SENT,)) for i in range(8)}
    )
    assert all(float((body[0] - SENT).abs().max()) < 1 for body in found.bodies.values())
    assert {6, 7} <= set(found.outliers)


def test_fewer_than_three_replies_cannot_be_judged():
    bodies = {0: (torch.zeros(4),), 1: (torch.full((4,), 1e6),)}
    found = Defense("normbound", 1.0).apply(bodies, {i: Message(shared=(torch.zeros(4),)) for i in range(2)})
    assert torch.equal(found.bodies[1][0], bodies[1][0])


def test_references_follow_shapes_alone():
    model, control = torch.ones(4), torch.zeros(4)
    message = Message(shared=(model, control), own=(torch.ones(2),))
    found = references(message, (torch.zeros(4), torch.zeros(4), torch.zeros(4), torch.tensor([1]), torch.zeros(2)))
    assert found[0] is model
    assert found[1] is control
    assert found[2] is None
    assert found[3] is None
    assert found[4] is message.own[0]
    assert references(message, (torch.zeros(4), torch.zeros(4)), from_zero=(1,))[1] is None


@pytest.mark.parametrize(
    "text", ["krumm", "trimmed:0.5", "normbound:-1", "normbound:x", "normbound:inf", "krum:0", ":1"]
)
def test_defenses_that_are_none(text):
    with pytest.raises(ValueError, match=r"is not a defense.*Known: normbound"):
        Defense.read(text)
