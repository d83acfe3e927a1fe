"""Folders as hospitals really send them: each is read, or refused with what to change, never half read in silence."""

from __future__ import annotations

import numpy as np
import pytest

from fedkin.data import from_folder, from_frame
from fedkin.data.federation import federate
from fedkin.data.preprocess import fitted, statistics


def folder(tmp_path, **columns):
    """Two files of 40 patients; `columns` name further columns: cell(k)."""
    for name in "ab":
        write(tmp_path / f"{name}.csv", **columns)
    return tmp_path


def write(path, rows=40, sep=",", end="", **columns):
    cells = {
        "age": lambda k: f"{40 + 7 * k % 31}",
        **columns,
        "y": columns.get("y", lambda k: ["no", "yes"][k % 3 == 0]),
    }
    lines = [sep.join(cells), *(sep.join(str(cell(k)) for cell in cells.values()) for k in range(rows))]
    path.write_text("\n".join(lines) + "\n" + end)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"seen": lambda k: f"2024-{1 + k % 12:02}-{1 + k % 28:02}"},
            "column 'seen' holds dates; make a number of them",
        ),
        ({"seen": lambda k: f"{1 + k % 28}.{1 + k % 3}.2024 10:30"}, "column 'seen' holds dates"),
        ({"seen": lambda k: f"{1 + k % 12}/{1 + k % 28}/24"}, "column 'seen' holds dates"),
        ({"bp": lambda k: f"{120 + k} mmHg"}, "column 'bp' holds numbers with a unit or a sign"),
        ({"ef": lambda k: f"{30 + k}%"}, "column 'ef' holds numbers with a unit"),
        ({"y": lambda k: "yes"}, "the label 'y' is the same in every example"),
        ({"y": lambda k: "0"}, "the label 'y' is the same in every example"),
    ],
)
def test_a_column_that_is_not_what_it_seems_is_refused(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        from_folder(folder(tmp_path, **columns))


@pytest.mark.parametrize("cell", ["1st 2nd 3rd", "50-59 60-69", "2-3 4-5", "mild severe", "5+ 6+"])
def test_categories_that_begin_with_a_number_stay_categories(tmp_path, cell):
    levels = cell.split()
    arrays = from_folder(folder(tmp_path, grade=lambda k: levels[k % len(levels)]))
    assert {c.name: c.levels for c in arrays.columns}["grade"] == tuple(sorted(levels))


def test_what_looks_like_dates_may_be_called_categorical(tmp_path):
    arrays = from_folder(folder(tmp_path, seen=lambda k: f"2024-0{1 + k % 3}-01"), categorical="seen")
    assert len(arrays.columns[1].levels) == 3


def test_a_stray_text_among_numbers_is_one_problem(tmp_path):
    write(tmp_path / "b.csv", bp=str)
    write(tmp_path / "a.csv", bp=lambda k: "SECRET" if k == 7 else str(k))
    with pytest.raises(ValueError, match=r"^a\.csv, column 'bp', row 9: not a number") as error:
        from_folder(tmp_path)
    assert "different texts" not in str(error.value)
    assert "SECRET" not in str(error.value)


def test_rows_of_delimiters_at_the_end_are_no_examples(tmp_path):
    write(tmp_path / "a.csv", sep=";", end=";\n;\n\n")
    write(tmp_path / "b.csv")
    assert len(from_folder(tmp_path).y) == 80


def test_a_row_without_cells_inside_is_still_an_example(tmp_path):
    """Leaving it out would shift every prediction below it."""
    write(tmp_path / "a.csv", end=",\n50,no\n")
    with pytest.raises(ValueError, match=r"a\.csv, column 'y', row 42: the label is missing"):
        from_folder(tmp_path)


def test_a_spreadsheet_beside_tables_is_not_left_out_in_silence(tmp_path):
    write(tmp_path / "a.csv")
    (tmp_path / "north.xlsx").write_bytes(b"PK\3\4")
    with pytest.raises(ValueError, match=r"holds north\.xlsx: spreadsheets are not read; save each as \.csv"):
        from_folder(tmp_path)
    (tmp_path / "north.xlsx").rename(tmp_path / "~$north.xlsx")  # a lock file of the program that has it open
    assert from_folder(tmp_path).names == ("a",)


def test_columns_of_the_same_name_are_found_by_number(tmp_path):
    (tmp_path / "a.csv").write_text("age,bp,age,y\n1,2,3,0\n4,5,6,1\n")
    with pytest.raises(ValueError, match="the header has a name twice, in columns 1, 3; rename one"):
        from_folder(tmp_path)


def test_a_file_of_texts_without_a_header_says_so(tmp_path):
    (tmp_path / "a.csv").write_text("".join(f"x{k % 3},{['no', 'yes'][k % 2]}\n" for k in range(40)))
    with pytest.raises(ValueError, match=r"if it is an example, put a row with the columns' names on top"):
        from_folder(tmp_path)


def test_a_site_with_one_row_is_named(tmp_path):
    write(tmp_path / "north.csv", rows=1)
    write(tmp_path / "south.csv")
    with pytest.raises(ValueError, match="Client north has 1 examples; it needs one to learn from and one to test on"):
        federate(from_folder(tmp_path))


def test_a_site_with_five_rows_and_one_of_one_class_take_part(tmp_path):
    write(tmp_path / "north.csv", rows=5)
    write(tmp_path / "south.csv", y=lambda k: "yes")
    write(tmp_path / "west.csv")
    made = federate(from_folder(tmp_path))
    assert [len(s.train) + len(s.validation) + len(s.test) for s in made.splits] == [5, 40, 40]
    assert np.isfinite(made.arrays.x).all()


def test_formats_may_differ_between_sites(tmp_path):
    """Semicolons and decimal commas, tabs, a byte order mark, quoted texts: the same numbers come out."""
    bp = [f"{120 + k / 4:.2f}" for k in range(40)]
    write(tmp_path / "a.csv", bp=lambda k: bp[k], kind=lambda k: '"x, y"' if k % 2 else "z")
    write(tmp_path / "b.csv", sep=";", bp=lambda k: bp[k].replace(".", ","), kind=lambda k: '"x, y"' if k % 2 else "z")
    write(tmp_path / "c.tsv", sep="\t", bp=lambda k: bp[k], kind=lambda k: "x, y" if k % 2 else "z")
    text = (tmp_path / "a.csv").read_text().replace("\n", "\r\n")
    (tmp_path / "d.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    arrays = from_folder(tmp_path)
    parts = [arrays.x[arrays.group == k] for k in range(4)]
    for part in parts[1:]:
        np.testing.assert_array_equal(part, parts[0])
    assert arrays.columns[2].levels == ("x, y", "z")


@pytest.mark.parametrize("option", ["client", "label", "ignore", "categorical"])
@pytest.mark.parametrize("kind", ["series", "array", "list"])
def test_a_column_given_in_place_of_its_name_is_not_shown(option, kind):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"age": range(6), "who": ["SECRET-1", "SECRET-2"] * 3, "y": [0, 1] * 3})
    given = {"series": frame["who"], "array": frame["who"].to_numpy(), "list": frame["age"].tolist()}[kind]
    with pytest.raises(ValueError, match=f"{option} must be (a name or a list of names|the name of a column)") as error:
        from_frame(frame, **{option: given})
    assert "SECRET" not in str(error.value)


def test_booleans_with_gaps_are_numbers_in_training_and_in_use():
    """A frame holds them as objects once a cell is missing."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    whole = pandas.DataFrame({"smoker": [True, False] * 5, "age": range(10), "y": [0, 1] * 5})
    arrays = from_frame(whole)
    assert [c.kind for c in arrays.columns] == ["number", "number"]
    prepared = fitted(arrays.columns, {"a": statistics(arrays.x, arrays.columns)}, "sites", reading=arrays.reading)
    new = pandas.DataFrame({"smoker": [True, None, False], "age": [1, 2, 3]})
    assert prepared.transform(new)[:, 0].tolist() == [1.0, 0.0, -1.0]
