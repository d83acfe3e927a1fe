"""The four hospitals of UCI Heart Disease."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from fedkin.data import files, load
from fedkin.data.federation import federate

FILES = [f"heart/processed.{name}.data" for name in ("cleveland", "hungarian", "switzerland", "va")]
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def test_four_hospitals(real_data):
    arrays = load("heart", real_data(*FILES))
    assert arrays.names == HOSPITALS
    assert np.bincount(arrays.group).tolist() == [303, 294, 123, 200]
    assert [int((arrays.y[arrays.group == g]).sum()) for g in range(4)] == [139, 106, 115, 149]
    assert arrays.class_names == ("no", "yes")
    kinds = {c.name: c.kind for c in arrays.columns}
    assert len(kinds) == 13
    assert kinds["sex"] == kinds["thal"] == "category"
    assert kinds["age"] == kinds["ca"] == "number"
    assert next(c.levels for c in arrays.columns if c.name == "cp") == (
        "1",
        "2",
        "3",
        "4",
    )  # 1.0 in one file, 1 elsewhere
    missing = {c.name: int(np.isnan(arrays.x[:, k]).sum()) for k, c in enumerate(arrays.columns)}
    assert missing["ca"] == 4 + 291 + 118 + 198
    assert missing["chol"] == 30 + 123 + 49  # a cholesterol of 0 was not measured
    assert missing["age"] == 0


@pytest.mark.parametrize("fit", ["each", "sites"])
def test_hospitals_are_the_clients(real_data, fit):
    fed = federate("heart", data_dir=real_data(*FILES), fit=fit)
    assert fed.names == HOSPITALS
    assert fed.shape == (len(fed.preprocessing.feature_names),)
    assert np.isfinite(fed.arrays.x).all()
    again = federate(**{k: v for k, v in fed.description.items() if k != "partition_options"}, data_dir=real_data())
    assert again.fingerprint() == fed.fingerprint()
    assert len(federate("heart", partition="iid", clients=8, data_dir=real_data())) == 8
    with pytest.raises(
        ValueError, match=r"clients=8: the data has 4 clients \(cleveland, hungarian, switzerland, va\)"
    ):
        federate("heart", clients=8, data_dir=real_data())


def test_it_is_fetched_and_unpacked(real_data, tmp_path, monkeypatch):
    source = real_data(*FILES)

    def archive(folder, sources, *, what):
        ((name, (address, _)),) = sources.items()
        assert address == "https://archive.ics.uci.edu/static/public/45/heart+disease.zip"
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / name, "w") as bundle:
            for file in FILES:
                bundle.write(source / file, file.removeprefix("heart/"))

    monkeypatch.setattr("fedkin.data.heart.fetch", archive)
    assert len(load("heart", tmp_path).y) == 920
    monkeypatch.setattr("fedkin.data.heart.fetch", files.fetch)
    assert len(load("heart", tmp_path).y) == 920  # nothing is fetched again


def test_a_file_that_is_cut_short(real_data, tmp_path):
    (tmp_path / "heart").mkdir()
    for file in FILES:
        text = (real_data(*FILES) / file).read_text()
        (tmp_path / file).write_text(text if "va" not in file else text[: len(text) // 2 + 40])
    with pytest.raises(ValueError, match=r"processed\.va\.data"):
        load("heart", tmp_path)


def test_new_patients_are_read_as_the_old_ones(real_data, tmp_path):
    fed = federate("heart", data_dir=real_data(*FILES))
    names = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,disease\n"
    text = (real_data() / FILES[2]).read_text()
    (tmp_path / "new.csv").write_text(names + text)
    with pytest.raises(ValueError, match="the label is none of the 2 known classes"):  # it is a number there
        fed.preprocessing.labels(tmp_path / "new.csv")
    own = np.flatnonzero(load("heart", real_data()).group == 2)
    np.testing.assert_array_equal(fed.preprocessing.transform(tmp_path / "new.csv", "switzerland"), fed.arrays.x[own])
