"""Preprocessing: fitted on training examples, shared as statistics, stored as JSON, applied to new examples."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from fedkin.data import from_file, from_folder
from fedkin.data.encode import Column, Reading
from fedkin.data.federation import federate, site_statistics
from fedkin.data.preprocess import ColumnStatistics, Preprocessing, agreed, fitted, pooled, scales, statistics

NUMBER, COLOR = Column("size", "number"), Column("color", "category", ("blue", "green", "red"))


def table(rng: np.random.Generator, count: int) -> np.ndarray:
    made = np.stack([rng.normal(5, 3, count), rng.integers(0, 3, count).astype(float)], axis=1)
    made[rng.random(made.shape) < 0.2] = np.nan
    return made


# ---- what sites share


@given(seed=st.integers(0, 1000), parts=st.integers(1, 5))
def test_pooled_statistics_are_those_of_all_examples(seed, parts):
    rng = np.random.default_rng(seed)
    tables = [table(rng, int(rng.integers(1, 40))) for _ in range(parts)]
    measured = [pooled(own) for own in zip(*(statistics(t, (NUMBER, COLOR)) for t in tables))]
    whole = statistics(np.concatenate(tables), (NUMBER, COLOR))
    for one, two in zip(measured, whole):
        assert (one.known, one.missing, one.levels) == (two.known, two.missing, two.levels)
        np.testing.assert_allclose(one[2:4], two[2:4], rtol=1e-9, atol=1e-9)


def test_statistics_by_hand():
    cells = np.array([[1.0, 2.0], [3.0, np.nan], [np.nan, 2.0], [5.0, 0.0]])
    size, color = statistics(cells, (NUMBER, COLOR))
    assert size == ColumnStatistics(3, 1, 3.0, 8 / 3)
    assert color == ColumnStatistics(3, 1, levels=("blue", "red"))


# ---- features


def test_features_by_hand():
    measured = {"a": statistics(np.array([[1.0, 2.0], [3.0, np.nan], [np.nan, 0.0]]), (NUMBER, COLOR))}
    made = fitted((NUMBER, COLOR), measured, "sites", reading=Reading())
    assert made.feature_names == ("size", "size missing", "color=blue", "color=red", "color missing")
    new = made.recoded(np.array([[5.0, 2.0], [np.nan, 1.0], [2.0, np.nan]]), (NUMBER, COLOR))
    expected = [
        [3, 0, 0, 1, 0],  # mean 2, standard deviation 1
        [0, 1, 0, 0, 1],  # green was never seen: as if missing
        [0, 0, 0, 0, 1],
    ]
    np.testing.assert_allclose(made.features(new), expected)
    assert made.features(new).dtype == np.float32


def test_numbers_are_standardized_as_scikit_learn_does():
    rng = np.random.default_rng(0)
    x = rng.normal(10, 4, (50, 3))
    columns = tuple(Column(f"c{k}", "number") for k in range(3))
    made = fitted(
        columns, {"a": statistics(x[:30], columns), "b": statistics(x[30:], columns)}, "sites", reading=Reading()
    )
    np.testing.assert_allclose(made.features(x), StandardScaler().fit_transform(x), rtol=1e-5, atol=1e-5)


def test_a_column_that_never_changes_is_centered_and_one_without_values_is_zero():
    measured = {"a": statistics(np.array([[0.1, np.nan]] * 3), (NUMBER, NUMBER)),
            "b": statistics(np.array([[0.1, 7.0]] * 3), (NUMBER, NUMBER))}  # fmt: skip
    made = fitted((NUMBER, NUMBER), measured, "each", reading=Reading())
    x = np.array([[0.1, 8.0], [1.1, np.nan]])
    np.testing.assert_allclose(made.features(x, "a"), [[0, 0, 0], [1, 0, 1]], atol=1e-6)
    np.testing.assert_allclose(made.features(x, "b"), [[0, 1, 0], [1, 0, 1]], atol=1e-6)


def test_a_column_missing_everywhere_is_refused():
    measured = {"a": statistics(np.full((3, 2), np.nan), (NUMBER, COLOR))}
    with pytest.raises(ValueError, match=r"(?s)column 'size' is missing in every training example.*column 'color'"):
        fitted((NUMBER, COLOR), measured, "each", reading=Reading())


def test_fit_has_two_values():
    with pytest.raises(ValueError, match="fit='all' must be 'each'"):
        fitted((NUMBER,), {}, "all", reading=Reading())


def test_each_client_by_its_own_numbers_with_the_features_of_all():
    north, south = np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([[10.0, 2.0], [np.nan, 2.0], [30.0, 2.0]])
    measured = {"north": statistics(north, (NUMBER, COLOR)), "south": statistics(south, (NUMBER, COLOR))}
    made = fitted((NUMBER, COLOR), measured, "each", reading=Reading())
    assert made.fit == "each"
    assert made.feature_names == ("size", "size missing", "color=blue", "color=red")
    codes = made.recoded(np.array([[3.0, 2.0]]), (NUMBER, COLOR))
    np.testing.assert_allclose(made.features(codes, "north"), [[1, 0, 0, 1]])
    np.testing.assert_allclose(made.features(codes, "south"), [[-1.7, 0, 0, 1]], rtol=1e-6)
    with pytest.raises(ValueError, match=r"say whose \(client=…, one of north, south\)"):
        made.features(codes)
    both = fitted((NUMBER, COLOR), measured, "sites", reading=Reading())
    assert both.fit == "sites"
    np.testing.assert_array_equal(both.features(codes, "north"), both.features(codes))


# ---- from files


HEADER = "age,sex,note,sick\n"
NORTH = HEADER + "10,m,x,no\n20,f,x,yes\n30,?,y,no\n40,m,y,yes\n" * 6
SOUTH = HEADER + "100,f,x,no\n200,f,x,yes\n,f,x,no\n400,f,y,no\n" * 6


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "sites"
    folder.mkdir()
    (folder / "north.csv").write_text(NORTH)
    (folder / "south.csv").write_text(SOUTH)
    return folder


@pytest.mark.parametrize("fit", ["each", "sites"])
def test_fitted_on_training_examples_alone(folder, fit):
    arrays = from_folder(folder, label="sick")
    made = federate(arrays, fit=fit, seed=4)
    assert made.description["fit"] == fit
    other = arrays.x.copy()
    for split in made.splits:
        for part in (split.validation, split.test):
            other[part, 0] *= 1000  # what is not trained on has no say
    again = federate(replace(arrays, x=other), fit=fit, seed=4)
    assert again.preprocessing == made.preprocessing
    x = np.concatenate([made.data(i).x.numpy() for i in range(2)]) if fit == "sites" else made.data(1).x.numpy()
    age = x[x[:, 1] == 0, 0] if made.preprocessing.feature_names[1] == "age missing" else x[:, 0]
    np.testing.assert_allclose([age.mean(), age.std()], [0, 1], atol=1e-5)
    assert made.data(0).x.dtype.is_floating_point


def test_the_features_of_a_federation(folder):
    made = federate(from_folder(folder, label="sick", ignore="note"))
    names = made.preprocessing.feature_names
    assert names == ("age", "age missing", "sex=f", "sex=m", "sex missing")
    assert made.shape == (5,)
    assert (made.classes, made.names) == (2, ("north", "south"))
    x = made.examples(0, made.splits[0].train).x.numpy()
    assert (x[:, 2:].sum(1) == 1).all()


@pytest.mark.parametrize("fit", ["each", "sites"])
def test_new_examples_in_another_order_and_with_unseen_levels(folder, tmp_path, fit):
    made = federate(from_folder(folder, label="sick"), fit=fit)
    stored = Preprocessing.from_json(json.loads(json.dumps(made.description["preprocessing"])))
    assert stored == made.preprocessing
    new = tmp_path / "new.tsv"
    new.write_text("extra\tnote\tsex\tage\n1\tx\tm\t10\n2\tz\tdiverse\t\n")
    x = stored.transform(new, client="north")
    known = tmp_path / "known.csv"
    known.write_text("age,sex,note,sick\n10,m,x,yes\n,,,no\n")
    np.testing.assert_array_equal(x, stored.transform(known, client="north"))
    assert stored.labels(known).tolist() == [1, 0]
    # the same numbers as in training
    index = int(made.splits[0].train[0])
    row = NORTH.splitlines()[1 + index]
    known.write_text(HEADER + row + "\n")
    np.testing.assert_array_equal(stored.transform(known, "north"), made.arrays.x[[index]])


def test_new_examples_that_do_not_fit(folder, tmp_path):
    made = federate(from_folder(folder, label="sick"), fit="sites").preprocessing
    new = tmp_path / "new.csv"
    for text, message in [
        ("age,note\n1,x\n", r"new\.csv: none of the 2 columns is called 'sex'.*add it with empty cells"),
        ("age,sex,note\nold,m,x\n", r"new\.csv, column 'age', row 2: not a number"),
        ("age,sex,note\n", r"new\.csv: there are no examples below the header"),
    ]:
        new.write_text(text)
        with pytest.raises(ValueError, match=message):
            made.transform(new)
    new.write_text("age,sex,note,sick\n1,m,x,maybe\n")
    with pytest.raises(ValueError, match=r"new\.csv, column 'sick', row 2: the label is none of the 2 known classes"):
        made.labels(new)
    new.write_text("age,sex,note\n1,m,x\n")
    with pytest.raises(ValueError, match="there is no column 'sick'"):
        made.labels(new)
    with pytest.raises(ValueError, match="There is no file"):
        made.transform(tmp_path / "nowhere.csv")


def test_a_newcomer_brings_its_own_scales(folder, tmp_path):
    each = federate(from_folder(folder, label="sick")).preprocessing
    (tmp_path / "east.csv").write_text(HEADER + "1,m,x,no\n3,f,x,yes\n")
    more = each.with_client("east", tmp_path / "east.csv")
    np.testing.assert_allclose(more.transform(tmp_path / "east.csv", "east")[:, 0], [-1, 1])
    assert more.scales["north"] == each.scales["north"]
    assert more.feature_names == each.feature_names
    sites = federate(from_folder(folder, label="sick"), fit="sites").preprocessing
    assert sites.with_client("east", tmp_path / "east.csv") is sites


def test_a_given_preprocessing_is_applied_not_fitted(folder):
    base = federate(from_folder(folder, label="sick"), fit="sites")
    (folder / "north.csv").write_text(NORTH.replace("10,", "90,"))
    again = federate(from_folder(folder, label="sick"), preprocessing=base.description["preprocessing"])
    assert again.preprocessing == base.preprocessing
    with pytest.raises(ValueError, match="This data is not a table"):
        federate("digits", preprocessing=base.preprocessing)


def test_nothing_of_a_person_is_in_what_is_stored(folder):
    """Means, variances as scales, names of columns, levels and classes; no cell of a number column."""
    (folder / "north.csv").write_text(NORTH.replace("10,", "12345.678,"))
    made = federate(from_folder(folder, label="sick"), fit="sites")
    assert "12345" not in json.dumps(made.description)


def test_scales_of_large_numbers_with_little_spread():
    x = np.array([[1e9], [1e9 + 1], [1e9 + 2]])
    ((mean, factor),) = scales(statistics(x, (NUMBER,)), (NUMBER,))
    np.testing.assert_allclose((x[:, 0] - mean) * factor, [-1.224745, 0, 1.224745], atol=1e-6)


# ---- sites that are apart


@pytest.mark.parametrize("fit", ["each", "sites"])
@pytest.mark.parametrize("source", ["folder", "heart"])
def test_sites_that_share_statistics_have_the_numbers_of_a_simulation(folder, tmp_path, real_data, fit, source):
    """One site lacks the class yes, another a level, a third every cell of a column."""
    options = {"label": "sick", "ignore": "note"}
    if source == "folder":
        (folder / "east.csv").write_text("sex,age,sick,note\n" + "m,,no,x\n" * 12)
    else:
        files = real_data("heart/processed.va.data") / "heart"
        options = {"label": "num", "categorical": ("sex", "cp", "fbs", "restecg", "exang", "slope", "thal")}
        names = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num\n"
        for path in folder.iterdir():
            path.unlink()
        for path in files.glob("processed.*.data"):
            (folder / f"{path.name.split('.')[1]}.csv").write_text(names + path.read_text())
    whole = federate(from_folder(folder, **options), fit=fit, seed=2)
    sites = {path.stem: from_file(path, **options) for path in sorted(folder.iterdir())}
    by_site = {name: site_statistics(arrays, fit=fit, seed=2) for name, arrays in sites.items()}
    by_site = json.loads(json.dumps(by_site))
    made = agreed(by_site, fit, reading=whole.preprocessing.reading)
    assert made.feature_names == whole.preprocessing.feature_names
    assert made.classes == whole.preprocessing.classes
    for client, arrays in enumerate(sites.values()):
        site = federate(arrays, preprocessing=json.loads(json.dumps(made.to_json())), seed=2)
        assert (site.shape, site.classes, site.schema) == (whole.shape, whole.classes, whole.schema)
        for one, two in zip((site.data(0).train, site.test(0)), (whole.data(client).train, whole.test(client))):
            np.testing.assert_allclose(one.x, two.x, rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(one.y, two.y)


def test_only_what_is_said_is_shared(folder):
    arrays = from_file(folder / "north.csv", label="sick")
    each, sites = (site_statistics(arrays, fit=fit) for fit in ("each", "sites"))
    assert each == {
        "columns": [
            {"name": "age", "kind": "number", "levels": [], "known": 1, "missing": 0},
            {"name": "sex", "kind": "category", "levels": ["f", "m"], "known": 1, "missing": 1},
            {"name": "note", "kind": "category", "levels": ["x", "y"], "known": 1, "missing": 0},
        ],
        "classes": ["no", "yes"],
        "task": "classification",
        "targets": [],
    }
    assert sites["columns"][0].keys() == {"name", "kind", "levels", "known", "missing", "mean", "variance"}


@pytest.mark.parametrize("fit", ["each", "sites"])
def test_a_mean_that_would_be_a_cell_is_not_shared(tmp_path, fit):
    """Seen in `heart`: one hospital has a single known cell in a column, and its mean is that cell."""
    rows = [f"{k},{'4711.25' if k in (3, 8) else ''},{k % 2}" for k in range(20)]
    (tmp_path / "a.csv").write_text("age,rare,y\n" + "\n".join(rows) + "\n")
    sent = site_statistics(from_file(tmp_path / "a.csv"), fit=fit, test=0.05, validation=0.0)
    assert "4711" not in json.dumps(sent)
    age, rare = sent["columns"]
    if fit == "sites":
        assert (rare["known"], rare["mean"], rare["variance"]) == (0, 0.0, 0.0)
        assert age["known"] + age["missing"] == rare["known"] + rare["missing"]
    (tmp_path / "b.csv").write_text("age,cost\n" + "".join(f"{k},47.25\n" for k in range(3)))
    sent = site_statistics(from_file(tmp_path / "b.csv", label="cost", task="regression"), fit=fit, test=0.3)
    assert "47.25" not in json.dumps(sent)


def test_sites_that_do_not_fit_together(folder, tmp_path):
    def shared_by(text: str, **options) -> dict:
        (tmp_path / "site.csv").write_text(text)
        return site_statistics(from_file(tmp_path / "site.csv", **options))

    base = shared_by("p,q,y\n" + "1,2,no\n1,2,yes\n" * 5)
    for other, message in [
        (shared_by("p,y\n" + "1,no\n" * 5), "b: it lacks the column 'q' of other sites"),
        (shared_by("p,q,r,y\n" + "1,2,3,no\n" * 5), "a: it lacks the column 'r' of other sites"),
        (shared_by("p,q,y\n" + "1,a,no\n" * 5), "b, column 'q': it is numbers at one site and texts at another"),
        (shared_by("p,q,y\n" + "1,2,0\n" * 5), "labels are numbers at some sites and texts at others"),
        (shared_by("p,q,y\n" + "1,2,3\n" * 5, task="regression"), "b: its task is regression"),
    ]:
        with pytest.raises(ValueError, match=message):
            agreed({"a": base, "b": other}, "each", reading=Reading())
    with pytest.raises(ValueError, match="Only a site's own table has statistics"):
        site_statistics(from_folder(folder, label="sick"))


def test_a_class_that_was_never_seen_is_refused(folder, tmp_path):
    base = federate(from_folder(folder, label="sick")).preprocessing
    path = tmp_path / "east.csv"
    path.write_text(HEADER + "1,m,x,secretly\n2,f,x,no\n" * 10)
    with pytest.raises(ValueError, match="The data has 1 classes that the given preprocessing does not know") as caught:
        federate(from_file(path, label="sick"), preprocessing=base)
    assert "secretly" not in str(caught.value)


def test_a_newcomer_with_one_class_keeps_its_number(folder, tmp_path):
    base = federate(from_folder(folder, label="sick")).preprocessing
    path = tmp_path / "east.csv"
    path.write_text(HEADER + "1,m,x,yes\n2,f,x,yes\n" * 10)
    made = federate(from_file(path, label="sick"), preprocessing=base)
    assert set(made.data(0).y.tolist()) == {1}
    assert made.classes == 2
