"""Completion scripts: bash runs here, the others are checked where they are installed."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from fedkin.methods import METHODS

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    from fedkin.cli.completion import bash, collect

    path = tmp_path_factory.mktemp("completion") / "fedkin.bash"
    path.write_text(bash(collect()))
    return path


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("co", {"compare", "completion"}),
        ("run fedprox --mu", {"--mu"}),
        ("run fedavg --mu", set()),
        ("run fedprox --partition.al", {"--partition.alpha"}),
        ("run fedpro", {name for name in METHODS if name.startswith("fedpro")}),
        ("compare local if", {name for name in METHODS if name.startswith("if")}),
        ("run fedprox --data fashion", {"fashion-mnist"}),
        ("compare local --se", {"--seed", "--seeds"}),
        ("figures runs --format s", {"svg"}),
        ("list mo", {"models"}),
        ("deploy k", {"keys"}),
        ("completion f", {"fish"}),
    ],
)
def test_bash(script, typed, expected, tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    words = ["fedkin", *typed.split()]
    code = (
        f'source "{script}"; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _fedkin; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert set(done.stdout.split()) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_are_valid(call, tmp_path, shell):
    code, out, _ = call("completion", shell)
    assert code == 0
    assert "fedprox" in out
    assert "stragglers" in out
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its script was made, not run")
    (tmp_path / "script").write_text(out)
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_another_shell(fails):
    assert "completion takes one shell, bash, zsh, fish; given: csh." in fails("completion", "csh")
