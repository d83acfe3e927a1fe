"""The user's own data: what is taken, and what is refused with which words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin.data import Arrays, from_arrays, from_folder

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
    ("x", "y", "text"),
    [
        (X[:5], Y, "x has 5 rows and y has 6"),
        (X[:, 0], Y, r"x must be \[rows, features…\]"),
        (X[:, :0], Y, r"x must be \[rows, features…\]; it has shape \(6, 0\)"),
        (X[:0], Y[:0], "no rows"),
        (np.where(X > 9, np.nan, X), Y, "1 rows of x hold NaN or infinity"),
        (np.where(X > 7, np.inf, X), Y, "2 rows of x hold NaN or infinity"),
        (X.astype(str), Y, "x must be numbers"),
        (X.astype(object), Y, "x must be numbers"),
        (X.astype(complex), Y, "x must be numbers"),
        (X, Y + 0.5, "y must be one whole number a row"),
        (X, Y - 1, r"Labels run from -1 to 1; with 2 classes they must lie in 0\.\.1"),
        (X, Y[:, None], "y must be one whole number a row"),
        (X, np.array(list("abcabc")), "y must be one whole number a row"),
        (X, np.where(Y, np.nan, 0), "y must be one whole number a row"),
        (X, np.where(Y, np.inf, 0), "y must be one whole number a row"),
        (X, Y.astype(object), "y must be one whole number a row"),
    ],
)
def test_from_arrays_refuses(x, y, text):
    with pytest.raises(ValueError, match=text):
        from_arrays(x, y)


def test_from_arrays_refuses_clients_that_do_not_fit():
    with pytest.raises(ValueError, match="for each of the 6 rows"):
        from_arrays(X, Y, client=[1, 2])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"y": Y.astype(float)}, "y must be int64"),
        ({"y": Y[:, None]}, "y must be int64"),
        ({"image": True}, r"Images must be \[rows, height, width, channels\]"),
        ({"classes": 2}, "Labels run from 0 to 2"),
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
    assert arrays.ordered
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
    assert from_folder(tmp_path).names == ("a", "b")


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({}, r"holds no \.npz and no \.csv file"),
        ({"a.csv": "p,q\n1,2\n"}, r"a\.csv must have a column 'y'; its columns are p, q"),
        ({"a.csv": ""}, r"a\.csv must have a column 'y'"),
        ({"a.csv": "p,y\n"}, r"a\.csv has no rows below its header"),
        ({"a.csv": "p,y\n1,0\n,1\n"}, r"a\.csv: .*All columns must be numbers"),
        ({"a.csv": "p,y\n1,0\ncat,1\n"}, r"a\.csv: .*'cat'.*All columns must be numbers"),
        ({"a.csv": "p,y\n1,0\n1,0,1\n"}, r"a\.csv: .*columns"),
        ({"a.csv": "p,y\n1,0,1\n"}, r"a\.csv names 2 columns in its header and has 3 below it"),
        (
            {"a.csv": "p,q,y\n1,2,0\n", "b.csv": "q,p,y\n1,2,0\n"},
            r"b\.csv has the columns q, p, y; another file has p, q, y",
        ),
        ({"a.csv": "p,y\nnan,0\n"}, "1 rows of x hold NaN"),
        ({"a.csv": "y\n0\n"}, r"a\.csv must hold rows and a label for each; x has shape \(1, 0\)"),
        ({"a.npz": b""}, r"a\.npz is broken or cut short"),
        ({"a.npz": b"garbage"}, r"a\.npz is broken or cut short"),
        ({"a.npz": b"PK\x03\x04garbage"}, r"a\.npz is broken or cut short"),
        ({"a.npz": {"x": X}}, r"a\.npz must hold arrays 'x' and 'y'; it holds x"),
        ({"a.npz": {"x": X, "y": Y[:4]}}, r"a\.npz must hold rows and a label for each; .*\(6, 2\), y \(4,\)"),
        ({"a.npz": {"x": X[:0], "y": Y[:0]}}, r"a\.npz must hold rows"),
        ({"a.npz": {"x": X, "y": Y}, "b.npz": {"x": X[:, :1], "y": Y}}, r"b\.npz has rows of shape \(1,\)"),
        ({"a.npz": {"x": X, "y": Y}, "a.csv": "p,q,y\n1,2,0\n"}, "of the same name"),
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_from_folder_refuses(files, text, tmp_path):
    for name, content in files.items():
        if isinstance(content, dict):
            np.savez(tmp_path / name, **content)
        else:
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=text):
        from_folder(tmp_path)


def test_from_folder_never_unpickles(tmp_path):
    """Arrays of objects are pickles inside: reading one could run code."""
    np.savez(tmp_path / "a.npz", x=np.array([[{}], [[]]], object), y=[0, 1])
    with pytest.raises(ValueError, match=r"a\.npz is broken or cut short .*[Oo]bject arrays.*npz of numbers"):
        from_folder(tmp_path)


def test_from_folder_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="There is no folder"):
        from_folder(tmp_path / "nowhere")
