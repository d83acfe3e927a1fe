"""The notebooks of the examples run from top to bottom, and show tables, heat maps, plots and progress."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tour, executed in a kernel of its own."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install nbclient ipykernel")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install ipykernel")
    notebook = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    folder = str(tmp_path_factory.mktemp("tour"))
    nbclient.NotebookClient(notebook, timeout=580, resources={"metadata": {"path": folder}}).execute()
    return notebook


def shown(notebook: Any, kind: str) -> list[str]:
    """Everything of a MIME type that the cells show."""
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    return ["".join(out["data"][kind]) for out in outputs if kind in out.get("data", {})]


@pytest.mark.processes
def test_the_tour_runs_and_shows_what_it_speaks_of(tour):
    html = shown(tour, "text/html")
    assert sum("<table>" in text for text in html) >= 5  # federation, two runs, comparison, history
    assert sum("who learns from whom" in text for text in html) == 2
    assert sum('<progress value="10" max="10">' in text for text in html) == 6
    assert len(shown(tour, "image/png")) == 1


@pytest.mark.processes
def test_the_tour_finds_the_four_angles(tour):
    (text,) = [text for text in shown(tour, "text/plain") if text.startswith("[(")]
    pairs = set(ast.literal_eval(text))  # (cluster, quarter turns) of each client
    assert len(pairs) == 4


def test_the_tour_is_stored_with_its_outputs_and_small():
    path = EXAMPLES / "tour.ipynb"
    assert path.stat().st_size < 300_000
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells)
    assert "/work/" not in path.read_text()
