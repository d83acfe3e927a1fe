"""A run that is kept can be used: the same model, the same numbers, newcomers, export; for every method."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedkin
from fedkin.data.federation import Federation, federate
from fedkin.data.table import DataWarning
from fedkin.methods import METHODS
from fedkin.results.run import Run


@cache
def federation() -> Federation:
    return federate("digits", partition="dirichlet", clients=5, alpha=0.5, seed=3, samples_per_client=60)


@cache
def newcomer() -> tuple[torch.Tensor, torch.Tensor]:
    other = federate("digits", partition="dirichlet", clients=5, alpha=0.5, seed=9, samples_per_client=60)
    return other.data(0).x, other.data(0).y


def trained(name: str, out: Path | None = None) -> Run:
    return fedkin.run(name, federation(), rounds=3, epochs=1, lr=0.1, engine="serial", out=out, model="mlp")


@pytest.mark.parametrize("name", METHODS)
def test_a_model_gives_what_was_measured(name, tmp_path):
    run = trained(name, tmp_path / "run")
    loaded = fedkin.load(tmp_path / "run")
    measured = run.history.values("personal", round=3)
    for client in (0, 4):
        test = federation().test(client)
        for which in (run, loaded):
            assert which.evaluate(client, test.x, test.y)["accuracy"] == pytest.approx(measured[client])
    personal = run.model(0).personal
    assert bool(run.method.model_holds) == (isinstance(personal, dict) and "features" in personal)
    again = loaded.predict_scores(run.clients[0], federation().test(0).x)
    np.testing.assert_array_equal(again, run.predict_scores(run.clients[0], federation().test(0).x))


def test_a_table_for_a_run_on_images_is_refused_in_a_sentence(tmp_path):
    run = trained("fedavg")
    (tmp_path / "new.csv").write_text("age,sex\n40,f\n")
    for x in (str(tmp_path / "new.csv"), np.array([["40", "f"]])):
        with pytest.raises(ValueError, match=r"learned from arrays, not from a table .* \[examples, 1, 8, 8\]"):
            run.predict(0, x)


@pytest.mark.parametrize(
    ("name", "holds"), [("knnper", True), ("knnper,capacity=0", False), ("kin", True), ("fedavg", False)]
)
def test_models_that_hold_examples_are_named_when_they_are_written(name, holds, tmp_path, capsys):
    run = trained(name, tmp_path / "run")
    said = "hold features and labels of training examples: treat these files like the examples themselves."
    assert (f"{tmp_path / 'run' / 'models'} {said}" in capsys.readouterr().err) == holds
    run.keep(run.join("east", *newcomer()), tmp_path / "east")
    assert (f"{tmp_path / 'east' / 'models'} {said}" in capsys.readouterr().err) == holds
    trained(name)
    assert said not in capsys.readouterr().err, "nothing was written"


def test_runs_inside_a_folder_are_named(tmp_path):
    trained("fedavg", tmp_path / "both" / "fedavg" / "seed-0")
    for folder in ("both", "both/fedavg"):
        with pytest.raises(ValueError, match=r"give one of them: .*both/fedavg/seed-0"):
            fedkin.load(tmp_path / folder)


@pytest.mark.parametrize("name", METHODS)
def test_a_newcomer_gets_a_model_and_the_run_stays_as_it_is(name):
    run = trained(name)
    before = {client: run.predict_scores(client, federation().test(0).x) for client in run.clients}
    x, y = newcomer()
    joined = run.join("east", x, y)
    assert joined.examples == round(0.2 * len(y))
    assert 0 <= joined.expected["accuracy"] <= 1
    with torch.no_grad():
        scores = joined.model(x)
    assert scores.shape == (len(y), 10)
    assert bool(torch.isfinite(scores).all())
    for client, was in before.items():
        np.testing.assert_array_equal(run.predict_scores(client, federation().test(0).x), was)


def test_a_newcomer_is_better_off_than_with_the_initial_model():
    run = fedkin.run("fedavg-ft", federation(), rounds=8, epochs=2, lr=0.1, engine="serial", model="mlp")
    x, y = newcomer()
    initial = fedkin.run("fedavg-ft", federation(), rounds=1, epochs=1, lr=1e-6, engine="serial", model="mlp")
    assert run.join("east", x, y).expected["accuracy"] > initial.join("east", x, y).expected["accuracy"] + 0.2


def test_the_model_of_a_newcomer_never_takes_the_place_of_a_run(tmp_path):
    run = trained("fedavg-ft", tmp_path / "run")
    joined = run.join("east", *newcomer())
    with pytest.raises(ValueError, match="run holds a run: name another folder for the model of east"):
        run.keep(joined, tmp_path / "run")
    assert fedkin.load(tmp_path / "run").clients == run.clients
    run.keep(joined, tmp_path / "east")
    run.keep(joined, tmp_path / "east")  # the same model again
    x, y = newcomer()
    other = run.join("east", x[:-5], y[:-5])
    before = {path.name: path.read_bytes() for path in (tmp_path / "east").rglob("*.*")}
    with pytest.raises(ValueError, match=r"east holds an earlier model of east, which stays.*--fresh"):
        run.keep(other, tmp_path / "east")
    assert {path.name: path.read_bytes() for path in (tmp_path / "east").rglob("*.*")} == before, "nothing is lost"
    run.keep(other, tmp_path / "east", fresh=True)
    assert torch.equal(fedkin.load(tmp_path / "east").model("east")(x), other.model(x))
    with pytest.raises(ValueError, match="east holds another newcomer's model"):
        run.keep(replace(joined, name="west"), tmp_path / "east")
    unknown = replace(joined, expected={"accuracy": float("nan")})
    stored = json.loads((run.keep(unknown, tmp_path / "unknown") / "config.json").read_text())
    assert stored["joined"] == {"accuracy": None}
    assert "None" in fedkin.load(tmp_path / "unknown")._repr_html_()


def test_a_newcomer_with_the_name_of_a_client_is_pointed_out(tmp_path):
    run = trained("fedavg", tmp_path / "run")
    with pytest.warns(DataWarning, match="client 1 is already a client of this run. Its model there stays as it is"):
        run.join("client 1", *newcomer())


def test_export_names_the_method_and_what_can_be_exported(tmp_path):
    settings = {"rounds": 1, "engine": "serial", "model": "mlp"}
    fedkin.compare(["kin-lite", "fedper", "local"], federation(), out=tmp_path / "c", **settings)
    run = fedkin.load(tmp_path / "c" / "kin-lite" / "seed-0")
    with pytest.raises(ValueError, match="A personal model of kin-lite is not one network") as refused:
        run.export("client 0", tmp_path / "x.pt2")
    for name in ("fedper", "local"):
        folder = tmp_path / "c" / name / "seed-0"
        assert str(folder) in str(refused.value)
        assert fedkin.load(folder).export("client 0", tmp_path / f"{name}.pt2").exists()
    assert not (tmp_path / "x.pt2").exists()
    alone = fedkin.run("kin-lite", federation(), **settings)
    with pytest.raises(ValueError, match="such as fedavg-ft, fedper or ditto"):
        alone.export("client 0", tmp_path / "x.pt2")
    for name in ("fedavg-ft", "ditto"):
        assert fedkin.run(name, federation(), **settings).export("client 0", tmp_path / f"{name}.pt2").exists()


def test_a_run_without_a_folder_has_its_models_too():
    run = trained("fedavg")
    assert run.folder is None
    assert run.predict("client 1", federation().test(1).x).shape == (len(federation().test(1).y),)
    chances = run.predict_proba(1, federation().test(1).x)
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-5)
    with pytest.raises(ValueError, match="run it with out=FOLDER"):
        run.report()


def test_what_is_wrong_is_said(tmp_path):
    run = trained("fedavg")
    with pytest.raises(ValueError, match=r"no client 'north' in this run; its clients are client 0, client 1"):
        run.model("north")
    with pytest.raises(ValueError, match=r"Examples of this run have shape \[1, 8, 8\]; these have \[7\]"):
        run.predict(0, np.zeros((3, 7), np.float32))
    with pytest.raises(ValueError, match=r"not the folder of a finished run: it has no config.json"):
        fedkin.load(tmp_path)
    (tmp_path / "compared" / "fedavg" / "seed-0").mkdir(parents=True)
    (tmp_path / "compared" / "fedavg" / "seed-0" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"give one of them: .*fedavg.seed-0\."):
        fedkin.load(tmp_path / "compared")
    with pytest.raises(ValueError, match="This run learned from arrays, not from a table"):
        run.predict(0, tmp_path / "new.csv")
    with pytest.raises(ValueError, match=r"ends in .onnx or .pt2"):
        run.export(0, tmp_path / "north.txt")
    with pytest.raises(ValueError, match=r"a newcomer needs at least 2"):
        run.join("east", *(part[:1] for part in newcomer()))
    quiet = fedkin.run("fedavg", federation(), rounds=1, engine="serial", model="mlp", save_models=False)
    with pytest.raises(ValueError, match="kept no personal models"):
        quiet.model(0)


def test_damage_is_said(tmp_path):
    trained("fedavg", tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text("{")
    with pytest.raises(ValueError, match=r"summary.json is damaged"):
        fedkin.load(tmp_path / "run")


@pytest.mark.processes
def test_in_a_fresh_process(tmp_path):
    run = trained("knnper", tmp_path / "run")
    x = federation().test(2).x
    np.save(tmp_path / "x.npy", x.numpy())
    code = (
        "import fedkin, numpy, sys, json\n"
        f"run = fedkin.load({str(tmp_path / 'run')!r})\n"
        f"x = numpy.load({str(tmp_path / 'x.npy')!r})\n"
        "print(json.dumps(run.predict('client 2', x).tolist()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == run.predict("client 2", x).tolist()


@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_export_gives_the_same_numbers(suffix, tmp_path):
    x = federation().test(0).x
    run = trained("fedper")
    path = run.export(0, tmp_path / f"north.{suffix}")
    expected = run.predict_scores(0, x).numpy()
    if suffix == "pt2":
        found = torch.export.load(path).module()(x).detach().numpy()
    else:
        runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
        session = runtime.InferenceSession(path.read_bytes())
        found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["knnper", "fedrod"])
def test_what_is_not_one_network_is_not_exported(name, tmp_path):
    with pytest.raises(ValueError, match=r"is not one network"):
        trained(name).export(0, tmp_path / "model.onnx")


class Small(nn.Module):
    def __init__(self, shape=(1, 8, 8), classes=10):
        super().__init__()
        self.layer = nn.Linear(64, classes)

    def forward(self, x):
        return self.layer(x.flatten(1))


def test_a_model_of_ones_own_is_found_again(tmp_path):
    run = fedkin.run("fedavg", federation(), rounds=1, engine="serial", model=Small, out=tmp_path / "run")
    loaded = fedkin.load(tmp_path / "run")
    x = federation().test(0).x
    np.testing.assert_array_equal(loaded.predict_scores(0, x), run.predict_scores(0, x))


def test_one_that_cannot_be_found_can_be_given(tmp_path):
    def hidden(shape, classes):
        return Small(shape, classes)

    run = fedkin.run("fedavg", federation(), rounds=1, engine="serial", model=hidden, out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"cannot be imported .* give it with load\(folder, model=…\)"):
        fedkin.load(tmp_path / "run")
    loaded = fedkin.load(tmp_path / "run", model=hidden)
    x = federation().test(0).x
    np.testing.assert_array_equal(loaded.predict_scores(0, x), run.predict_scores(0, x))
