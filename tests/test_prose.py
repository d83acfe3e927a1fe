"""The commands and code of README and examples are run here: prose that nobody runs drifts. Pages: test_docs.py."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fedkin
from fedkin.cli import main
from fedkin.methods.fedavg import FedAvg

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip()
    for kind, text in BLOCKS
    if kind == "sh"
    for line in text.splitlines()
    if line.startswith("fedkin ")
]


def test_readme_has_what_is_tested():
    assert len(COMMANDS) >= 5
    assert any(kind == "python" for kind, _ in BLOCKS)
    assert "make demo" in README
    assert "make test" in README


@pytest.mark.processes
@pytest.mark.parametrize("command", COMMANDS)
def test_readme_command(command, tmp_path):
    if " deploy " in command:
        pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")
    maker = next(c for c in COMMANDS if "--out runs/first" in c)
    # a command that reads a run needs it first
    for line in dict.fromkeys([maker, command] if "runs/first" in command else [command]):
        words = [sys.executable, "-m", "fedkin", *shlex.split(line)[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_readme_counts_the_methods():
    from fedkin.methods import METHODS

    claimed = int(re.search(r"more than (\d+) such methods", README)[1])
    assert len({entry.target for entry in METHODS.values()}) > claimed


def test_readme_figure_needs_no_special_options(tmp_path):
    """The command below the figure sets no field of the method; the groups are found in the round that it says."""
    command = re.search(r"<!-- fedkin (run dcpfl --data .*) -->", README)[1]
    found_in = int(re.search(r"in round (\d+), \[DC-PFL\]", README)[1])
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(command), "--out", str(tmp_path / "run"), "--engine", "serial", "--quiet"])
    assert not ended.value.code
    index = {record.round: record.value for record in fedkin.load(tmp_path / "run").history.select("rand_index")}
    assert index[found_in - 1] < 1
    assert index[found_in] == 1


@pytest.mark.processes
def test_the_settings_file_of_the_page_can_be_used(tmp_path):
    text = (ROOT / "docs/command-line.md").read_text()
    (tmp_path / "run.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    words = [sys.executable, "-m", "fedkin", "run", "--config", "run.toml", "--out", "run"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["method"]["mu"] == 0.5
    assert config["federation"]["partition_options"]["alpha"] == 0.2
    assert config["training"]["epochs"] == 2


def test_what_predict_receives_as_the_page_says():
    """docs/extending.md: eval mode, no gradients, at most 128 examples, the received vector and the personal model."""
    seen: list[tuple[str, bool, bool, int]] = []

    @dataclass(frozen=True)
    class Looks(FedAvg):
        def personal(self, client, message, trained):
            return {"own": trained().body[0]}

        def predict(self, client, model, x):
            kind = "vector" if isinstance(model, torch.Tensor) else "personal"
            seen.append((kind, client.net.module.training, torch.is_grad_enabled(), len(x)))
            return super().predict(client, model if kind == "vector" else model["own"], x)

    clients = fedkin.federate("digits", clients=2, test=0.5, validation=0.0)
    assert min(len(split.test) for split in clients.splits) > 128
    assert all(len(clients.data(c).validation.y) == 0 for c in range(2)), "validation may be empty"
    fedkin.run(Looks(), clients, rounds=1, engine="serial", save_models=False)
    assert {kind for kind, *_ in seen} == {"vector", "personal"}
    assert {training for _, training, *_ in seen} == {False}
    assert {gradients for _, _, gradients, _ in seen} == {False}
    assert max(size for *_, size in seen) == 128


@pytest.mark.processes
@pytest.mark.parametrize("code", [text for kind, text in BLOCKS if kind == "python"])
def test_readme_code(code, tmp_path):
    assert len(code.strip().splitlines()) <= 12
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "fedavg-ft" in done.stdout


@pytest.mark.processes
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_example(path, tmp_path):
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.processes
def test_own_method_of_the_examples_keeps_the_contract():
    done = subprocess.run(
        [sys.executable, "-m", "fedkin", "verify", "examples/own_method.py:KeepTheHead"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.processes
def test_demo(tmp_path):
    done = subprocess.run([sys.executable, "-m", "fedkin", "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "gain over local" in done.stdout
    assert "runs/demo" in done.stdout
    assert (tmp_path / "runs/demo/comparison.json").exists()
    assert done.stdout.splitlines()[-1] == "Report: runs/demo/report.html"
    assert '"methods":[' in (tmp_path / "runs/demo/report.html").read_text()


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
