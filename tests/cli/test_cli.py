"""The command line, as a user types it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import pytest

import fedkin
from fedkin.cli.main import NAMES
from fedkin.conformance import PROPERTIES
from tests.cli.conftest import SMALL

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("words", [["--help"], ["list"], ["list", "methods"]])
def test_help_and_lists_import_nothing_heavy_and_so_are_quick(words):
    command = [sys.executable, "-X", "importtime", "-m", "fedkin", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "fedkin" in imported
    assert not imported & {"torch", "scipy", "sklearn", "matplotlib", "pandas", "ray", "flwr", "tyro", "pooch"}


def test_run_prints_a_table(call):
    code, out, _ = call("run", "fedprox", "--mu", "0.5", *SMALL)
    assert code == 0
    for word in ("fedprox", "personal", "received", "worst 10 %", "5 clients, 2 rounds", "KLD", "simulated time"):
        assert word in out


def test_run_prints_json_and_nothing_else(call, tmp_path):
    code, out, err = call("run", "fedavg", "--json", "--out", str(tmp_path), *SMALL)
    assert code == 0
    assert err == ""
    summary = json.loads(out)
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert summary["method"] == "fedavg"


def test_flags_reach_method_partition_data_and_model(call, tmp_path):
    code, _, _ = call(
        "run", "fedprox", "--mu", "0.25", "--sampling", "size", "--data", "synthetic", "--data.groups", "2",
        "--data.samples", "600", "--partition", "dirichlet", "--partition.alpha", "3", "--model", "fcnn1",
        "--model.width", "0.1", "--lr", "0.2", "--momentum", "0.9", "--out", str(tmp_path), *SMALL,
    )  # fmt: skip
    assert code == 0
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["method"]["mu"] == 0.25
    assert config["method"]["sampling"] == "size"
    assert config["federation"]["data_options"]["groups"] == 2
    assert config["federation"]["partition_options"]["alpha"] == 3
    assert config["model"]["name"] == "fcnn1"
    assert config["model"]["options"] == {"width": 0.1}
    assert config["training"]["lr"] == 0.2
    assert config["training"]["momentum"] == 0.9


def test_help_of_a_method_names_its_flags(call):
    code, out, _ = call("run", "fedprox", "--partition", "dirichlet", "--help")
    assert code == 0
    for flag in ("--mu", "--stragglers", "--partition.alpha", "--lr", "--rounds", "--model.width"):
        assert flag in out


def test_compare(call, tmp_path):
    names = ["local", "fedavg", "fedprox,mu=1"]
    code, out, _ = call("compare", *names, "--seeds", "2", "--out", str(tmp_path), *SMALL)
    assert code == 0
    for word in (*names, "gain over local", "±"):
        assert word in out
    made = json.loads((tmp_path / "comparison.json").read_text())
    assert [line["method"] for line in made["methods"]] == names
    assert made["methods"][0]["gain"] is None
    assert made["methods"][1]["gaining"] + made["methods"][1]["losing"] <= 10
    assert (tmp_path / "fedprox,mu=1" / "seed-1" / "summary.json").exists()
    assert "| fedprox,mu=1 |" in (tmp_path / "comparison.md").read_text()


def test_compare_gain_is_the_mean_difference_of_clients(tmp_path):
    import numpy as np

    import fedkin

    fed = fedkin.federate("digits", clients=6, samples_per_client=60)
    made = fedkin.compare(["local", "fedavg-ft"], fed, rounds=2, lr=0.1, out=tmp_path)
    last = {
        name: fedkin.History.load(tmp_path / name / "seed-0").values("personal", round=2)
        for name in ("local", "fedavg-ft")
    }
    difference = np.array([last["fedavg-ft"][c] - last["local"][c] for c in range(6)])
    line = made.lines[1]
    assert line.gain == pytest.approx(difference.mean())
    assert (line.gaining, line.losing) == ((difference > 0).sum(), (difference < 0).sum())
    assert 0 <= line.p_value <= 1


def test_training_settings_after_a_name_hold_for_this_method_only(call, tmp_path):
    words = ["local,lr=0.2", "fedavg,lr=0.1,batch-size=8", "fedavg-ft", *SMALL, "--lr", "0.03", "--out", tmp_path]
    code, out, err = call("compare", *words)
    assert code == 0, err
    for folder, lr, batch in (
        ("local,lr=0.2", 0.2, 16),
        ("fedavg,lr=0.1,batch-size=8", 0.1, 8),
        ("fedavg-ft", 0.03, 16),
    ):
        config = json.loads((tmp_path / folder / "seed-0" / "config.json").read_text())
        assert (config["training"]["lr"], config["training"]["batch_size"]) == (lr, batch)
    text = " ".join(out.split())
    assert "lr 0.03, epochs 1, batch 16, seeds 1; local with lr 0.2; fedavg with lr 0.1, batch size 8" in text
    made = json.loads((tmp_path / "comparison.json").read_text())
    assert made["methods"][0]["gain"] is None, "training alone at its own rate is what gains are measured against"
    assert all(line["gain"] is not None for line in made["methods"][1:])
    alone = ["run", "fedavg,lr=0.1,batch-size=8", *SMALL, "--lr", "0.2", "--out", tmp_path / "alone"]
    assert call(*alone)[0] == 0
    config = json.loads((tmp_path / "alone" / "config.json").read_text())
    assert (config["training"]["lr"], config["training"]["batch_size"]) == (0.2, 8), "a flag overrides the name"


def test_clients_of_all_seeds_count_if_the_seeds_draw_their_own(call, tmp_path):
    words = ["local", "fedavg", *SMALL, "--seeds", "3", "--out", tmp_path]
    code, out, err = call("compare", *words)
    assert code == 0, err
    line = json.loads((tmp_path / "comparison.json").read_text())["methods"][1]
    difference = []
    for seed in range(3):
        one, other = (
            fedkin.History.load(tmp_path / m / f"seed-{seed}").values("personal", round=2) for m in ("fedavg", "local")
        )
        difference += [one[c] - other[c] for c in range(5)]
    assert line["gain"] == pytest.approx(sum(difference) / 15)
    assert line["gaining"] == sum(d > 0 for d in difference)
    assert line["losing"] == sum(d < 0 for d in difference)
    assert line["gaining"] + line["losing"] > 5
    assert "No interval of the gain: the seeds have different clients" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "local,lr=fast"], "lr of local must be a number; it is 'fast'."),
        (["compare", "local,lr=-1"], "lr=-1.0 must be above 0."),
        (["run", "ditto,lrr=1"], "ditto has no field 'lrr'."),
        (["fly"], "There is no command 'fly'"),
        (["run", "fedavgg"], "Did you mean fedavg"),
        (["run", "fedavg", "fedprox"], "fedkin compare"),
        (["run", "fedavg", "--data", "digitz"], "Did you mean digits"),
        (
            ["run", "fedavg", "--data", "nowhere/hospitals"],
            "There is no folder nowhere/hospitals: --data takes",
        ),
        (["verify", "fedavgg"], "There is no method 'fedavgg'. Did you mean fedavg, perfedavg or lg-fedavg?"),
        (["run", "fedavg", "--partition", "dirichle"], "Did you mean dirichlet"),
        (["run", "fedavg", "--model", "cnn9"], "There is no model 'cnn9'"),
        (["run", "fedavg", "--model", "har"], "har needs windows"),
        (["run", "fedavg", "--rounds", "0"], "rounds=0 must be at least 1"),
        (["run", "fedavg", "--participation", "2"], "participation=2.0 must lie in (0, 1]"),
        (["run", "fedavg", "--clients", "5000"], "use at most"),
        (["run", "fedavg", "--lr", "-1"], "lr=-1.0 must be above 0"),
        (["run", "fedprox", "--mu", "-1"], "mu=-1.0 must be at least 0"),
        (["compare", "local", "local"], "named twice"),
        (["compare", "fedprox,mu"], "field=value"),
        (["compare", "local", "fedprox,muu=1"], "fedprox has no field 'muu'. Did you mean mu? It has mu, stragglers"),
        (["compare", "local,mu=1"], "local has no field 'mu'. It has everyone."),
        (["list", "birds"], "There is no list of 'birds'"),
        (["run", "nowhere.py:Mine"], "There is no file nowhere.py"),
        (["run", "nowhere.mine:Mine"], "No module named 'nowhere'"),
        (["run", "fedprox", "--muu", "1"], "fedkin run fedprox has no flag --muu. Did you mean --mu?"),
        (["run", "fedprox", "--muu=1"], "fedkin run fedprox has no flag --muu. Did you mean --mu?"),
        (["run", "fedprox", "--alpha", "1"], "has no flag --alpha. Did you mean --partition.alpha?"),
        (["run", "fedprox", "--normalise", "sum"], "fedkin run fedprox has no flag --normalise."),
        (["run", "fedcedar", "--normalise", "sum"], "has no flag --normalise. It is now called --normalize."),
        (["run", "fedcedar,normalise=sum"], "has no field 'normalise'. It is now called normalize."),
        (["run", "fedcedar", "--features", "centred"], "it is 'centred'. It is now called centered."),
        (["run", "fedcedar,features=centred"], "it is 'centred'. It is now called centered."),
        (["run", "clusterfl-kmeans,start=centre"], "it is 'centre'. It is now called center."),
        (["run", "fedprox", "--rounds", "many"], "--rounds must be a whole number; it is 'many'."),
        (["run", "fedprox", "--rounds"], "--rounds needs a value."),
        (["run", "fedprox", "--mu", "0.1", "0.2"], "'0.2' is not expected here"),
        (["run", "fedprox,mu=x"], "mu of fedprox must be a number; it is 'x'."),
        (["run", "fedprox,sampling=3"], "sampling of fedprox must be uniform or size; it is 3."),
        (["run", "fedavg", "--arrive", "1"], "--arrive takes pairs of numbers"),
        (["run", "--rounds", "3"], "run needs a METHOD before the flags"),
        (["compare"], "compare needs at least one METHOD"),
        (["compare", "local", "--rounds", "3", "fedavg"], "'fedavg' is not expected here"),
        (["compare", "local", "--seeds", "0"], "at least one seed"),
        (["compare", "local", "fedavg", "--name", "a"], "a label for each METHOD, 2 in all; given: 1"),
        (["compare", "fedavg", "fedprox", "--name", "a", "a"], "a label of its own"),
        (["compare", "fedprox", "fedavg", "--name", "local", "b"], "only the method 'local' can have the label"),
        (["cite", "fedavgg"], "Did you mean fedavg"),
        (["verfy"], "There is no command 'verfy'. Did you mean verify?"),
        (["bench", "fedavg"], "To choose methods: --methods fedavg"),
        (["demo", "fedavg"], "demo does not take 'fedavg'"),
    ],
)
def test_mistakes_are_explained_in_one_line(fails, words, said):
    assert said in fails(*words)


@pytest.mark.parametrize("label", ["src", "..", "local/..", "fedprox,muu=1", "fedprox,mu=-1", "fedprox,mu"])
def test_a_wrong_method_with_fresh_removes_nothing(call, monkeypatch, tmp_path, label):
    project = tmp_path / "project"
    for path in ("src/code.py", "local/mine.txt", "results/notes.txt", "fedprox,muu=1/mine.txt", "fedprox,mu=-1/m.txt"):
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(project)
    for out in (".", "results"):
        code, _, err = call("compare", "local", label, "--fresh", "--out", out, *SMALL)
        assert code == 2, err
        assert "Traceback" not in err
        assert sorted(tmp_path.rglob("*")) == before


def test_fresh_compares_again_and_leaves_what_is_not_its_own(call, tmp_path):
    words = ["compare", "local", "fedavg", "--out", str(tmp_path / "out"), *SMALL]
    assert call(*words)[0] == 0
    first = (tmp_path / "out/local/seed-0/history.jsonl").stat().st_mtime_ns
    (tmp_path / "out/local/seed-0/notes.txt").write_text("mine")
    (tmp_path / "out/mine.txt").write_text("mine")
    code, _, err = call(*words, "--fresh", "--lr", "0.2")
    assert code == 0, err
    assert (tmp_path / "out/local/seed-0/history.jsonl").stat().st_mtime_ns > first
    assert (tmp_path / "out/local/seed-0/notes.txt").read_text() == "mine"
    assert (tmp_path / "out/mine.txt").read_text() == "mine"


def test_own_data_folder(call, tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(40, 3)), y=rng.integers(0, 2, 40))
    out = tmp_path / "run"
    code, _, err = call("run", "local", "--data", str(tmp_path), "--rounds", "2", "--out", str(out), "--quiet")
    assert code == 0, err
    assert set(json.loads((out / "models" / "index.json").read_text())) == {"north", "south"}


def test_verify_prints_a_checklist(call):
    code, out, _ = call("verify", "local")
    assert code == 0
    assert out.count("✓") == len(PROPERTIES)
    assert "All properties hold." in out


def test_tensorboard(call, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    code, _, err = call("run", "fedavg", "--tensorboard", str(tmp_path), *SMALL)
    assert code == 0, err
    assert list(tmp_path.rglob("events.out.*"))


def test_a_tracker_that_is_not_installed_says_how_to_get_it(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    code, _, err = call("run", "fedavg", "--wandb", "project", *SMALL[:-1])
    assert code == 2
    assert "pip install 'fedkin[wandb]'" in err


def test_a_folder_that_cannot_be_written_is_explained(fails, tmp_path):
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in fails("run", "fedavg", "--out", tmp_path / "file" / "run", *SMALL)


def test_a_traceback_is_there_for_those_who_want_it(monkeypatch):
    from fedkin.cli import main

    monkeypatch.setenv("FEDKIN_TRACEBACK", "1")
    with pytest.raises(ValueError, match="no method 'fedavgg'"):
        main(["run", "fedavgg"])


def test_fields_may_follow_the_name_and_flags_win(call, tmp_path):
    code, out, _ = call("run", "fedprox,mu=0.5,stragglers=0", "--mu", "0.25", "--out", tmp_path, *SMALL)
    assert code == 0
    assert "fedprox,mu=0.5,stragglers=0" in out
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["method"] == {
        "class": "fedkin.methods.fedprox:FedProx",
        "mu": 0.25,
        "stragglers": 0.0,
        "sampling": "uniform",
    }


def test_a_run_says_where_its_results_are_or_how_to_keep_them(call, tmp_path):
    assert "add --out DIR" in call("run", "local", *SMALL)[1]
    assert f"fedkin report {tmp_path / 'a'}" in call("run", "local", "--out", tmp_path / "a", *SMALL)[1]
    assert "add --out DIR" in call("compare", "local", *SMALL)[1]
    assert f"fedkin report {tmp_path / 'b'}" in call("compare", "local", "--out", tmp_path / "b", *SMALL)[1]


def test_a_comparison_fits_80_columns_and_puts_the_best_first(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call("compare", "fedavg", "fedprox,mu=0.001,stragglers=0", "local", "--seeds", "2", *SMALL)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    rows = [line.split("│")[1:3] for line in out.splitlines() if line.startswith("│")]
    shown = [float(value.split("±")[0]) for _, value in rows]
    assert len(shown) == 3
    assert shown == sorted(shown, reverse=True)
    assert [name.strip().endswith("*") for name, _ in rows] == [value == shown[0] for value in shown]
    assert "Not shown: received %" in out
    wide = call("compare", "fedavg", "local", "--wide", *SMALL)[1]
    for column in ("received %", "std", "gain/lose", "bytes/round", "simulated"):
        assert column in wide.splitlines()[2]
    assert "Not shown" not in wide


def test_tables_name_the_headline_and_follow_its_direction(call, tmp_path):
    words = ["--metrics", "log_loss", "accuracy", "--wide", "--out", tmp_path]
    code, out, err = call("compare", "fedavg", "local", "--epochs", "3", "--lr", "0.2", *words, *SMALL)
    assert code == 0, err
    assert "personal: log_loss of the model" in out
    assert "lower is better" in out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    shown = [float(row[1]) for row in rows]
    assert shown == sorted(shown)
    assert rows[0][0].endswith("*")
    made = json.loads((tmp_path / "comparison.json").read_text())
    assert made["headline"] == {"metric": "log_loss", "higher_is_better": False, "percent": False}
    fedavg, local = made["methods"]
    assert fedavg["gain"] == pytest.approx(local["personal"] - fedavg["personal"])
    assert call("run", "local", "--metrics", "log_loss", *SMALL)[1].splitlines()[2].startswith("┃ log_loss ")
    assert call("run", "local", *SMALL)[1].splitlines()[2].startswith("┃ accuracy % ")


def test_columns_that_do_not_fit_are_left_out_by_importance():
    from fedkin.cli.terminal import fitting

    header, rows = ["name", "a", "b", "c"], [["x" * 10, "1", "22222222", "3"]]
    assert fitting(header, rows, ["name", "b", "a", "c"], 100)[0] == header
    assert fitting(header, rows, ["name", "b", "a", "c"], 29) == (["name", "a", "b"], [["x" * 10, "1", "22222222"]])
    assert fitting(header, rows, ["name", "b", "a", "c"], 24)[0] == ["name", "a", "c"]  # b is too wide, these are not
    assert fitting(header, rows, ["name", "b", "a", "c"], 5)[0] == ["name"]


def test_a_name_is_shown_in_tables_and_kept_for_figures(call, tmp_path):
    words = ["run", "fedprox", "--out", tmp_path / "run", *SMALL]
    call(*words)
    code, out, _ = call(*words, "--name", "Ours (μ = 0.1)")
    assert code == 0
    assert "Ours (μ = 0.1)" in out
    assert json.loads((tmp_path / "run" / "config.json").read_text())["label"] == "Ours (μ = 0.1)"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["method"] == "Ours (μ = 0.1)"
    call("report", tmp_path / "run")
    assert "li2020federated" in (tmp_path / "run" / "report.html").read_text(), "the paper is cited all the same"

    words = ["compare", "local", "fedprox,mu=1", "--name", "Alone", "Strong prox", "--out", tmp_path / "both", *SMALL]
    code, out, _ = call(*words)
    assert code == 0
    assert "Strong prox" in out
    made = json.loads((tmp_path / "both" / "comparison.json").read_text())["methods"]
    assert [line["method"] for line in made] == ["Alone", "Strong prox"]
    assert made[1]["gain"] is not None
    config = json.loads((tmp_path / "both" / "fedprox,mu=1" / "seed-0" / "config.json").read_text())
    assert config["label"] == "Strong prox"
    call("report", tmp_path / "both")
    assert '"reference":"Alone"' in (tmp_path / "both" / "report.html").read_text()


COMMANDS = ["--help", *NAMES, "run fedprox", "deploy init", "deploy keys"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_fits_80_columns(capsys, monkeypatch, command):
    from fedkin.cli import main

    if command.startswith("deploy"):
        pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("usage: fedkin")
    assert max(map(len, out.splitlines())) <= 80
    assert "None" not in out


def test_flags_are_grouped_and_every_one_is_explained(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = call("run", "fedprox", "--data", "synthetic", "--partition", "primary_secondary", "--help")
    headings = [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["method (fedprox):", "data:", "task:", "training:", "run:", "output:"]
    lines = out.splitlines()
    for i, line in enumerate(lines):
        if line.startswith("  --"):
            beside = line[2:].split("  ", 1)[1:]  # a long flag has a line of its own
            text = beside[0].strip() if beside else lines[i + 1].strip()
            assert text, f"{line} has no explanation"
            assert not text.startswith("--"), f"{line} has no explanation"
            assert text[0].isupper() or text.split(":")[0].islower(), text


def test_every_option_of_data_partitions_and_models_is_explained():
    from dataclasses import fields

    from fedkin.cli.flags import docstrings_of, options_of
    from fedkin.cli.settings import ABOUT
    from fedkin.data import DATASETS
    from fedkin.data.partition import PARTITIONS
    from fedkin.models import MODELS

    targets = [entry.load() for entry in (*DATASETS.values(), *MODELS.values())] + list(PARTITIONS.values())
    for target in targets:
        options = options_of(target)
        names = [f.name for f in fields(options)] if options is not None else []
        assert [n for n in names if not {**ABOUT, **docstrings_of(target)}.get(n)] == [], target


def test_the_flags_that_methods_may_not_use_are_those_of_run():
    from dataclasses import fields

    from fedkin.cli.run import NameFlag
    from fedkin.cli.settings import ConfigFlags, DataFlags, ModelFlags, OutputFlags, TaskFlags
    from fedkin.registry import RUN_FLAGS

    kinds = (DataFlags, ModelFlags, TaskFlags, ConfigFlags, OutputFlags, NameFlag)
    assert {f.name for kind in kinds for f in fields(kind)} == set(RUN_FLAGS)
