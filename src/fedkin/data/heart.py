"""UCI Heart Disease: the patients of four hospitals; each hospital is a natural client.

Andras Janosi, William Steinbrunn, Matthias Pfisterer, Robert Detrano: Heart Disease. UCI Machine Learning Repository,
1988, https://doi.org/10.24432/C52P4X.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkin.data.arrays import Arrays
from fedkin.data.cells import Reading
from fedkin.data.encode import codes, infer
from fedkin.data.files import data_dir, fetch, unpack
from fedkin.data.table import Problems, Table, read_table

_ADDRESS = "https://archive.ics.uci.edu/static/public/45/heart+disease.zip"
_PATIENTS = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
_COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
)  # fmt: skip
_TARGET = "num"  # 0: healthy; 1 to 4: how severe the disease is
_CATEGORIES = ("sex", "cp", "fbs", "restecg", "exang", "slope", "thal")
_NOT_MEASURED = ("trestbps=0", "chol=0")  # nobody has a blood pressure or cholesterol of 0
READING = Reading(label="disease", categorical=_CATEGORIES, missing=_NOT_MEASURED)


def at_hand(folder: str | Path | None = None) -> bool:
    """Are the files present, so that nothing has to be downloaded?"""
    return all((data_dir(folder) / "heart" / f"processed.{name}.data").exists() for name in _PATIENTS)


def load(folder: str | Path | None = None) -> Arrays:
    """The official `processed.*.data` files. The label says whether there is any disease (`num` above 0)."""
    root = data_dir(folder) / "heart"
    files = {name: f"processed.{name}.data" for name in _PATIENTS}
    if not at_hand(folder):
        # The publisher gives no checksum of the archive; its content is checked below.
        fetch(root, {"heart.zip": (_ADDRESS, None)}, what="UCI Heart Disease")
        unpack(root / "heart.zip", root, list(files.values()))
    problems = Problems()
    tables = [_table(root / files[name], count, problems) for name, count in _PATIENTS.items()]
    problems.check(str(root))
    disease = np.concatenate([np.array([float(cell) > 0 for cell in table.columns[_TARGET]]) for table in tables])
    tables = [Table(t.source, {n: t.columns[n] for n in _COLUMNS}, t.rows) for t in tables]
    columns = infer(tables, READING, problems)
    x = np.concatenate([codes(table, columns, READING, problems) for table in tables])
    problems.check(str(root))
    return Arrays(
        x,
        disease.astype(np.int64),
        classes=2,
        group=np.repeat(np.arange(len(tables)), [len(table) for table in tables]),
        names=tuple(_PATIENTS),
        columns=columns,
        reading=READING,
        class_names=("no", "yes"),
    )


def _table(path: Path, count: int, problems: Problems) -> Table:
    table = read_table(path, problems, names=(*_COLUMNS, _TARGET))
    if table is None:
        return Table(path.name, {name: [] for name in (*_COLUMNS, _TARGET)}, np.empty(0, np.int64))
    if len(table) != count or not all(cell in ("0", "1", "2", "3", "4") for cell in table.columns[_TARGET]):
        problems.add(f"the official file has {count} patients with a target of 0 to 4; put it there", source=path.name)
    return table
