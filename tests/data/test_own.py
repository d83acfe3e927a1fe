"""The user's own data: what is taken, and what is refused with which words."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fedkin
from fedkin.data import Arrays, from_arrays, from_dataset, from_file, from_folder, from_frame, npz
from fedkin.data.federation import federate
from fedkin.data.table import DataError

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


def test_from_arrays():
    arrays = from_arrays(X, Y, client=["b", "a", "b", "c", "c", "a"])
    assert (arrays.x.dtype, arrays.y.dtype, arrays.classes) == (np.float32, np.int64, 3)
    assert arrays.names == ("a", "b", "c")
    assert arrays.group.tolist() == [1, 0, 1, 2, 2, 0]
    assert (arrays.image, arrays.ordered, arrays.shape) == (False, False, (2,))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X.tolist(), Y.tolist()),
        (torch.tensor(X), torch.tensor(Y)),
        (X.astype(np.uint8), Y.astype(float)),
        (X > 3, Y.astype(np.int8)),
    ],
)
def test_from_arrays_takes_anything_like_numbers(x, y):
    arrays = from_arrays(x, y)
    assert arrays.y.tolist() == Y.tolist()
    assert arrays.x.dtype == np.float32
    assert arrays.group is None


def test_from_arrays_labels_may_be_yes_and_no():
    assert from_arrays(X, Y > 0).classes == 2


@pytest.mark.parametrize(
    ("y", "codes", "names"),
    [
        (Y + 1, [0, 1, 2, 0, 1, 2], ("1", "2", "3")),
        (Y - 1, [0, 1, 2, 0, 1, 2], ("-1", "0", "1")),
        (Y * 10 + 5, [0, 1, 2, 0, 1, 2], ("5", "15", "25")),
        (np.array(["yes", "no", "no", "yes", "no", "no"]), [1, 0, 0, 1, 0, 0], ("no", "yes")),
        (Y * 2, [0, 2, 4, 0, 2, 4], ()),  # whole numbers from 0 are classes as they are
    ],
)
def test_from_arrays_labels_need_not_start_at_0(y, codes, names):
    arrays = from_arrays(X, y)
    assert arrays.y.tolist() == codes
    assert arrays.class_names == names


def test_from_arrays_refuses_absurd_labels_without_showing_them():
    with pytest.raises(ValueError, match="beyond 100000; a network needs an output for each") as caught:
        from_arrays(X, np.array([0, 1, 123_456_789, 0, 1, 2]))
    assert "123" not in str(caught.value)


@pytest.mark.parametrize(("dtype", "kept"), [(np.int64, np.int64), (np.int32, np.int64), (np.uint8, np.float32)])
def test_tokens_stay_whole_numbers(dtype, kept):
    arrays = from_arrays(np.arange(12).reshape(6, 2).astype(dtype), Y)
    assert arrays.x.dtype == kept
    x = federate(arrays, partition="iid", clients=1).examples(0, np.arange(2)).x
    assert x.dtype == (torch.int64 if kept is np.int64 else torch.float32)


def test_an_image_of_whole_numbers_is_no_sentence():
    assert from_arrays(np.zeros((6, 1, 4, 4), np.int64), Y).x.dtype == np.float32


def test_regression_targets_stay_numbers():
    arrays = from_arrays(X, Y + 0.5, task="regression")
    assert (arrays.y.dtype, arrays.classes, arrays.outputs) == (np.float32, 0, 1)
    assert from_arrays(X, np.zeros((6, 3)), task="regression").outputs == 3
    assert from_arrays(X, Y).outputs == 3
    for bad in (np.full(6, np.nan), np.array(list("abcdef"))):
        with pytest.raises(ValueError, match="targets of a regression must be finite numbers"):
            from_arrays(X, bad, task="regression")
    with pytest.raises(ValueError, match="task='guess' must be"):
        from_arrays(X, Y, task="guess")


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (X[:5], Y, "x has 5 examples and y has 6"),
        (X[:, 0], Y, r"x must be \[examples, features…\]"),
        (X[:, :0], Y, r"x must be \[examples, features…\]; it has shape \(6, 0\)"),
        (X[:0], Y[:0], "no examples"),
        (np.where(X > 9, np.nan, X), Y, "1 examples of x hold NaN or infinity"),
        (np.where(X > 7, np.inf, X), Y, "2 examples of x hold NaN or infinity"),
        (X.astype(str), Y, "x must be numbers"),
        (X.astype(object), Y, "x must be numbers"),
        (X.astype(complex), Y, "x must be numbers"),
        (X, Y + 0.5, "y must be one whole number per example"),
        (X, Y[:, None], "y must be one class per example"),
        (X, np.where(Y, np.nan, 0), "y must be one whole number per example"),
        (X, np.where(Y, np.inf, 0), "y must be one whole number per example"),
        (X, Y.astype(object), "y must be one class per example"),
    ],
)
def test_from_arrays_refuses(x, y, text):
    with pytest.raises(ValueError, match=text):
        from_arrays(x, y)


def test_from_arrays_refuses_too_few_labels():
    with pytest.raises(ValueError, match="x has 6 examples and y has 5"):
        from_arrays(X, Y[:5], client=[1, 1, 1, 2, 2, 2])


def test_from_arrays_refuses_clients_that_do_not_fit():
    with pytest.raises(ValueError, match="for each of the 6 examples"):
        from_arrays(X, Y, client=[1, 2])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"y": Y.astype(float)}, "y must be int64"),
        ({"y": Y[:, None]}, "y must be int64"),
        ({"image": True}, r"Images must be \[examples, height, width, channels\]"),
        ({"classes": 2}, r"2 labels are outside 0\.\.1"),
    ],
)
def test_arrays_by_hand_are_checked(changes, text):
    with pytest.raises(ValueError, match=text):
        Arrays(**{"x": X, "y": Y, "classes": 3, **changes})


def test_shape_is_what_the_network_sees():
    assert Arrays(np.zeros((6, 4, 5, 3), np.uint8), Y, classes=3, image=True).shape == (3, 4, 5)
    assert Arrays(np.zeros((6, 4, 5)), Y, classes=3).shape == (4, 5)


# ---- a folder with one file a client


def test_from_folder_of_npz(tmp_path):
    np.savez(tmp_path / "south.npz", x=X + 1, y=Y)
    np.savez(tmp_path / "north.npz", x=X[:2], y=Y[:2], more=[1])
    (tmp_path / "readme.txt").write_text("not data")
    arrays = from_folder(tmp_path)
    assert arrays.names == ("north", "south")
    assert arrays.group.tolist() == [0] * 2 + [1] * 6
    np.testing.assert_array_equal(arrays.x, np.concatenate([X[:2], X + 1]).astype(np.float32))


def test_from_folder_of_csv(tmp_path):
    (tmp_path / "a.csv").write_text("age, kind ,dose\n1,0,2.5\n3,1,4\n")
    (tmp_path / "b.csv").write_text('\ufeff"age","kind","dose"\r\n5,2,6e-1\r\n', encoding="utf-8")
    arrays = from_folder(tmp_path, label="kind")
    np.testing.assert_allclose(arrays.x, [[1, 2.5], [3, 4], [5, 0.6]])
    assert arrays.y.tolist() == [0, 1, 2]


def test_from_folder_mixed(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    (tmp_path / "b.csv").write_text("p,q,y\n1,2,0\n")
    arrays = from_folder(tmp_path)
    assert arrays.names == ("a", "b")
    np.testing.assert_array_equal(arrays.x, np.concatenate([X, [[1, 2]]]))


@pytest.mark.parametrize("read", [from_folder, lambda folder, **more: from_file(folder / "a.csv", **more)])
def test_rows_are_in_time_order_only_if_the_user_says_so(tmp_path, read):
    (tmp_path / "a.csv").write_text("p,y\n1,0\n2,1\n")
    assert not read(tmp_path).ordered
    assert read(tmp_path, ordered=True).ordered


def test_a_row_that_begins_with_a_hash_does_not_vanish(tmp_path):
    (tmp_path / "a.csv").write_text("p,q,y\na,1,0\n#b,2,1\n#,3,0\n")
    arrays = from_folder(tmp_path)
    assert len(arrays.y) == 3
    assert arrays.columns[0].levels == ("#", "#b", "a")


def test_columns_are_found_by_name(tmp_path):
    (tmp_path / "a.csv").write_text("p,q,y\n1,2,0\n")
    (tmp_path / "b.csv").write_text("y,q,p\n1,4,3\n")
    arrays = from_folder(tmp_path)
    assert [c.name for c in arrays.columns] == ["p", "q"]
    assert arrays.x.tolist() == [[1, 2], [3, 4]]
    assert arrays.y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({}, r"holds no \.npz, no \.csv, no \.tsv, no \.parquet file"),
        ({"a.csv": "p,q\n1,2\n"}, r"a\.csv: none of the 2 columns is called 'y'; say which column is the label"),
        ({"a.csv": "p,Y\n1,2\n"}, r"a\.csv: none of the 2 columns is called 'y'; there is 'Y'"),
        ({"a.csv": ""}, r"a\.csv: the file is empty"),
        ({"a.csv": "p,y\n"}, r"a\.csv: there are no examples below the header"),
        ({"a.csv": "p,y\n1,0\n2,1\ncat,1\n"}, r"a\.csv, column 'p', row 4: not a number.*categorical='p'"),
        ({"a.csv": "p,y\n1,0\n1,0,1\n"}, r"a\.csv, row 3: the row does not have 2 cells"),
        ({"a.csv": "p,y\n1,0,1\n\n2\n"}, r"a\.csv, rows 2, 4: the row does not have 2 cells"),
        ({"a.csv": "1,2,0\n3,4,1\n"}, r"a\.csv: the first row is not a header: its cell in column 1, 2, 3 is a number"),
        ({"a.csv": "male,y\nmale,n\nfemale,y\n"}, r"a\.csv: the first row is not a header\. Put a row"),
        ({"a.csv": "p,y\n1,0\np,y\n"}, r"a\.csv, row 3: the row repeats the header"),
        ({"a.csv": "p,p,y\n1,2,0\n"}, r"a\.csv: the header has a name twice"),
        ({"a.csv": "p,y\n1e300,0\n"}, r"a\.csv, column 'p', row 2: larger than 1e\+30"),
        ({"a.csv": "p,y\n1,0\n2,\n3,?\n"}, r"a\.csv, column 'y', rows 3, 4: the label is missing"),
        ({"a.csv": "p,y\n1,0.5\n2,1\n"}, "the label 'y' has numbers that are not whole.*task='regression'"),
        ({"a.csv": "p,y\n1,0\n2,yes\n"}, r"a\.csv, column 'y', row 3: the label is a text, elsewhere it is a number"),
        ({"a.csv": "p,y\n1,Yes\n2,yes\n"}, r"a\.csv, column 'y', row 3: spelled elsewhere with other capitals"),
        ({"a.csv": "p,y\n1,0\n2,100000000\n"}, r"the label 'y' has whole numbers from 0 beyond 100000"),
        ({"a.csv": "p,y\n" + "".join(f"1,{i}\n" for i in range(30))}, "30 different values in 30 examples"),
        ({"a.csv": "p,y\n" + "".join(f"text{i},{i % 2}\n" for i in range(200))}, "column 'p' has 200 different texts"),
        ({"a.csv": "y\n0\n"}, r"a\.csv: there is no column beside 'y'"),
        (
            {"a.csv": "p,fax,y\n1,,0\ncat,,1\n2,,1\n", "b.csv": "p,fax,y\n1,?,0\n"},
            r"(?s)2 things to change:.*'p', row 3: not a number.*column 'fax' is empty in every file; ignore it",
        ),
        (
            {"a.csv": "p,q,y\n1,2,0\n", "b.csv": "p,y\n1,0\n", "c.csv": "p,q,y\n1,2,0\n"},
            r"b\.csv: it lacks the column 'q'",
        ),
        (
            {"a.csv": "p,y\n1,0\n", "b.csv": "p,y\n1,0\n", "c.csv": "p,secret,y\n1,2,0\n"},
            r"c\.csv: column 2 is in few of the other files",
        ),
        ({"a.csv": b"p,y\n1,0\n\xe9,1\n"}, r"a\.csv, row 3: this is not UTF-8 text"),
        ({"a.npz": b""}, r"a\.npz: it is broken or cut short"),
        ({"a.npz": b"garbage"}, r"a\.npz: it is broken or cut short"),
        ({"a.npz": b"PK\x03\x04garbage"}, r"a\.npz: it is broken or cut short"),
        ({"a.npz": {"x": X}}, r"a\.npz: it must hold the arrays 'x' and 'y'"),
        (
            {"a.npz": {"x": X, "y": Y[:4]}},
            r"a\.npz: it must hold examples and a label for each; .*\(6, 2\), 'y' \(4,\)",
        ),
        ({"a.npz": {"x": X[:0], "y": Y[:0]}}, r"a\.npz: it must hold examples"),
        ({"a.npz": {"x": X.astype(str), "y": Y}}, r"a\.npz: the array 'x' must be numbers"),
        ({"a.npz": {"x": X, "y": Y}, "b.npz": {"x": X[:, :1], "y": Y}}, r"different shapes: .*b\.npz \(1,\)"),
        ({"a.npz": {"x": X, "y": Y}, "a.csv": "p,q,y\n1,2,0\n"}, "two files of the same name"),
        ({"a.npz": {"x": X, "y": Y}, "b.csv": "p,y\n1,0\n"}, r"a\.npz: the other files are tables of 1 columns"),
    ],
)
def test_from_folder_refuses(files, text, tmp_path):
    for name, content in files.items():
        if isinstance(content, dict):
            np.savez(tmp_path / name, **content)
        else:
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=text):
        from_folder(tmp_path)


def test_everything_wrong_with_a_folder_is_said_at_once(tmp_path):
    (tmp_path / "north.csv").write_text("age,sex,y\n1,m,0\nold,f,1\n3,m,\n4,m,maybe\n")
    (tmp_path / "south.csv").write_text("age,y\n1,0\n2,1\n")
    (tmp_path / "west.csv").write_text("")
    np.savez(tmp_path / "east.npz", x=X)
    with pytest.raises(DataError) as caught:
        from_folder(tmp_path, ignore="pateint")
    assert str(caught.value).splitlines() == [
        f"{tmp_path} cannot be used yet; 7 things to change:",
        "  east.npz: it must hold the arrays 'x' and 'y'",
        "  west.csv: the file is empty; its first row must be a header",
        "  ignore names a column 'pateint'; no file has it",
        "  south.csv: it lacks the column 'sex' of other files; add it, if need be empty, or ignore it",
        "  north.csv, column 'age', row 3: not a number, unlike the other cells; correct it, or call the column "
        "categorical (categorical='age', --categorical age), or say which text means missing (missing='…', "
        "--missing …)",
        "  north.csv, column 'y', row 4: the label is missing; fill it in or remove the row",
        "  north.csv, column 'y', row 5: the label is a text, elsewhere it is a number",
    ]


def test_ignored_columns_do_not_count(tmp_path):
    (tmp_path / "a.csv").write_text("id,p,y\nA17,1,0\n")
    (tmp_path / "b.csv").write_text("p,note,y\n1,fine,1\n")
    arrays = from_folder(tmp_path, ignore=["id", "note"])
    assert [c.name for c in arrays.columns] == ["p"]


def test_options_that_contradict_each_other(tmp_path):
    (tmp_path / "a.csv").write_text("p,y\n1,0\n")
    with pytest.raises(ValueError, match="'p' is in ignore and in categorical"):
        from_folder(tmp_path, ignore="p", categorical="p")
    with pytest.raises(ValueError, match="'y' is the label"):
        from_folder(tmp_path, ignore="y")
    with pytest.raises(ValueError, match="column 'p,q'; no file has it; give several names with spaces between"):
        from_folder(tmp_path, ignore="p,q")
    with pytest.raises(ValueError, match="decimal=';' must be"):
        from_folder(tmp_path, decimal=";")


# ---- absurd sizes and hostile files


def test_from_folder_never_unpickles(tmp_path):
    """Arrays of objects are pickles inside: reading one could run code."""
    np.savez(tmp_path / "a.npz", x=np.array([[{}], [[]]], object), y=[0, 1])
    with pytest.raises(ValueError, match=r"a\.npz: the array 'x' holds Python objects"):
        from_folder(tmp_path)


def with_header(path, shape: tuple[int, ...], content: bytes) -> None:
    """An .npz whose array says that it has this shape."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("x.npy", stream.getvalue() + content)
        bundle.writestr("y.npy", stream.getvalue() + content)


def test_a_header_that_promises_too_much_is_refused_before_memory_is_taken(tmp_path):
    with_header(tmp_path / "a.npz", (10**12, 4), b"\0" * 64)
    with pytest.raises(ValueError, match=r"a\.npz: the array 'x' says that it has the shape \(1000000000000, 4\), but"):
        from_folder(tmp_path)


def test_an_archive_that_unpacks_to_more_than_memory_is_refused(tmp_path, monkeypatch):
    with_header(tmp_path / "a.npz", (10_000, 100), bytes(8_000_000))
    assert (tmp_path / "a.npz").stat().st_size < 100_000
    monkeypatch.setattr(npz, "memory", lambda: 15_000_000)
    with pytest.raises(ValueError, match=r"a\.npz: the array 'x' takes 0 GB in memory; this machine has 0 GB"):
        from_folder(tmp_path)


def test_the_memory_of_this_machine_is_known():
    assert npz.memory() > 100e6


def test_from_folder_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="There is no folder"):
        from_folder(tmp_path / "nowhere")


# ---- one file


def test_one_file_is_one_client_or_has_a_column_of_clients(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("site,p,y\nnorth,1,0\nsouth,2,1\nnorth,3,1\n")
    arrays = from_file(path, client="site")
    assert arrays.names == ("north", "south")
    assert arrays.group.tolist() == [0, 1, 0]
    assert [c.name for c in arrays.columns] == ["p"]
    assert from_file(path, name="everybody").names == ("everybody",)
    assert from_file(path).names == ("all",)
    with pytest.raises(ValueError, match="none of the 3 columns is called 'clinic'"):
        from_file(path, client="clinic")


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_a_lone_site_keeps_the_numbers_of_its_classes(tmp_path, suffix):
    """The other sites may have class 0."""
    if suffix == "npz":
        np.savez(tmp_path / "a.npz", x=X, y=Y + 1)
    else:
        (tmp_path / "a.csv").write_text("p,y\n1,1\n2,2\n1,3\n1,1\n1,2\n1,3\n")
    arrays = from_file(tmp_path / f"a.{suffix}")
    assert arrays.y.tolist() == [1, 2, 3, 1, 2, 3]
    assert arrays.classes == 4
    assert from_folder(tmp_path).y.tolist() == [0, 1, 2, 0, 1, 2]


def test_the_schema_tells_apart_what_must_not_be_mixed(tmp_path):
    def schema(text: str) -> tuple[str, ...]:
        header, *rows = text.split()
        (tmp_path / "a.csv").write_text("\n".join([header, *rows * 10]))
        return federate(from_file(tmp_path / "a.csv")).schema

    base = schema("p,q,y 1,a,0 2,b,1")
    assert base == schema("p,q,y 5,b,0 7,a,0"), "numbers and classes from 0 do not matter"
    others = [
        "q,p,y a,1,0 b,1,0",  # another order
        "p,q,y 1,a,0 2,c,1",  # other levels
        "p,q,y 1,a,no 2,b,yes",  # classes with names
        "p,q,y 1,1,0 2,2,1",  # another kind
        "p,q,y 1,a,0 2,b,1 ,b,1",  # cells are missing in p
        "p,q,y 1,a,0 2,b,1 3,,1",  # cells are missing in q
    ]
    assert len({base, *map(schema, others)}) == len(others) + 1
    np.savez(tmp_path / "b.npz", x=X, y=Y)
    assert federate(from_file(tmp_path / "b.npz")).schema == ()


# ---- frames, parquet, data sets of other libraries


def frame():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(
        {
            "hospital": ["north", "south", "north", "south"],
            "age": [50, 61.5, None, 40],
            "beds": pandas.array([1, None, 3, 4], dtype="Int64"),
            "sex": pandas.Categorical(["m", "f", None, "f"]),
            "smoker": [True, False, True, True],
            "sick": ["no", "yes", "no", "yes"],
        }
    )


def test_from_frame():
    arrays = from_frame(frame(), client="hospital", label="sick")
    assert arrays.names == ("north", "south")
    assert arrays.group.tolist() == [0, 1, 0, 1]
    assert arrays.class_names == ("no", "yes")
    assert [(c.name, c.kind, c.levels) for c in arrays.columns] == [
        ("age", "number", ()), ("beds", "number", ()), ("sex", "category", ("f", "m")), ("smoker", "number", ()),
    ]  # fmt: skip
    nan = np.nan
    np.testing.assert_array_equal(arrays.x, [[50, 1, 1, 1], [61.5, nan, 0, 0], [nan, 3, nan, 1], [40, 4, 0, 1]])


def test_from_frame_without_clients_is_spread_later():
    pandas = pytest.importorskip("pandas")
    arrays = from_frame(pandas.DataFrame({"p": np.arange(40.0), "y": np.arange(40) % 2}))
    assert arrays.group is None
    assert len(federate(arrays, partition="iid", clients=4)) == 4


def test_from_frame_refuses():
    made = frame()
    with pytest.raises(ValueError, match="label='sik': there is no such column; there is 'sick'"):
        from_frame(made, label="sik")
    made["when"] = made["age"].astype("datetime64[ns]")
    made["list"] = [[1], [2], [3], [4]]
    with pytest.raises(ValueError, match=r"(?s)column 'when': neither numbers nor texts.*column 'list': neither"):
        from_frame(made, label="sick")
    made = frame()
    made.loc[1, "hospital"] = None
    with pytest.raises(ValueError, match="column 'hospital', row 1: the client is missing"):
        from_frame(made, label="sick", client="hospital")
    with pytest.raises(ValueError, match="no examples"):
        from_frame(frame()[:0], label="sick")
    made = frame()
    made["when"] = made["age"].astype("datetime64[ns]")
    with pytest.raises(ValueError, match="column 'when': the client is neither a number nor a text"):
        from_frame(made, label="sick", client="when")
    made.columns = ["age", "age", *made.columns[2:]]
    with pytest.raises(ValueError, match="the frame has a column name twice"):
        from_frame(made, label="sick")


def test_parquet_is_read_as_a_frame(tmp_path):
    pytest.importorskip("pyarrow")
    made = frame()
    made.to_parquet(tmp_path / "all.parquet")
    one = from_file(tmp_path / "all.parquet", client="hospital", label="sick")
    two = from_frame(made, client="hospital", label="sick")
    np.testing.assert_array_equal(one.x, two.x)
    assert (one.columns, one.class_names, one.names) == (two.columns, two.class_names, two.names)
    for name in ("north", "south"):
        made[made.hospital == name].drop(columns="hospital").to_parquet(tmp_path / f"{name}.parquet")
    (tmp_path / "all.parquet").unlink()
    assert from_folder(tmp_path, label="sick").names == ("north", "south")
    (tmp_path / "west.parquet").write_bytes(b"garbage")
    made[:0].to_parquet(tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match=r"(?s)empty\.parquet: there are no examples.*west\.parquet: this is not a"):
        from_folder(tmp_path, label="sick")
    (tmp_path / "west.parquet").unlink()
    (tmp_path / "empty.parquet").unlink()
    with pytest.raises(ValueError, match=r"north\.parquet, south\.parquet: none of the 5 columns is called 'y'"):
        from_folder(tmp_path)


def test_numbers_that_a_frame_calls_categories_are_categories(tmp_path):
    pytest.importorskip("pyarrow")
    made = frame()
    made["ward"] = made["age"].fillna(7).astype(int).astype("category")
    made = made[made.smoker]  # pandas keeps the row numbers, and writes them as a column of their own
    made.to_parquet(tmp_path / "all.parquet")
    of_file = from_file(tmp_path / "all.parquet", client="hospital", label="sick")
    for arrays in (from_frame(made, client="hospital", label="sick"), of_file):
        kinds = {c.name: (c.kind, c.levels) for c in arrays.columns}
        assert kinds["ward"] == ("category", ("7", "40", "50"))
        assert list(kinds) == ["age", "beds", "sex", "smoker", "ward"]


def test_several_labels():
    labels = np.array([[0, 1], [1, 1], [0, 0], [1, 0], [0, 1], [1, 0]])
    arrays = from_arrays(X, labels, task="multilabel")
    assert (arrays.y.dtype, arrays.classes, arrays.outputs, arrays.multilabel) == (np.float32, 0, 2, True)
    with pytest.raises(ValueError, match="must be 0 or 1"):
        from_arrays(X, labels * 2, task="multilabel")
    with pytest.raises(ValueError, match="say task='multilabel'"):
        from_arrays(X, labels)
    made = from_frame(frame().assign(fall=[1, 0, 0, 1]), client="hospital", label=["sick", "fall"], task="multilabel")
    assert made.y.tolist() == [[0, 1], [1, 0], [0, 0], [1, 1]]
    table = HuggingFace({"age": [1, 2], "a": [0, 1], "b": ["no", "yes"], "site": ["n", "s"]})
    assert from_dataset(table, client="site", label=["a", "b"], task="multilabel").y.tolist() == [[0, 0], [1, 1]]


def test_from_torch_data_sets():
    whole = TensorDataset(torch.tensor(X).float(), torch.tensor(Y))
    arrays = from_dataset(whole, client=list("aabbab"))
    assert arrays.names == ("a", "b")
    np.testing.assert_array_equal(arrays.x, X)
    parts = from_dataset({"south": TensorDataset(torch.tensor(X[:2]), torch.tensor(Y[:2])), "north": [(X[2], 2)]})
    assert parts.names == ("north", "south")
    assert parts.group.tolist() == [1, 1, 0]
    tokens = from_dataset(TensorDataset(torch.arange(12).reshape(6, 2), torch.tensor(Y)))
    assert tokens.x.dtype == np.int64
    with pytest.raises(ValueError, match=r"must be a pair \(x, y\)"):
        from_dataset([1, 2])
    with pytest.raises(ValueError, match="different shapes"):
        from_dataset([(np.zeros(2), 0), (np.zeros(3), 0)])
    with pytest.raises(ValueError, match="names the clients itself"):
        from_dataset({"a": whole}, client=["a"] * 6)
    with pytest.raises(ValueError, match="ignore: a torch data set has no columns"):
        from_dataset(whole, ignore="p")


class HuggingFace:
    """What we use of `datasets.Dataset`."""

    def __init__(self, columns):
        self._columns = columns
        self.column_names = list(columns)

    def __getitem__(self, name):
        return self._columns[name]


def test_from_hugging_face_data_sets():
    from PIL import Image

    whose = ["n", "n", "s"]
    table = HuggingFace({"age": [1, None, 3], "sex": ["m", "f", None], "label": [0, 1, 0], "site": whose})
    arrays = from_dataset(table, client="site", categorical="age")
    assert [(c.name, c.levels) for c in arrays.columns] == [("age", ("1", "3")), ("sex", ("f", "m"))]
    assert arrays.names == ("n", "s")
    tokens = HuggingFace({"ids": [[1, 2], [3, 4], [5, 6]], "label": ["neg", "pos", "neg"], "site": whose})
    arrays = from_dataset(tokens, client="site", inputs="ids")
    assert (arrays.x.dtype, arrays.class_names) == (np.int64, ("neg", "pos"))
    pictures = [Image.fromarray(np.full((4, 5, 3), v, np.uint8)) for v in (0, 51, 255)]
    arrays = from_dataset(HuggingFace({"image": pictures, "label": [0, 1, 0]}), inputs="image")
    assert arrays.shape == (3, 4, 5)
    np.testing.assert_allclose(arrays.x[:, 0, 0, 0], [0, 0.2, 1])
    with pytest.raises(ValueError, match="client='who': the data set has the columns ids, label, site"):
        from_dataset(tokens, client="who", inputs="ids")
    with pytest.raises(ValueError, match="given: shade"):
        from_dataset(table, client="site", shade=1)


HOSPITALS = {
    "age": [50, None, 61, 40, 39, 70], "sex": ["m", "f", None, "f", "m", "f"],
    "smoker": [True, False, None, True, True, False], "site": [1, 1, 1, 0, 0, 0], "label": [1, 0, 1, 0, 1, 0],
}  # fmt: skip


def test_real_hugging_face_data_sets(tmp_path):
    """The package itself, whose columns, formats and features a stand-in does not have."""
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed: pip install datasets")
    names = {"site": ["south", "north"], "label": ["well", "ill"]}  # neither is in sorted order
    types = {"age": datasets.Value("int64"), "sex": datasets.Value("string"), "smoker": datasets.Value("bool")}
    types |= {name: datasets.ClassLabel(names=own) for name, own in names.items()}
    hospitals = datasets.Dataset.from_dict(HOSPITALS, features=datasets.Features(types))
    for kind in (None, "numpy", "torch", "pandas"):  # what the user set for other purposes
        arrays = from_dataset(hospitals.with_format(kind), client="site")
        assert [(c.name, c.kind) for c in arrays.columns] == [
            ("age", "number"), ("sex", "category"), ("smoker", "number"),
        ]  # fmt: skip
        assert (arrays.names, arrays.group.tolist()) == (("north", "south"), [0, 0, 0, 1, 1, 1])
        assert (arrays.class_names, arrays.y.tolist()) == (("well", "ill"), HOSPITALS["label"])
    parts = {"b": hospitals.select(range(3)), "a": hospitals.select(range(3, 6))}
    by_client = from_dataset(parts, ignore="site")
    assert (by_client.names, by_client.group.tolist()) == (("a", "b"), [1, 1, 1, 0, 0, 0])
    with pytest.raises(ValueError, match="holds splits \\(train, test\\), not clients"):
        from_dataset(datasets.DatasetDict(train=hospitals, test=hospitals), client="site")
    with pytest.raises(ValueError, match="must be the name of the column") as error:
        from_dataset(hospitals, client=["SECRET"] * 6)
    assert "SECRET" not in str(error.value)
    unlabeled = datasets.Dataset.from_dict({**HOSPITALS, "label": [1, -1, 1, 0, 1, 0]}, features=hospitals.features)
    with pytest.raises(ValueError, match="column 'label', row 1: the label is missing"):
        from_dataset(unlabeled, client="site")
    # arrays: tokens and images
    tokens = datasets.Dataset.from_dict(
        {"ids": [[k, k + 1] for k in range(6)], "label": [0, 1] * 3, "site": list("nnnsss")}
    )
    tokens = tokens.cast_column("label", datasets.ClassLabel(names=["spam", "ham"]))
    arrays = from_dataset(tokens.with_format("torch"), client="site", inputs="ids")
    assert (arrays.x.dtype, arrays.class_names, arrays.y.tolist()) == (np.int64, ("spam", "ham"), [0, 1] * 3)
    pictures = [np.full((4, 5, 3), v, np.uint8) for v in (0, 51, 255)]
    types = {"image": datasets.Image(), "label": datasets.Value("int64")}
    images = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1, 0]}, features=datasets.Features(types))
    arrays = from_dataset(images, inputs="image")
    np.testing.assert_allclose(arrays.x[:, 0, 0, 0], [0, 0.2, 1])
    gap = datasets.Dataset.from_dict({"x": [[1.0]] * 5 + [None], "label": [0, 1] * 3, "site": list("nnnsss")})
    with pytest.raises(ValueError, match="Column 'x' is empty in 1 examples"):
        from_dataset(gap, client="site", inputs="x")
    # and the whole way to a model
    many = datasets.concatenate_datasets([hospitals] * 10)
    made = fedkin.run("fedavg", federate(from_dataset(many, client="site")), rounds=1, out=tmp_path / "run")
    assert made.clients == ("north", "south")
    assert set(made.predict("north", many.to_pandas()[:4].assign(label=0))) <= {"well", "ill"}


# ---- the whole way


def test_a_folder_can_be_loaded_again_from_the_description(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        lines = [f"{rng.normal():.2f};{'mf'[rng.integers(2)]};{['no', 'yes'][i % 2]}" for i in range(30)]
        (tmp_path / f"{name}.csv").write_text("age;sex;sick\n" + "\n".join(lines))
    made = federate(from_folder(tmp_path, label="sick"), seed=3)
    stored = json.loads(json.dumps(made.description))
    options = stored.pop("partition_options")
    again = federate(**stored, **options)
    assert again.fingerprint() == made.fingerprint()
    assert again.description == made.description
    with pytest.raises(ValueError, match="cannot be loaded again by name"):
        federate("own")
