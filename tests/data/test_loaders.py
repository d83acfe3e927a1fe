"""Every loader on small files in the official format, and on the real ones where they are."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from fedkin.data import load
from tests.data.test_files import archive, idx, offline  # noqa: F401

RNG = np.random.default_rng(0)


def bytes_of(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


# ---- MNIST and Fashion-MNIST


def write_idx(folder: Path, train: int = 30, test: int = 20, *, zipped: bool = True) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    made = {
        "train-images-idx3-ubyte": bytes_of(train, 28, 28),
        "train-labels-idx1-ubyte": np.arange(train, dtype=np.uint8) % 10,
        "t10k-images-idx3-ubyte": bytes_of(test, 28, 28),
        "t10k-labels-idx1-ubyte": np.arange(test, dtype=np.uint8)[::-1] % 10,
    }
    for name, array in made.items():
        content = idx(array)
        (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(content) if zipped else content)
    return made


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx(name, zipped, tmp_path):
    made = write_idx(tmp_path / name, zipped=zipped)
    arrays = load(name, tmp_path)
    assert (arrays.shape, arrays.classes, arrays.train, arrays.image) == ((1, 28, 28), 10, 30, True)
    assert arrays.x.dtype == np.uint8
    np.testing.assert_array_equal(arrays.x[30:, :, :, 0], made["t10k-images-idx3-ubyte"])
    np.testing.assert_array_equal(arrays.y[:30], made["train-labels-idx1-ubyte"])
    np.testing.assert_array_equal(arrays.y[30:], made["t10k-labels-idx1-ubyte"])


def test_idx_images_and_labels_that_do_not_fit(tmp_path):
    write_idx(tmp_path / "mnist")
    (tmp_path / "mnist/t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(19))))
    with pytest.raises(ValueError, match="x has 50 examples and y has 49"):
        load("mnist", tmp_path)


def test_idx_labels_beyond_the_classes(tmp_path):
    write_idx(tmp_path / "mnist")
    (tmp_path / "mnist/t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.full(20, 10))))
    with pytest.raises(ValueError, match=r"20 labels are outside 0\.\.9"):
        load("mnist", tmp_path)


def test_fashion_mnist_of_debian_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("fedkin.data.idx.DEBIAN_FASHION", tmp_path / "debian")
    write_idx(tmp_path / "debian", train=40)
    assert load("fashion-mnist", tmp_path / "data").train == 40
    (tmp_path / "data/fashion-mnist").mkdir(parents=True)  # as a download that failed leaves it
    assert load("fashion-mnist", tmp_path / "data").train == 40
    (tmp_path / "data/fashion-mnist").rmdir()
    write_idx(tmp_path / "data/fashion-mnist", train=50)
    assert load("fashion-mnist", tmp_path / "data").train == 50, "the user's own comes first"


# ---- CIFAR


def cifar_part(labels: list[np.ndarray], images: np.ndarray) -> bytes:
    """Label bytes, then 1,024 red, 1,024 green and 1,024 blue bytes, row by row."""
    flat = images.transpose(0, 3, 1, 2).reshape(len(images), 3072)
    return np.concatenate([np.stack(labels, 1).astype(np.uint8), flat], axis=1).tobytes()


def cifar_files(name: str) -> tuple[dict[str, bytes], np.ndarray, np.ndarray]:
    files, xs, ys = {}, [], []
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"] if name == "cifar10" else ["train", "test"]
    folder = "cifar-10-batches-bin" if name == "cifar10" else "cifar-100-binary"
    for part in names:
        x, fine, coarse = bytes_of(4, 32, 32, 3), RNG.integers(0, 10, 4), RNG.integers(0, 20, 4)
        files[f"{folder}/{part}.bin"] = cifar_part([fine] if name == "cifar10" else [coarse, fine + 80], x)
        xs.append(x)
        ys.append(fine + (0 if name == "cifar10" else 80))
    return files, np.concatenate(xs), np.concatenate(ys)


def put(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
class TestCifar:
    def test_reads_images_and_fine_labels(self, name, tmp_path):
        files, x, y = cifar_files(name)
        put(tmp_path, files)
        arrays = load(name, tmp_path)
        np.testing.assert_array_equal(arrays.x, x)
        np.testing.assert_array_equal(arrays.y, y)
        assert (arrays.train, arrays.shape) == (len(y) - 4, (3, 32, 32))
        assert arrays.classes == (10 if name == "cifar10" else 100)

    def test_unpacks_an_archive_put_there(self, name, tmp_path, offline):  # noqa: F811
        files, x, _ = cifar_files(name)
        archive(tmp_path / f"cifar-{name[5:]}-binary.tar.gz", {**files, "cifar/readme.html": b"no"})
        np.testing.assert_array_equal(load(name, tmp_path).x, x)
        assert not offline
        assert not (tmp_path / "cifar/readme.html").exists()

    @pytest.mark.parametrize("keep", [0, 3000, -1])
    def test_cut_short(self, name, keep, tmp_path):
        files, _, _ = cifar_files(name)
        last = list(files)[-1]
        put(tmp_path, {**files, last: files[last][:keep]})
        with pytest.raises(ValueError, match=rf"{last} is cut short: \d+ bytes"):
            load(name, tmp_path)


# ---- SVHN


def write_svhn(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True)
    xs, ys = [], []
    for name, count in (("train", 12), ("test", 11)):
        x, y = bytes_of(32, 32, 3, count), (np.arange(count) % 10 + 1).astype(np.uint8)  # classes 1 to 10
        savemat(folder / f"{name}_32x32.mat", {"X": x, "y": y[:, None]}, do_compression=True)
        xs.append(np.moveaxis(x, 3, 0))
        ys.append(y)
    return np.concatenate(xs), np.concatenate(ys)


def test_svhn(tmp_path):
    x, y = write_svhn(tmp_path / "svhn")
    arrays = load("svhn", tmp_path)
    np.testing.assert_array_equal(arrays.x, x)
    np.testing.assert_array_equal(arrays.y, np.where(y == 10, 0, y))
    assert (arrays.train, arrays.shape, arrays.classes) == (12, (3, 32, 32), 10)


@pytest.mark.parametrize("keep", [0, 10, 140, 5000])
def test_svhn_cut_short(keep, tmp_path):
    write_svhn(tmp_path / "svhn")
    path = tmp_path / "svhn/test_32x32.mat"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=f"{path} is broken or cut short"):
        load("svhn", tmp_path)


# ---- UCI HAR


def windows(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        RNG.normal(size=(count, 128, 9)).round(4),
        np.arange(count) % 6,
        np.repeat([7, 3], [count // 2, count - count // 2]),
    )


def check_har(arrays, x, y, subject):
    assert (arrays.shape, arrays.classes, arrays.ordered, arrays.image) == ((9, 128), 6, True, False)
    assert arrays.names == ("subject 3", "subject 7")
    np.testing.assert_array_equal(arrays.y, y)
    np.testing.assert_array_equal(arrays.group, (subject == 7).astype(int))
    plain = x.transpose(0, 2, 1)
    plain = (plain - plain.mean((0, 2), keepdims=True)) / plain.std((0, 2), keepdims=True)
    np.testing.assert_allclose(arrays.x, plain, atol=1e-5)


def test_har_npz(tmp_path):
    x, y, subject = windows(20)
    (tmp_path / "har").mkdir()
    np.savez(tmp_path / "har/har.npz", x=x.astype(np.float32), y=y.astype(np.uint8), subject=subject)
    check_har(load("har", tmp_path), x, y, subject)


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\x03\x04"])
def test_har_npz_broken(content, tmp_path):
    put(tmp_path, {"har/har.npz": content})
    with pytest.raises(ValueError, match=r"har\.npz is broken or cut short"):
        load("har", tmp_path)


def test_har_npz_without_subject(tmp_path):
    (tmp_path / "har").mkdir()
    np.savez(tmp_path / "har/har.npz", x=np.zeros((3, 128, 9)), y=np.zeros(3))
    with pytest.raises(ValueError, match="subject"):
        load("har", tmp_path)


def har_texts(x: np.ndarray, y: np.ndarray, subject: np.ndarray, train: int) -> dict[str, bytes]:
    """The files of UCI's archive: a line of 128 numbers for a window, labels from 1."""

    def text(table: np.ndarray, number: str) -> bytes:
        return "".join(" ".join(number % v for v in np.atleast_1d(line)) + "\n" for line in table).encode()

    files = {}
    for part, rows in (("train", slice(0, train)), ("test", slice(train, None))):
        base = f"UCI HAR Dataset/{part}"
        for k, kind in enumerate(("body_acc", "body_gyro", "total_acc")):
            for a, axis in enumerate("xyz"):
                files[f"{base}/Inertial Signals/{kind}_{axis}_{part}.txt"] = text(x[rows, :, 3 * k + a], "%.7e")
        files[f"{base}/y_{part}.txt"] = text(y[rows] + 1, "%d")
        files[f"{base}/subject_{part}.txt"] = text(subject[rows], "%d")
    return files


def test_har_text_files(tmp_path, monkeypatch):
    monkeypatch.setattr("fedkin.data.har._WINDOWS", 20)
    x, y, subject = windows(20)
    put(tmp_path / "har", har_texts(x, y, subject, train=12))
    check_har(load("har", tmp_path), x, y, subject)


def test_har_archive_in_an_archive(tmp_path, monkeypatch, offline):  # noqa: F811
    monkeypatch.setattr("fedkin.data.har._WINDOWS", 20)
    x, y, subject = windows(20)
    inner = archive(tmp_path / "inner.zip", har_texts(x, y, subject, train=12)).read_bytes()
    (tmp_path / "har").mkdir()
    archive(tmp_path / "har/har.zip", {"UCI HAR Dataset.zip": inner, "names.txt": b""})
    check_har(load("har", tmp_path), x, y, subject)
    assert not offline


def test_har_text_files_that_are_not_whole(tmp_path, monkeypatch):
    x, y, subject = windows(20)
    files = har_texts(x, y, subject, train=12)
    put(tmp_path / "har", files)
    with pytest.raises(ValueError, match=r"UCI HAR has 10299 windows; .* have 20"):
        load("har", tmp_path)
    signal = "UCI HAR Dataset/test/Inertial Signals/body_gyro_y_test.txt"
    put(tmp_path / "har", {signal: b"\n".join(files[signal].split(b"\n")[:-2]) + b"\n"})
    with pytest.raises(ValueError, match=r"UCI HAR Dataset/test differ in their number of windows"):
        load("har", tmp_path)
    put(tmp_path / "har", {signal: files[signal][:-100]})
    with pytest.raises(ValueError, match=r"body_gyro_y_test\.txt is broken or cut short"):
        load("har", tmp_path)


# ---- always there


def test_digits():
    arrays = load("digits")
    assert (arrays.x.shape, arrays.classes, arrays.shape, arrays.train) == ((1797, 8, 8, 1), 10, (1, 8, 8), None)
    assert arrays.y[:10].tolist() == list(range(10))
    assert arrays.x.mean() == pytest.approx(arrays.mean[0], abs=1e-3)
    assert arrays.x.std() == pytest.approx(arrays.std[0], abs=1e-3)


def test_synthetic_has_known_groups():
    arrays = load("synthetic", samples=6000, groups=3, features=16, classes=4, separation=8.0, shared=0.25)
    assert (arrays.shape, arrays.classes) == ((16,), 4)
    assert np.bincount(arrays.group).tolist() == [2000] * 3
    assert all(np.bincount(arrays.y[arrays.group == g]).tolist() == [500] * 4 for g in range(3))
    # examples lie around the mean of their class in their group; the same class elsewhere has another mean
    means = np.array([[arrays.x[(arrays.group == g) & (arrays.y == c)].mean(0) for c in range(4)] for g in range(3)])
    spread = (arrays.x - means[arrays.group, arrays.y]).std()
    assert spread == pytest.approx(1.0, abs=0.02)
    assert np.linalg.norm(means[0] - means[1], axis=-1).min() > 2


def test_synthetic_groups_are_alike_where_everything_is_shared():
    arrays = load("synthetic", samples=8000, groups=2, features=8, classes=2, shared=1.0)
    means = [arrays.x[(arrays.group == g) & (arrays.y == 0)].mean(0) for g in range(2)]
    np.testing.assert_allclose(means[0], means[1], atol=0.15)


def test_synthetic_is_a_function_of_its_seed():
    one, same, other = (load("synthetic", samples=100, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.x, same.x)
    assert not np.array_equal(one.x, other.x)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"samples": 39}, "use at least 40"),
        ({"shared": 1.5}, r"shared=1.5 must lie in \[0, 1\]"),
        ({"features": 0}, "features=0"),
    ],
)
def test_synthetic_refuses(options, text):
    with pytest.raises(ValueError, match=text):
        load("synthetic", **options)


# ---- the real files, where they are


def test_real_mnist(real_data):
    arrays = load("mnist", real_data("mnist/train-images-idx3-ubyte.gz"))
    assert (arrays.x.shape, arrays.train) == ((70_000, 28, 28, 1), 60_000)
    assert arrays.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(arrays.y[:60_000]).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(arrays.y[60_000:]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    some = arrays.x[:60_000:7]  # an odd step: even and odd images of MNIST differ in brightness (31.3 and 35.4)
    assert some.mean() == pytest.approx(arrays.mean[0], abs=0.5)
    assert some.std() == pytest.approx(arrays.std[0], abs=0.5)


def test_real_fashion_mnist(real_data):
    arrays = load("fashion-mnist", real_data("fashion-mnist/train-images-idx3-ubyte.gz"))
    assert (arrays.x.shape, arrays.train) == ((70_000, 28, 28, 1), 60_000)
    assert arrays.y[:5].tolist() == [9, 0, 0, 3, 0]
    assert np.bincount(arrays.y).tolist() == [7000] * 10
    assert arrays.x[:60_000:7].mean() == pytest.approx(arrays.mean[0], abs=0.5)


def test_real_cifar10(real_data):
    arrays = load("cifar10", real_data("cifar-10-batches-bin/test_batch.bin"))
    assert (arrays.x.shape, arrays.train) == ((60_000, 32, 32, 3), 50_000)
    assert arrays.y[:5].tolist() == [6, 9, 9, 4, 1]
    assert np.bincount(arrays.y[50_000:]).tolist() == [1000] * 10
    assert arrays.x[:50_000:25].mean((0, 1, 2)) == pytest.approx(arrays.mean, abs=2)


def test_real_cifar100(real_data):
    arrays = load("cifar100", real_data("cifar-100-binary/test.bin"))
    assert arrays.shape == (3, 32, 32)
    assert len(arrays.y) - arrays.train == 10_000
    assert np.bincount(arrays.y[arrays.train :]).tolist() == [100] * 100
    assert arrays.x[:: len(arrays.x) // 2000].mean((0, 1, 2)) == pytest.approx(arrays.mean, abs=4)


def test_real_har(real_data):
    arrays = load("har", real_data("har/har.npz"))
    assert (arrays.x.shape, arrays.x.dtype, arrays.classes) == ((10_299, 9, 128), np.float32, 6)
    assert np.bincount(arrays.y).tolist() == [1722, 1544, 1406, 1777, 1906, 1944]
    assert np.bincount(arrays.group)[[0, 24]].tolist() == [347, 409]
    assert arrays.names[0] == "subject 1"
    assert len(arrays.names) == 30


def test_real_svhn(real_data):
    arrays = load("svhn", real_data("svhn/train_32x32.mat", "svhn/test_32x32.mat"))
    assert (arrays.x.shape, arrays.train) == ((99_289, 32, 32, 3), 73_257)
    assert np.bincount(arrays.y[:73_257]).tolist() == [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]
