"""What a release says of itself is the same everywhere, and the container file names things that exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import fedkin

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTRUCTIONS = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "LABEL", "ENV", "USER", "ENTRYPOINT", "CMD"}


def test_the_version_is_one_everywhere():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == fedkin.__version__
    newest = re.search(r"^## (\S+) \((.*)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == fedkin.__version__
    assert re.search(r'^date-released: "(.*)"$', citation, re.MULTILINE)[1] == newest[2]
    assert re.search(r"^license: (.*)$", citation, re.MULTILINE)[1] == PROJECT["license"]


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in (ROOT / "Containerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


def test_the_container_file_copies_what_is_there_and_installs_extras_that_exist():
    words = instructions()
    assert {name for name, _ in words} <= INSTRUCTIONS
    ignored = (ROOT / ".dockerignore").read_text().split()
    for name, rest in words:
        if name == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored, f"{source} is left out of the build by .dockerignore"
    install = next(rest for name, rest in words if name == "RUN" and "pip" in rest)
    extras = re.search(r"\.\[(.*?)\]", install)[1].split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    needed = {PROJECT["readme"], *PROJECT["license-files"], "src", "pyproject.toml"}
    assert needed <= {s for n, rest in words if n == "COPY" for s in shlex.split(rest)[:-1]}


def test_the_container_does_not_run_as_root():
    words = instructions()
    stages = [i for i, (name, _) in enumerate(words) if name == "FROM"]
    last = words[stages[-1] :]
    assert [rest for name, rest in last if name == "USER"][-1:] == ["1000"]
    assert ("ENTRYPOINT", '["fedkin"]') in last
