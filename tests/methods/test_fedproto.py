"""FedProto in plain loops (as printed, and as in the authors' code), and λ = 0 as Local."""

from __future__ import annotations

import pytest
import torch
from plain_baselines import a_client, federation, isolated, losses, network, run, survives
from plain_parts import descend, feature, keeps_frozen, loaded, loss_on_test
from torch.nn import functional as F

from fedkin.client.training import batches
from fedkin.methods.fedproto import FedProto
from fedkin.methods.local import Local
from fedkin.protocol import Message


def prototypes_of(module, data):
    """Eq. (3): class by class, example by example."""
    out = {}
    with torch.no_grad():
        for j in range(10):
            rows = [feature(module, x[None])[0] for x, y in zip(data.x, data.y) if int(y) == j]
            if rows:
                out[j] = (sum(rows) / len(rows), len(rows))
    return out


def regularizer(z, y, shared, compare):
    if compare == "examples":
        return sum(((z[k] - shared[int(y[k])]) ** 2).sum() for k in range(len(y)) if int(y[k]) in shared) / z.numel()
    total = torch.zeros(())
    for j in sorted({int(label) for label in y} & set(shared)):  # eq. (8)
        total = total + ((z[y == j].mean(0) - shared[j]) ** 2).mean()
    return total


@pytest.mark.parametrize(
    ("compare", "weighting", "by"), [("prototypes", "size", "prototypes"), ("examples", "equal", "head")]
)
def test_it_is_the_papers_algorithm(compare, weighting, by):
    lam = 0.7
    got = run(FedProto(lam=lam, compare=compare, weighting=weighting, predict_by=by))
    net = network()
    models, shared = dict.fromkeys(range(6), net.initial.clone()), {}
    for round in (1, 2, 3):
        sent = []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            module = loaded(net, models[i])
            for epoch in range(2):
                for x, y in batches(client, epoch=epoch):
                    z = feature(module, x)
                    value = F.cross_entropy(module.fc2(z), y)
                    if shared:
                        value = value + lam * regularizer(z, y, shared, compare)  # eq. (7)
                    descend(value, list(module.parameters()))
            models[i] = net.vector()
            sent.append(prototypes_of(module, client.data))
        for j in range(10):  # eq. (6), with weights that sum to 1
            have = [own[j] for own in sent if j in own]
            if have:
                weights = [n if weighting == "size" else 1 for _, n in have]
                shared[j] = sum(w * c for w, (c, _) in zip(weights, have)) / sum(weights)
    for j, prototype in shared.items():
        assert torch.allclose(got.state["prototypes"][j], prototype, atol=1e-5)
    assert got.state["known"].nonzero().flatten().tolist() == sorted(shared)
    for i in range(6):
        module = loaded(net, models[i])
        x, y = federation().test(i)
        if by == "head":
            assert losses(got)[i] == pytest.approx(loss_on_test(i, module), rel=1e-3)
            continue
        mine = {int(label) for label in federation().data(i).y}
        right = 0
        for example, label in zip(x, y):  # eq. (4), among the client's classes
            z = feature(module, example[None])[0]
            right += min(mine, key=lambda j, z=z: float((z - shared[j]).norm().detach())) == int(label)
        assert got.history.values("personal", round=3)[i] == pytest.approx(right / len(y))
    assert got.summary["bytes_up"] == 3 * 6 * 4 * (10 * 16 + 10), "prototypes and counts, no model"
    assert got.summary["bytes_down"] == 2 * 6 * (4 * 10 * 16 + 10)


def test_without_its_term_it_is_local():
    a, b = run(FedProto(lam=0.0, predict_by="head")), run(Local())
    assert losses(a) == losses(b)
    assert losses(run(FedProto(lam=1.0, predict_by="head"))) != losses(b)


def test_a_class_nobody_answered_keeps_its_prototype():
    method = FedProto()
    state = {"clients": 3, "prototypes": torch.ones(2, 3), "known": torch.tensor([True, False])}
    from fedkin.protocol import Replies

    counts = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    means = torch.stack([torch.full((2, 3), 2.0), torch.full((2, 3), 6.0)])
    replies = Replies(torch.tensor([2, 0]), torch.tensor([1, 3]), (means, counts), torch.tensor([1, 0]), 0)
    new = method.merge(state, Message(), replies)
    assert new["prototypes"].tolist() == [[1.0] * 3, [5.0] * 3]
    assert new["known"].tolist() == [True, True]
    assert FedProto(weighting="equal").merge(state, Message(), replies)["prototypes"][1].tolist() == [4.0] * 3


def test_the_model_never_travels():
    client = a_client()
    reply = FedProto().local(client, Message())
    assert [tuple(part.shape) for part in reply.body] == [(10, 16), (10,)]
    assert FedProto().received(client, Message()) is None


def test_frozen_parameters_stay_frozen():
    known = torch.ones(10, dtype=torch.bool)
    keeps_frozen(FedProto(), lambda net: Message(shared=(torch.zeros(10, 8), known)))


def test_faults_are_named():
    with pytest.raises(ValueError, match="predict_by='vote' must be prototypes or head"):
        FedProto(predict_by="vote")


def test_it_survives(tmp_path):
    survives(FedProto(), tmp_path)


def test_clients_models_are_their_own():
    isolated(FedProto(predict_by="head"))
