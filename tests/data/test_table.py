"""Tables: what is read from files, and that no message ever shows a cell."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedkin.data import from_file, from_folder, from_frame
from fedkin.data.federation import federate
from fedkin.data.preprocess import Preprocessing
from fedkin.data.table import (
    DataWarning,
    Problems,
    decimal_evidence,
    is_number,
    plain_numbers,
    read_table,
    to_number,
)


def read(tmp_path, text: str | bytes, name: str = "a.csv", **options):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return from_file(tmp_path / name, **options)


# ---- files


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_the_delimiter_is_found(tmp_path, mark, name):
    arrays = read(tmp_path, f"p{mark}q{mark}y\n1{mark}2.5{mark}0\n3{mark}4{mark}1\n", name)
    assert arrays.x.tolist() == [[1, 2.5], [3, 4]]


def test_quotes_hide_delimiters_and_line_ends(tmp_path):
    arrays = read(tmp_path, '"p, in mg",q,y\n1,"one, two",0\n2,"a\nb",1\n3,"say ""x""",0\n')
    assert [c.name for c in arrays.columns] == ["p, in mg", "q"]
    assert arrays.columns[1].levels == ("a\nb", "one, two", 'say "x"')


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_of_spreadsheets(tmp_path, encoding):
    arrays = read(tmp_path, "größe\ty\n1\t0\n2\t1\n".encode(encoding))
    assert [c.name for c in arrays.columns] == ["größe"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends(tmp_path, end):
    assert read(tmp_path, end.join(["p,y", "1,0", "2,1", ""])).x.tolist() == [[1], [2]]


def test_a_delimiter_at_the_end_of_each_row(tmp_path):
    assert read(tmp_path, "p,y,\n1,0,\n2,1,\n").x.tolist() == [[1], [2]]


def test_row_numbers_are_those_of_a_spreadsheet(tmp_path):
    """The header is row 1, a blank row counts, a row in quotes with a line end in it is one row."""
    with pytest.raises(ValueError, match="column 'p', row 5: not a number"):
        read(tmp_path, 'p,q,y\n1,"a\nb",0\n\n2,c,1\nbad,d,0\n3,e,0\n')


def test_a_header_of_numbers_is_taken_only_where_it_counts(tmp_path):
    assert [c.name for c in read(tmp_path, "0,1,2,y\n5,6,7,0\n").columns] == ["0", "1", "2"]
    with pytest.raises(ValueError, match="the first row is not a header: its cell in column 1, 2 is a number"):
        read(tmp_path, "63.5,1,male,y\n5,6,female,n\n")


def test_an_index_without_a_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="its column 1 has no name; give it one, or remove the column"):
        read(tmp_path, ",p,y\n0,5,0\n1,6,1\n")


def test_a_remark_of_a_spreadsheet_on_the_delimiter(tmp_path):
    arrays = read(tmp_path, b"\xef\xbb\xbfsep=;\r\nage;note, free;y\r\n1,5;a;0\r\n2,5;b;1\r\n")
    assert [c.name for c in arrays.columns] == ["age", "note, free"]
    assert arrays.x[:, 0].tolist() == [1.5, 2.5]
    with pytest.raises(ValueError, match="row 3: not a number"):  # the remark is no row
        read(tmp_path, "sep=;\nage;y\n1;0\nold;1\n2;1\n")


# ---- numbers


@pytest.mark.parametrize(
    ("cell", "decimal", "value"),
    [
        ("12", ".", 12), ("-1.5", ".", -1.5), ("+1.5", ".", 1.5), ("−1.5", ".", -1.5), (".7", ".", 0.7),
        ("7.", ".", 7), ("6e-1", ".", 0.6), ("1E3", ".", 1000), ("1,234.5", ".", 1234.5), ("1,234,567", ".", 1234567),
        ("1'234.5", ".", 1234.5), ("1 234.5", ".", 1234.5), ("1\u202f234.5", ".", 1234.5),
        ("1,5", ",", 1.5), ("1.234,5", ",", 1234.5), ("1 234,5", ",", 1234.5), (",5", ",", 0.5), ("1.234", ",", 1234),
    ],
)  # fmt: skip
def test_number_formats(cell, decimal, value):
    assert to_number(cell, decimal) == value
    assert is_number(cell, decimal)


@pytest.mark.parametrize("cell", ["", "a", "1a", "1,5", "12,34", "0,123", "1.2.3", "1_000", "inf", "nan", "0x1F", "e5",
                                  ".", "-", "1 2", "١٢", "1e", "--1", "1e9999", "12 %", "1e999"])  # fmt: skip
def test_what_is_no_number(cell):
    assert np.isnan(to_number(cell, "."))


@given(st.floats(-1e15, 1e15))
def test_every_number_python_writes_is_read_back(value):
    assert to_number(repr(value), ".") == value
    assert to_number(f"{value:e}", ".") == float(f"{value:e}")
    assert to_number(f"{value:,.3f}", ".") == float(f"{value:.3f}")
    german = f"{value:,.3f}".translate(str.maketrans(",.", ".,"))
    assert to_number(german, ",") == float(f"{value:.3f}")


@given(st.lists(st.text("0123456789+-.eE?", max_size=6), min_size=1, max_size=5))
@example(["1e999", "5.", ".5", "+1"])
def test_a_column_at_once_is_the_same_as_cell_by_cell(cells):
    at_once = plain_numbers(cells)
    if at_once is not None:
        np.testing.assert_array_equal(at_once, [to_number(cell, ".") for cell in cells])


def test_what_tells_a_decimal_comma():
    assert decimal_evidence(["1.5", "12"]) == {"."}
    assert decimal_evidence(["1,5"]) == {","}
    assert decimal_evidence(["1,234"]) == {"unclear"}
    assert decimal_evidence(["1.234", "7"]) == set()  # a point is a decimal point unless commas tell otherwise
    assert decimal_evidence(["0,123"]) == {","}
    assert decimal_evidence(["1.234,5", "1,234.5"]) == {".", ","}


def test_each_file_has_a_decimal_mark_of_its_own(tmp_path):
    (tmp_path / "bonn.csv").write_text("p;q;y\n1,5;1.234;0\n2;2.000,25;1\n")
    (tmp_path / "york.csv").write_text('p,q,y\n1.5,"1,234",0\n2,2000.25,1\n')
    assert from_folder(tmp_path).x.tolist() == [[1.5, 1234], [2, 2000.25]] * 2


def test_a_comma_that_may_mean_two_things_is_asked_about(tmp_path):
    text = "p;y\n1,234;0\n5,678;1\n"
    with pytest.raises(ValueError, match=r"a\.csv, column 'p': a comma before three digits may be"):
        read(tmp_path, text)
    assert read(tmp_path, text, decimal=",").x.tolist() == [[1.234], [5.678]]
    assert read(tmp_path, text, decimal=".").x.tolist() == [[1234], [5678]]
    with pytest.raises(ValueError, match="column 'p' have a decimal point, those of 'q' a decimal comma"):
        read(tmp_path, "p;q;y\n1.5;1,5;0\n")
    with pytest.raises(ValueError, match="some numbers of column 'p' have a decimal point, others a decimal comma"):
        read(tmp_path, "p;y\n1.5;0\n1,5;1\n")


# ---- categories, missing cells, labels


def test_missing_cells(tmp_path):
    cells = ["1", "", "?", "NA", "n/a", "NaN", "null", "#N/A", "-9", "-9.0", "unknown", "2"]
    text = "p,y\n" + "".join(f"{cell},{i % 2}\n" for i, cell in enumerate(cells))
    x = read(tmp_path, text, missing=["-9", "Unknown"]).x[:, 0]
    assert x[[0, -1]].tolist() == [1, 2]
    assert np.isnan(x[1:-1]).all()


def test_missing_cells_of_one_column(tmp_path):
    x = read(tmp_path, "p,q,y\n0,0,0\n0.0,1,1\n2,-9,0\n", missing=["p=0", "-9"]).x
    np.testing.assert_array_equal(x, [[np.nan, 0], [np.nan, 1], [2, np.nan]])
    with pytest.raises(ValueError, match="missing names a column 'r'; no file has it"):
        read(tmp_path, "p,y\n0,0\n", missing="r=0")


def test_a_text_among_numbers_is_a_mistake_until_the_column_is_called_categorical(tmp_path):
    text = "p,y\n1,0\n2,1\n3+,0\n"
    with pytest.raises(ValueError, match="column 'p', row 4: not a number, unlike the other cells"):
        read(tmp_path, text)
    assert read(tmp_path, text, categorical="p").columns[0].levels == ("1", "2", "3+")
    with pytest.raises(ValueError, match="column 'p', row 4: a number, unlike the other cells"):
        read(tmp_path, "p,y\na,0\nb,1\n3,0\n")


def test_levels_that_are_the_same_number_are_one(tmp_path):
    (tmp_path / "a.csv").write_text("p,y\n1.0,0\n2.0,1\n")
    (tmp_path / "b.csv").write_text("p;y\n1;0\n10;1\n2,00;0\n")
    arrays = from_folder(tmp_path, categorical="p")
    assert arrays.columns[0].levels == ("1", "2", "10")
    assert arrays.x[:, 0].tolist() == [0, 1, 0, 2, 1]


def test_levels_are_those_of_all_sites(tmp_path):
    (tmp_path / "a.csv").write_text("p,y\nred,0\nblue,1\n")
    (tmp_path / "b.csv").write_text("p,y\ngreen,0\n,1\n")
    arrays = from_folder(tmp_path)
    assert arrays.columns[0].levels == ("blue", "green", "red")
    np.testing.assert_array_equal(arrays.x[:, 0], [2, 0, 1, np.nan])


def test_levels_that_differ_in_capitals_are_asked_about(tmp_path):
    (tmp_path / "a.csv").write_text("p,y\nMale,0\nfemale,1\n")
    (tmp_path / "b.csv").write_text("p,y\nmale,0\nfemale,1\n")
    with pytest.raises(ValueError, match=r"b\.csv, column 'p', row 2: spelled elsewhere with other capitals"):
        from_folder(tmp_path)
    assert len(from_folder(tmp_path, categorical="p").columns[0].levels) == 3


@pytest.mark.parametrize(
    ("labels", "codes", "names"),
    [
        ("yes no no yes", [1, 0, 0, 1], ("no", "yes")),
        ("1 2 2 1", [0, 1, 1, 0], ("1", "2")),
        ("-1 1 1 -1", [0, 1, 1, 0], ("-1", "1")),
        ("10 9 9.0 10", [1, 0, 0, 1], ("9", "10")),
        ("0 2 2 0", [0, 2, 2, 0], ("0", "1", "2")),
        ("true false false true", [1, 0, 0, 1], ("false", "true")),
    ],
)
def test_labels_of_any_kind(tmp_path, labels, codes, names):
    (tmp_path / "a.csv").write_text("p,y\n" + "".join(f"1,{label}\n" for label in labels.split()))
    arrays = from_folder(tmp_path)
    assert arrays.y.tolist() == codes
    assert arrays.class_names == names


def test_regression_targets_of_a_table(tmp_path):
    arrays = read(tmp_path, "p;y\n1;2,5\n2;-1\n", task="regression")
    assert (arrays.y.dtype, arrays.y.tolist(), arrays.classes) == (np.float32, [2.5, -1], 0)
    with pytest.raises(ValueError, match="column 'y', row 3: the target of a regression is not a number"):
        read(tmp_path, "p,y\n1,2.5\n2,high\n", task="regression")


# ---- what is probably not meant


def test_numbers_of_patients_are_warned_of(tmp_path):
    rows = [f"{7 * i},{50 + i % 30},{i % 2}" for i in range(60)]
    with pytest.warns(DataWarning, match="Column 'number' has another whole number in every row") as caught:
        read(tmp_path, "number,age,y\n" + "\n".join(rows))
    assert len(caught) == 1, "ages repeat"
    rows[3] = "0.5,50,0"  # a measurement
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(tmp_path, "number,age,y\n" + "\n".join(rows))


def test_a_category_that_no_training_example_has_is_warned_of(tmp_path):
    (tmp_path / "a.csv").write_text("age,sex,y\n" + "1,m,0\n2,f,1\n" * 10)
    made = federate(from_folder(tmp_path)).preprocessing
    (tmp_path / "new.csv").write_text("sex,age\nm,1\nmale,2\n,3\n")
    with pytest.warns(DataWarning, match=r"^new\.csv, column 'sex', row 3: no training example has this category; it"):
        features = made.transform(tmp_path / "new.csv", "a")
    np.testing.assert_array_equal(features[1:, 1:], 0)


def test_all_columns_that_new_examples_lack_are_named(tmp_path):
    (tmp_path / "a.csv").write_text("age,sex,dose,y\n" + "1,m,3,0\n2,f,4,1\n" * 10)
    made = federate(from_folder(tmp_path)).preprocessing
    (tmp_path / "new.csv").write_text("Age,dose\n1,2\n")
    with pytest.raises(ValueError, match="none of the 2 columns is called 'age' or 'sex'; there is 'Age'"):
        made.transform(tmp_path / "new.csv", "a")


# ---- no message shows a cell

secrets = st.one_of(
    st.text("abcdefghijklmnopqrstuvwxyzABCXYZ #?,;'\"é", min_size=5, max_size=12).map(lambda t: f"q{t}x"),
    st.floats(1e4, 1e28).map(repr),
    st.integers(10**7, 10**12).map(str),
    st.dates().map(str),
    st.sampled_from(["could not convert", "1e999999", "12345,678", "12345.67,8", "naan", "-99999,5"]),
)
cells = st.one_of(secrets, st.sampled_from(["", "?", "1", "2", "0.5", "NA", "1,5", "1,234", "yes", "no", "Yes"]))


@st.composite
def folders(draw):
    """Files with all sorts of mistakes: no header, ragged rows, mixed columns, other names, another delimiter."""
    files = {}
    for name in draw(st.sampled_from([["north"], ["north", "south"], ["east", "north", "south"]])):
        mark = draw(st.sampled_from([",", ";", "\t"]))
        header = draw(st.sampled_from([["age", "dose", "y"], ["y", "dose", "age"], ["age", "y"], ["age", "dose", "Y"]]))
        rows = draw(st.lists(st.lists(cells, min_size=len(header), max_size=len(header)), max_size=6))
        if draw(st.booleans()):
            for row in rows:
                row[header.index("y") if "y" in header else -1] = draw(st.sampled_from(["0", "1"]))
        if rows and draw(st.integers(0, 5)) == 0:
            rows[-1] = rows[-1][: draw(st.integers(1, 3))]
        top = [header] if draw(st.integers(0, 4)) else []
        quoted = [['"' + cell.replace('"', '""') + '"' for cell in row] for row in rows]
        if draw(st.integers(0, 4)) == 0:
            quoted = rows  # quotes and delimiters where they may
        files[name] = ("\n".join(mark.join(line) for line in top + quoted), [cell for row in rows for cell in row])
    return files


def shown(use: Callable[[], Any], words: list[str]) -> list[str]:
    """The words that a log of this call's warnings and error would show."""
    text = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            use()
        except ValueError as error:
            lines = [line for line in traceback.format_exception(error) if not line.startswith("  File ")]
            text = "".join(lines) + repr(error)
    text += "".join(str(warning.message) for warning in caught)
    return [word for word in words if len(word.strip()) >= 5 and word.strip() in text]


@given(files=folders(), task=st.sampled_from(["classification", "regression"]))
def test_no_cell_in_any_message(tmp_path, files, task):
    for path in tmp_path.glob("*.csv"):
        path.unlink()
    for name, (text, _) in files.items():
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
    words = [cell for _, own in files.values() for cell in own]
    assert shown(lambda: federate(from_folder(tmp_path, task=task)), words) == []


@given(cell=secrets, row=st.integers(0, 3), column=st.sampled_from(["age", "sex", "y"]))
@example(cell="4711.0x", row=1, column="age")
def test_no_cell_of_new_examples_in_any_message(cell, row, column):
    pandas = pytest.importorskip("pandas")
    table = {"age": ["1", "2", "3", "4"], "sex": ["m", "f", "m", "f"], "y": ["no", "yes", "no", "yes"]}
    made = federate(from_frame(pandas.DataFrame(table)), partition="iid", clients=1).preprocessing
    assert isinstance(made, Preprocessing)
    table[column][row] = cell
    new = pandas.DataFrame(table)
    assert shown(lambda: made.transform(new, "client 0"), [cell]) == []
    assert shown(lambda: made.labels(new), [cell]) == []


def test_what_is_printed_shows_no_cell(tmp_path):
    arrays = read(tmp_path, "age,sex,y\n4711.5,m,0\n4712.5,f,1\n")
    assert repr(arrays) == "<Arrays of 2 examples of shape [2], 2 classes, clients a>"
    table = read_table(tmp_path / "a.csv", Problems())
    assert "4711.5" not in repr(table)


def test_the_property_would_notice():
    assert shown(lambda: warnings.warn("4711.0x", stacklevel=1), ["4711.0x"]) == ["4711.0x"]
    assert shown(lambda: float("4711.0x"), ["4711.0x"]) == ["4711.0x"]
