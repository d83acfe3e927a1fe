"""Differential privacy at clients: the noise, what is refused, epsilon, and what an attacker can reconstruct."""

from __future__ import annotations

import json

import pytest
import torch

import fedkin
from fedkin.client.training import sgd
from fedkin.engine.runner import ClientError, ClientRunner, RunSpec, Task
from fedkin.methods import method as by_name
from fedkin.models.build import maker, resolve
from fedkin.models.network import Network
from fedkin.protocol import Client, Data, Examples, Message, Training
from fedkin.results.store import equal
from fedkin.robust.privacy import Privacy, PrivateData

dp_accounting = pytest.importorskip("dp_accounting", reason="pip install 'fedkin[privacy]'")
QUICK = {"rounds": 2, "engine": "serial", "evaluate_every": 0, "save_models": False}
SENT = torch.arange(6.0)


def privacy(text: str) -> Privacy:
    found = Privacy.read(text)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def fed() -> fedkin.Federation:
    return fedkin.federate("digits", clients=4, samples_per_client=40, partition="iid", seed=1)


# ---- client level
def noisy(asked: Privacy, *body: torch.Tensor, seed: int = 1) -> tuple[torch.Tensor, ...]:
    message = Message(shared=(SENT,))
    return asked.covered(body, message, (), asked.generator(seed, "local", message))


def test_a_change_is_clipped_as_a_whole():
    """All arrays together have the length `clip`: the model counts from what was sent, the loss from zero."""
    tiny = privacy("client:clip=2,noise=1e-9")
    change, loss = torch.tensor([3.0, 0, 0, 0, 0, 0]), torch.tensor([4.0])
    model, number = noisy(tiny, SENT + change, loss)
    torch.testing.assert_close(model - SENT, change * 2 / 5, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(number, loss * 2 / 5, atol=1e-5, rtol=1e-5)
    short = noisy(tiny, SENT + 0.1 * change, 0.1 * loss)
    torch.testing.assert_close(short[0] - SENT, 0.1 * change, atol=1e-5, rtol=1e-5)


def test_every_number_has_the_noise_that_was_asked_for():
    asked = privacy("client:clip=0.5,noise=3")
    sent = torch.zeros(40_000)
    message = Message(shared=(sent,))
    model, other = asked.covered((sent, torch.zeros(40_000)), message, (), asked.generator(1, "local", message))
    for array in (model, other):
        assert float(array.std()) == pytest.approx(1.5, rel=0.03)
        assert float(array.mean()) == pytest.approx(0.0, abs=0.05)
    assert abs(float(torch.corrcoef(torch.stack([model, other]))[0, 1])) < 0.03, "no number has another's noise"


def test_noise_is_the_same_for_the_same_task_and_secret_alone():
    message, other = Message(shared=(SENT,)), Message(shared=(SENT + 1,))
    plain, keyed = privacy("client:clip=1,noise=1"), Privacy("client", 1.0, 1.0, secret=b"a site's own")

    def drawn(asked: Privacy, *task: object) -> list[float]:
        return torch.randn(3, generator=asked.generator(*task)).tolist()  # type: ignore[arg-type]

    first = drawn(plain, 1, "local", message)
    assert first == drawn(plain, 1, "local", message)
    others = [(plain, 2, "local", message), (plain, 1, "measure", message), (plain, 1, "local", other),
              (keyed, 1, "local", message)]  # fmt: skip
    assert all(drawn(*task) != first for task in others)
    assert "own" not in repr(keyed)


# ---- example level
def test_private_gradients_in_plain_loops(fed):
    """Each example's gradient is clipped by itself; with next to no noise the sum is that of plain loops."""
    net = Network(maker(resolve("mlp_small", "digits"), fed.shape, 10, 0, {})(0), fed.example)
    examples = fed.data(0, with_test=False).train
    data = Data(lambda: examples, lambda: examples, 10)
    asked = privacy("example:clip=0.7,noise=1e-9")
    hidden = PrivateData(data, asked, len(examples.y), torch.Generator().manual_seed(0))  # a batch of all examples
    (found,) = hidden.gradients(lambda x, y: net.example_gradients(x, y, net.parameters), net.parameters, 1, 1)
    expected = [torch.zeros(p.shape) for p in net.parameters]
    for x, y in zip(examples.x, examples.y):
        loss = torch.nn.functional.cross_entropy(net.module(x[None]), y[None])
        slopes = torch.autograd.grad(loss, net.parameters)
        length = sum(float(g.square().sum()) for g in slopes) ** 0.5
        for total, slope in zip(expected, slopes):
            total += slope * min(1.0, 0.7 / length) / len(examples.y)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
    assert hidden.released == 1


def test_batches_are_poisson_samples(fed):
    examples = Examples(torch.ones(200, 1), torch.zeros(200, dtype=torch.long))
    hidden = PrivateData(Data(lambda: examples, lambda: examples, 2), privacy("example:clip=1,noise=1e-9"), 20,
                         torch.Generator().manual_seed(0))  # fmt: skip
    sizes = []

    def ones(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.ones(len(y), 1)]

    for (total,) in hidden.gradients(ones, [torch.zeros(1)], 30, None):
        sizes.append(round(float(total) * 20))
    assert len(sizes) == 300
    assert hidden.released == 300
    mean = sum(sizes) / 300
    assert 19 < mean < 21
    assert 14 < sum((s - mean) ** 2 for s in sizes) / 300 < 23, "binomial: 200 · 0.1 · 0.9 = 18"


def test_examples_cannot_be_seen_in_another_way(fed):
    with pytest.raises(ClientError, match="looks at them in another way"):
        fedkin.run("fedproto", fed, privacy="example:clip=1,noise=1", **QUICK)
    with pytest.raises(ClientError, match="batch norm"):
        fedkin.run("fedavg", fed, model="cnn_bn", privacy="example:clip=1,noise=1", **QUICK)


def test_a_loss_of_the_methods_own_is_refused(fed):
    net = Network(maker(resolve("mlp_small", "digits"), fed.shape, 10, 0, {})(0), fed.example)
    hidden = PrivateData(fed.data(0, with_test=False), privacy("example:clip=1,noise=1"), 8, torch.Generator())
    client = Client({}, hidden, 0, net, Training())
    with pytest.raises(PermissionError, match="has its own loss"):
        sgd(client, net.initial, loss=lambda net, x, y: net(x).sum())


def test_what_cannot_be_covered_is_refused(fed):
    with pytest.raises(ValueError, match=r"cannot cover PFLIC.*shapes"):
        fedkin.run("pflic", fed, privacy="client:clip=1,noise=1", **QUICK)
    with pytest.raises(ClientError, match="array of int32, which noise cannot cover"):
        fedkin.run("ifca", fed, privacy="client:clip=1,noise=1", **QUICK)


@pytest.mark.parametrize(
    "text",
    ["client", "clients:clip=1,noise=1", "client:clip=1", "client:clip=1,noise=0", "client:clip=-1,noise=1",
     "client:clip=1,noise=nan", "client:clip=1,noise=1,noise=2", "client:clip=1,noise=1,epsilon=3",
     "client:clip=1,noise=1,delta=0", "client:clip=1,noise=1,delta=1"],
)  # fmt: skip
def test_settings_that_are_none(fed, text):
    with pytest.raises(ValueError, match=r"privacy=|must"):
        fedkin.run("fedavg", fed, privacy=text, **QUICK)


# ---- epsilon
def test_epsilon_of_client_level_privacy_is_the_packages(fed, tmp_path):
    run = fedkin.run("fedavg", fed, privacy="client:clip=1,noise=4", out=tmp_path / "run", **QUICK)
    accountant = dp_accounting.rdp.RdpAccountant()
    for _ in range(2):  # two rounds; two replies are up to 2 · clip apart, so the multiplier is 4 / 2
        accountant.compose(dp_accounting.GaussianDpEvent(2.0))
    assert run.summary["privacy"]["epsilon"] == pytest.approx(accountant.get_epsilon(1e-5))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]["level"] == "client"
    from fedkin.report.page_data import page_data
    from fedkin.report.read import load

    setting = dict(page_data([load(tmp_path / "run")])["setting"])
    assert "ε = " in setting["privacy"]


def test_epsilon_of_example_level_privacy_is_the_packages(fed):
    run = fedkin.run("fedavg", fed, privacy="example:clip=1,noise=2,delta=1e-4", batch_size=8, **QUICK)
    rows = [r.value for r in run.history.select("train_examples")]
    worst = 0.0
    for count in set(rows):
        accountant = dp_accounting.rdp.RdpAccountant()
        event = dp_accounting.PoissonSampledDpEvent(8 / count, dp_accounting.GaussianDpEvent(2.0))
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, 2 * -(-count // 8)))
        worst = max(worst, accountant.get_epsilon(1e-4))
    assert run.summary["privacy"]["epsilon"] == pytest.approx(worst)


@pytest.mark.parametrize("text", ["client:clip=1,noise=1", "example:clip=1,noise=1"])
def test_engines_agree_and_a_stopped_run_goes_on(fed, text, tmp_path):
    straight = fedkin.run("fedavg", fed, rounds=2, engine="serial", privacy=text, evaluate_every=1)
    for rounds in (1, 2):
        stopped = fedkin.run("fedavg", fed, rounds=rounds, engine="pool", workers=1, out=tmp_path, checkpoint_every=1,
                             evaluate_every=1, privacy=text)  # fmt: skip
    assert equal(straight.state, stopped.state)
    assert stopped.summary["privacy"] == straight.summary["privacy"]


def test_without_noise_worth_the_name_training_still_works(fed):
    plain = fedkin.run("fedavg", fed, **(QUICK | {"rounds": 4})).summary["personal"]["mean"]
    for text in ("client:clip=100,noise=1e-6", "example:clip=100,noise=1e-4"):
        covered = fedkin.run("fedavg", fed, privacy=text, **(QUICK | {"rounds": 4})).summary["personal"]["mean"]
        assert covered > plain - 0.12, text


# ---- what an attacker can reconstruct
def reconstruction(fed: fedkin.Federation, text: str) -> float:
    """Gradient inversion on one batch (Phong et al., 2018): the rows of the first layer's gradient are the input times
    the bias's gradient. Returns the correlation of the reconstructed image with the real one."""
    make = maker(resolve("mlp_small", "digits"), fed.shape, 10, 0, {})
    spec = RunSpec(by_name("fedavg"), fed, lambda: make(0), None, Training(lr=0.1, batch_size=1), 0,
                   privacy=Privacy.read(text))  # fmt: skip
    runner = ClientRunner(spec)
    sent = runner.net.initial.clone()
    outcome = runner.perform(Task(1, 0, 0, "local", None, None), Message(shared=(sent,)))
    assert not outcome.error, outcome.error
    change = runner.net.layout.tensors(outcome.body[0] - sent)
    weight, bias = change["fc1.weight"], change["fc1.bias"]
    strongest = int(bias.abs().argmax())
    guess = weight[strongest] / bias[strongest]
    real = fed.data(0, with_test=False).train.x[0].flatten()
    return float(torch.corrcoef(torch.stack([guess, real]))[0, 1])


def test_gradient_inversion_sees_the_image_and_privacy_hides_it():
    pixels = fedkin.federate("digits", clients=4, samples_per_client=40, partition="iid", seed=1)
    one = OneExample(pixels)
    assert reconstruction(one, "") > 0.99  # type: ignore[arg-type]
    for text in ("client:clip=1,noise=1", "example:clip=1,noise=1"):
        assert abs(reconstruction(one, text)) < 0.5, text  # type: ignore[arg-type]


class OneExample:
    """The same federation, in which every client trains on one example."""

    def __init__(self, fed: fedkin.Federation) -> None:
        self._fed = fed

    def __getattr__(self, name: str) -> object:
        return getattr(self._fed, name)

    def data(self, client: int, *, with_test: bool) -> Data:
        found = self._fed.data(client, with_test=with_test)
        one = Examples(found.train.x[:1], found.train.y[:1])
        return Data(lambda: one, lambda: one, found.classes)
