"""Secure aggregation: the server learns the mean, a lost site is left out of it, and no site gives away more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

import fedkin
from fedkin.deploy import codec, secure, server
from fedkin.deploy.codec import Malformed
from fedkin.deploy.plan import read
from fedkin.deploy.secure import Secure, SecureSum, as_mean, flat
from fedkin.deploy.secure_site import SecureSite
from fedkin.engine.serial import Serial
from fedkin.methods import METHODS, method
from fedkin.methods.fedavg import FedAvg
from fedkin.results.history import History
from tests.deploy.memory import Memory
from tests.deploy.test_server import _clock  # noqa: F401  time passes only where the server waits

TOKEN = "0123456789abcdef"
SITES = ["amber", "birch", "cedar", "dune", "elm"]


def reply(name: str) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return torch.randn(3, 4, generator=generator), torch.randn(5, generator=generator).double()


def weight(name: str) -> int:
    return len(name) * 7


class Sum:
    """A sum among sites in memory. `lost`: by stage, the sites that do not answer from then on."""

    def __init__(self, folder: Path, names: list[str] = SITES, token: str = TOKEN, round: int = 1, **lost: list[str]):
        self.folder, self.token, self.round, self.lost = folder, token, round, lost
        self.server = SecureSum(names, token)
        self.there = list(names)
        self.masked: dict[str, tuple[torch.Tensor, ...]] = {}

    def site(self, name: str, asked: Secure) -> SecureSite:
        return SecureSite(self.folder / name, name, self.round, 1, asked)

    def answer(self, name: str, asked: Secure) -> Secure:
        site = self.site(name, asked)
        if asked.stage == "masked":
            site.accept()
            answers, self.masked[name] = site.masked(reply(name), weight(name))
            return answers
        return getattr(site, asked.stage)()  # type: ignore[no-any-return]

    def stage(self, wanted: dict[str, Secure]) -> dict[str, Secure]:
        out = {}
        for name, asked in wanted.items():
            if name in self.lost.get(asked.stage, ()):
                self.there.remove(name)
            if name in self.there:
                record = codec.RecordDict({"secure": secure.encode(asked)})
                found = secure.decode(record)
                assert found == asked
                out[name] = self.answer(name, found)
        return out

    def send(self) -> None:
        keys = self.stage(self.server.keys(self.there))
        self.stage(self.server.masked(self.stage(self.server.shares(keys))))

    def mean(self) -> tuple[torch.Tensor, ...]:
        self.send()
        answers = self.stage(self.server.open(self.masked))
        total = self.server.total({name: flat(body) for name, body in self.masked.items()}, answers)
        body = reply("any")
        return as_mean(total, [tuple(array.shape) for array in body], [array.dtype for array in body])


def assert_mean_of(mean: tuple[torch.Tensor, ...], names: list[str]) -> None:
    whole = sum(weight(name) for name in names)
    for part, array in enumerate(mean):
        expected = sum(reply(name)[part].double() * weight(name) for name in names) / whole
        assert array.dtype == reply("any")[part].dtype
        assert torch.allclose(array.double(), expected, atol=1e-7)


# ---- the sum


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        ({}, SITES),
        ({"keys": ["cedar"]}, ["amber", "birch", "dune", "elm"]),
        ({"shares": ["amber"]}, ["birch", "cedar", "dune", "elm"]),
        ({"masked": ["elm", "birch"]}, ["amber", "cedar", "dune"]),  # their keys are opened
        ({"open": ["amber", "dune"]}, SITES),  # they have sent, and others give the shares of their masks
        ({"shares": ["amber"], "masked": ["dune"], "open": []}, ["birch", "cedar", "elm"]),
    ],
    ids=str,
)
def test_the_mean_is_that_of_those_who_sent(tmp_path, lost, left):
    assert_mean_of(Sum(tmp_path, **lost).mean(), left)


def test_a_site_shares_masks_with_its_neighbors_alone(tmp_path, monkeypatch):
    """SecAgg+: on a ring, so that work does not grow with the number of sites."""
    monkeypatch.setattr(secure, "NEIGHBORS", 6)
    names = [f"site-{i:02d}" for i in range(12)]
    sum_ = Sum(tmp_path, names, masked=["site-03"], open=["site-07"])
    assert_mean_of(sum_.mean(), [name for name in names if name != "site-03"])
    asked = sum_.server.shares({name: Secure("keys", TOKEN, [], [], [b"1", b"2"], []) for name in names})
    assert {len(one.names) for one in asked.values()} == {7}


def test_too_few_shares_open_nothing(tmp_path):
    with pytest.raises(Malformed, match=r"2 sites gave their share of .*'s secret; 3 are needed"):
        Sum(tmp_path, open=["amber", "birch", "cedar"]).mean()


def test_a_masked_reply_says_nothing(tmp_path):
    """Its bits are those of a random number, and other ones in each sum, though the reply is the same."""
    once, again = Sum(tmp_path / "1"), Sum(tmp_path / "2")
    for one in (once, again):
        one.send()
    first, second = flat(once.masked["elm"]), flat(again.masked["elm"])
    plain = secure.as_whole(reply("elm"), weight("elm"), len(SITES))
    assert not set(first) & set(second)
    assert not set(first) & set(plain)
    mask = secure.stream(b"secret", TOKEN, 20_000)
    bits = np.unpackbits(mask.view(np.uint8)).reshape(-1, 64).mean(0)
    assert bits.min() > 0.45
    assert bits.max() < 0.55


def test_what_cannot_be_summed_is_refused():
    with pytest.raises(Malformed, match="others"):
        secure.as_whole([torch.tensor([1, 2])], 1, 3)
    for bad in (1e30, float("nan"), float("inf")):
        with pytest.raises(Malformed, match="would overflow"):
            secure.as_whole([torch.tensor([bad])], 1, 3)


# ---- what a site gives away


def test_asked_again_a_site_answers_the_same(tmp_path):
    sum_ = Sum(tmp_path)
    keys = sum_.stage(sum_.server.keys(SITES))
    assert sum_.stage(sum_.server.keys(SITES)) == keys
    shares = sum_.stage(sum_.server.shares(keys))
    assert sum_.stage(sum_.server.shares(keys)) == shares
    wanted = sum_.server.masked(shares)
    sum_.stage(wanted)
    before = {name: flat(body) for name, body in sum_.masked.items()}
    sum_.stage(wanted)
    assert all((flat(sum_.masked[name]) == body).all() for name, body in before.items())


def test_a_site_opens_one_sum_of_a_round(tmp_path):
    """Of two sums, with a site and without it, the difference is its reply."""
    Sum(tmp_path).mean()
    with pytest.raises(Malformed, match=secure.OVER):
        Sum(tmp_path, token="another").mean()
    assert_mean_of(Sum(tmp_path, token="next", round=2).mean(), SITES)
    with pytest.raises(Malformed, match="round 1 is over"):
        Sum(tmp_path, token="old").mean()


def test_a_sum_that_was_not_opened_can_be_begun_again(tmp_path):
    Sum(tmp_path).send()
    assert_mean_of(Sum(tmp_path, token="another").mean(), SITES)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda asked: asked._replace(names=[*asked.names, "elm"], gone=["elm"]), "not the sites of this sum"),
        (lambda asked: asked._replace(names=asked.names[:-1], gone=[]), "not the sites of this sum"),
        (lambda asked: asked._replace(names=asked.names[:2], gone=asked.names[2:]), "is not opened"),
        (lambda asked: asked._replace(names=asked.names[1:], gone=asked.names[:1]), "is not opened"),
    ],
)
def test_a_site_gives_no_shares_for_another_sum(tmp_path, change, why):
    sum_ = Sum(tmp_path)
    sum_.send()
    asked = sum_.server.open(sum_.masked)["amber"]
    with pytest.raises(Malformed, match=why):
        sum_.answer("amber", change(asked))
    sum_.answer("amber", asked)
    other = asked._replace(names=[name for name in asked.names if name != "elm"], gone=["elm"])
    with pytest.raises(Malformed, match="in another way"):  # never both the mask and the key of a site
        sum_.answer("amber", other)


def test_keys_and_shares_that_are_not_what_they_should_be_are_refused(tmp_path):
    sum_ = Sum(tmp_path)
    keys = sum_.stage(sum_.server.keys(SITES))
    wanted = sum_.server.shares(keys)["amber"]
    for bad, why in (
        (wanted._replace(first=[wanted.first[0]] * 5), "not each site's own"),
        (wanted._replace(names=["amber", "birch"], first=wanted.first[:2], second=wanted.second[:2]), "own|needed"),
    ):
        with pytest.raises(Malformed, match=why):
            sum_.answer("amber", bad)
    with pytest.raises(Malformed, match="comes after the others"):
        sum_.answer("amber", wanted._replace(stage="masked"))
    shares = sum_.stage(sum_.server.shares(keys))
    asked = sum_.server.masked(shares)["amber"]
    for bad, why in (
        (asked._replace(first=[b"no text"] * len(asked.first)), "cannot be decrypted"),
        (asked._replace(first=asked.first[::-1]), "cannot be decrypted"),
        (asked._replace(names=asked.names[:1], first=asked.first[:1]), "too few to hide"),
        (asked._replace(names=["stranger"], first=[b""]), "not in this sum"),
    ):
        with pytest.raises(Malformed, match=why):
            sum_.answer("amber", bad)


def test_data_that_changed_is_not_masked_alike_again(tmp_path):
    """The difference of the two masked replies would be that of the replies."""
    sum_ = Sum(tmp_path)
    keys = sum_.stage(sum_.server.keys(SITES))
    asked = sum_.server.masked(sum_.stage(sum_.server.shares(keys)))["amber"]
    sum_.answer("amber", asked)
    site = sum_.site("amber", asked)
    site.accept()
    with pytest.raises(Malformed, match="has changed since"):
        site.masked(reply("other"), weight("amber"))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stage": "steal"},
        {"names": [1]},
        {"first": ["text"]},
        {"first": [b"x" * (secure.LONGEST + 1)]},
        {"more": 1},
    ],
    ids=str,
)
def test_a_malformed_stage_is_refused(fields):
    usual = secure.encode(Secure("keys", TOKEN, ["a"], [], [b"1"], []))
    record = codec.ConfigRecord({**usual, **fields}) if fields else codec.ConfigRecord()
    with pytest.raises(Malformed):
        secure.decode(codec.RecordDict({"secure": record}))


# ---- over the wire


class World:
    """Five sites on a grid in memory."""

    def __init__(self, tmp: Path, fault: Any = None, site: dict[str, Any] | None = None, **config: Any) -> None:
        rng = np.random.default_rng(0)
        self.out = tmp / "out"
        self.data = tmp / "data"
        self.data.mkdir(exist_ok=True)
        for part, name in enumerate(SITES):
            x = rng.normal(size=(40 + 10 * part, 6)).astype(np.float32)
            np.savez(self.data / f"{name}.npz", x=x, y=(x[:, 0] > 0) * 1 + (x[:, part % 2] > 0.5) * 1)
        self.config = {
            "method.name": "fedavg", "run.rounds": 2, "run.evaluate_every": 0, "run.clients": " ".join(SITES),
            "run.out": str(self.out), "run.time_limit": 30, "run.wait": 1, "run.secure": True,
            **{key.replace("__", "."): value for key, value in config.items()},
        }  # fmt: skip
        self.grid = Memory(self.config, fault)
        self.node = {}
        for name in SITES:
            own = {"name": name, "data": str(self.data / f"{name}.npz"), "state": str(tmp / name)}
            self.node[self.grid.join({**own, **(site or {})})] = name

    def serve(self) -> Any:
        return server.serve(self.grid, read(self.config))


def lost(name: str, stage: str, *rounds: int) -> Any:
    """A fault: this site does not answer this stage in these rounds."""

    def fault(grid: Memory, node: int, message: Any) -> Any:
        asked = secure.decode(message.content) if "secure" in message.content else None
        if asked is not None and asked.stage == stage and grid.homes[node]["name"] in name.split():
            return "lost" if message.content["fields"]["round"] in rounds else None
        return None

    return fault


def test_a_run_gives_the_same_model_and_the_server_sees_no_reply(tmp_path, monkeypatch):
    seen = []
    decode = server.decode_answer

    def noted(*arguments):
        made = decode(*arguments)
        seen.append(made[1])
        return made

    monkeypatch.setattr(server, "decode_answer", noted)
    world = World(tmp_path)
    run = world.serve()
    plain = fedkin.run(
        "fedavg", fedkin.federate(fedkin.from_folder(world.data), partition="by_group"), rounds=2, evaluate_every=0
    )
    assert torch.allclose(run.state["model"], plain.state["model"], atol=1e-6)
    assert torch.allclose(run.state["share"], plain.state["share"])
    arrays = [array for body in seen for array in body]
    assert len(arrays) == 2 * 5 * 2, "in two rounds, from five sites, a masked model and a masked weight"
    assert all(array.dtype is torch.int64 for array in arrays)
    assert run.config["federation"]["secure"] is True
    (secrets,) = (tmp_path / "elm").rglob("secure.json")
    assert secrets.stat().st_mode & 0o077 == 0, "nobody else may read a site's keys"


def test_a_site_that_is_lost_is_missing_from_the_mean(tmp_path):
    run = World(tmp_path, lost("elm", "masked", 1), run__rounds=1).serve()
    assert run.state["share"][SITES.index("elm")] == 0
    assert int((run.state["share"] > 0).sum()) == 4
    (dropped,) = [r for r in History.load(tmp_path / "out").select("dropped")]
    assert dropped.client == SITES.index("elm")
    assert "did not answer" in dropped.value


def test_a_round_with_too_few_sites_has_no_effect(tmp_path, capsys):
    run = World(tmp_path, lost("amber birch cedar", "masked", 1)).serve()
    assert [r.round for r in History.load(tmp_path / "out").select("lost_round")] == [1]
    assert "round 1: no secure sum: 2 sites sent their part; at least 3 are needed" in capsys.readouterr().out
    assert int((run.state["share"] > 0).sum()) == 5


def test_a_server_that_was_stopped_after_a_sum_was_opened_goes_on(tmp_path, monkeypatch):
    """The sites open no other sum of that round, so it is lost; the next one is not."""

    class Stop(Exception):
        pass

    def stop(*_: Any) -> Any:
        raise Stop

    world = World(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(server, "as_mean", stop)
        with pytest.raises(Stop):
            world.serve()
    run = world.serve()
    assert [r.round for r in History.load(tmp_path / "out").select("lost_round")] == [1]
    assert int((run.state["share"] > 0).sum()) == 5


def test_a_site_may_insist_on_it(tmp_path):
    from fedkin.engine.runner import ClientError

    with pytest.raises(ClientError, match="under secure aggregation only"):
        World(tmp_path, site={"secure": True}, run__secure=False).serve()


# ---- which methods


@pytest.mark.parametrize(
    "name", ["fedcedar", "pflic", "pfedgat", "dcpfl", "kin", "ifca", "fedamp", "fedprox,sampling=size"]
)
def test_a_method_that_must_see_single_replies_is_refused(name):
    config = {"method.name": name, "run.clients": "a b c", "run.out": "/nowhere", "run.secure": True}
    with pytest.raises(ValueError, match="must see every client's reply by itself"):
        read(config)


def test_a_method_that_changes_the_merge_of_another_is_refused():
    @dataclass(frozen=True)
    class Mine(FedAvg):
        def merge(self, state, sent, replies):
            return {**state, "model": replies.body[0].median(0).values}

    with pytest.raises(ValueError, match="Mine"):
        secure.refuse(Mine())
    secure.refuse(FedAvg())


@pytest.mark.parametrize(
    ("change", "why"),
    [({"run.defend": "krum"}, "judges single replies"), ({"run.clients": "a b"}, "needs at least 3 clients")],
)
def test_what_does_not_go_together_is_refused(change, why):
    config = {"method.name": "fedavg", "run.clients": "a b c", "run.out": "/nowhere", "run.secure": True, **change}
    with pytest.raises(ValueError, match=why):
        read(config)


class Averaging(Serial):
    """Every reply is the mean of all."""

    def run(self, work, message):
        outcomes = super().run(work, message)
        if not outcomes[0].body:
            return outcomes
        sizes = self._runner.spec.federation.sizes
        by_size = self._runner.spec.method.averages == "size"
        n = torch.tensor([float(sizes[o.client]) if by_size else 1.0 for o in outcomes], dtype=torch.float64)
        parts = zip(*(o.body for o in outcomes))
        mean = tuple(
            torch.tensordot(n / n.sum(), torch.stack(part).double(), dims=1).to(part[0].dtype) for part in parts
        )
        return [o._replace(body=mean) for o in outcomes]


AVERAGES = [name for name in METHODS if method(name).averages]


@pytest.mark.parametrize("name", AVERAGES)
def test_a_method_that_says_so_needs_the_mean_alone(name):
    """Else the sum would silently be used for what it is not."""
    secure.refuse(method(name))
    federation = fedkin.federate("digits", clients=3, samples_per_client=30)
    settings: dict[str, Any] = {"rounds": 2, "evaluate_every": 0, "save_models": False, "curves": False}
    plain = fedkin.run(name, federation, engine="serial", **settings)
    mean = fedkin.run(name, federation, connect=lambda spec, checkpoint: Averaging(spec), **settings)
    assert plain.state.keys() == mean.state.keys()
    for key, value in plain.state.items():
        if isinstance(value, torch.Tensor):
            assert torch.allclose(value.double(), mean.state[key].double(), atol=1e-5), key
        else:
            assert value == mean.state[key], key
