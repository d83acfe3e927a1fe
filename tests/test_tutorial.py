"""docs/tutorial-hospitals.md, block by block: on the heart files where they are at hand, on made files everywhere."""

from __future__ import annotations

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "tutorial-hospitals.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
HOSPITALS = {"cleveland": 90, "hungarian": 80, "switzerland": 40, "va": 60}
pytestmark = pytest.mark.processes


def test_the_page_has_what_is_run():
    assert [kind for kind, _ in BLOCKS] == ["python", "sh", "sh", "sh", "sh", "python", "sh", "sh", "python"]


def made_files() -> None:
    """The same columns and kinds of cells as those of the hospitals, from a random generator."""
    rng = np.random.default_rng(8)
    columns = BLOCKS[0][1].split('columns = "')[1].split('"')[0].split()

    def patients(count: int) -> list[dict[str, str]]:
        out = []
        for _ in range(count):
            age, thalach = rng.normal(55, 9), rng.normal(140, 20)
            ill = rng.random() < 1 / (1 + np.exp(-0.1 * (age - 55) + 0.04 * (thalach - 140)))
            cells = {name: str(rng.integers(0, 3)) for name in columns}
            cells |= {"age": f"{age:.0f}", "thalach": f"{thalach:.0f}", "trestbps": f"{rng.normal(130, 15):.0f}"}
            cells["chol"] = "?" if rng.random() < 0.2 else "0" if rng.random() < 0.1 else f"{rng.normal(240, 50):.0f}"
            out.append({**cells, "disease": "yes" if ill else "no"})
        return out

    def write(path: str, count: int, order: list[str]) -> None:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, order, extrasaction="ignore")
            writer.writeheader()
            writer.writerows({**cells, "patient": f"P-{k:03}"} for k, cells in enumerate(patients(count)))

    Path("hospitals").mkdir()
    for name, count in HOSPITALS.items():
        write(f"hospitals/{name}.csv", count, [*columns, "disease"])
    write("east.csv", 50, [*columns, "disease"])
    write("new.csv", 10, [*columns[::-1], "patient"])


@pytest.mark.parametrize("source", ["made", "heart"])
def test_every_block_runs(source, tmp_path, monkeypatch, capsys, real_data):
    if source == "heart":
        real_data(*(f"heart/processed.{name}.data" for name in HOSPITALS))
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    monkeypatch.chdir(tmp_path)
    first, *blocks = BLOCKS
    made_files() if source == "made" else exec(first[1], {})
    fresh = next(code for kind, code in blocks if kind == "python")
    shown = ""
    for kind, code in blocks:
        if code == fresh:  # the page says: in another process
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert "auc" in done.stdout
        elif kind == "python":
            exec(code, {})
        else:
            for line in code.strip().splitlines():
                with pytest.raises(SystemExit) as ended:
                    main(shlex.split(line)[1:])
                out, err = capsys.readouterr()
                assert not ended.value.code, err
                shown += out
    for name in HOSPITALS:
        assert re.search(rf"^{name}: .*chosen on ", shown, re.MULTILINE), "a recommendation for each hospital"
    assert re.search(r"^east: expect auc 0\.\d+|^east: expect auc 1\.000", shown, re.MULTILINE)
    written = list(csv.DictReader(Path("predictions.csv").read_text().splitlines()))
    assert [line["patient"] for line in written] == [f"P-{k:03}" for k in range(10)]
    assert len(Path("east-predictions.csv").read_text().splitlines()) == 11


def test_both_versions_of_the_own_method_keep_the_contract(tmp_path):
    page = (PAGE.parent / "tutorial-own-method.md").read_text()
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        (tmp_path / f"own{number}.py").write_text(code)
        outcomes = list(fedkin.verify(f"{tmp_path / f'own{number}.py'}:OwnMean"))
        assert [f"{one.name}: {one.detail}" for one in outcomes if not one.passed] == []
        assert any("it defines no mixing" in one.name for one in outcomes) == (number == 0)
