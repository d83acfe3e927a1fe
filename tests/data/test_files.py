"""Where files are looked for, and what is said when they are missing or broken."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pooch
import pytest

from fedkin.data import DATASETS, DEFAULT_MODEL, load
from fedkin.data.files import data_dir, fetch, read_idx, unpack
from fedkin.models import MODELS


def idx(array: np.ndarray) -> bytes:
    """The idx format as Yann LeCun's page describes it: magic, big-endian sizes, bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No network; the addresses that were tried."""
    tried: list[str] = []

    def refuse(url: str, *args: object, **kwargs: object) -> None:
        tried.append(url)
        raise ConnectionError("no route to host")

    monkeypatch.setattr(pooch, "retrieve", refuse)
    return tried


def test_data_dir_prefers_the_argument_then_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_dir(tmp_path / "argument") == tmp_path / "argument"
    assert data_dir(None) == tmp_path / "variable"
    monkeypatch.setenv("FEDKIN_DATA", "")
    assert data_dir(None) == tmp_path / "cache" / "fedkin"
    monkeypatch.setenv("XDG_CACHE_HOME", "")  # the XDG rule: empty is unset, not the working directory
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_dir(None) == tmp_path / ".cache" / "fedkin"
    assert data_dir("~/data") == tmp_path / "data"


def test_a_loader_uses_the_argument_before_the_variable(monkeypatch, tmp_path, offline):
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path / "variable"))
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "argument")):
        load("mnist", tmp_path / "argument")
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "variable")):
        load("mnist")


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("mnist", ["mnist/train-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz"]),
        ("fashion-mnist", ["fashion-mnist/train-images-idx3-ubyte.gz", "fashion-mnist/t10k-labels-idx1-ubyte.gz"]),
        ("cifar10", ["cifar-10-binary.tar.gz"]),
        ("cifar100", ["cifar-100-binary.tar.gz"]),
        ("svhn", ["svhn/train_32x32.mat", "svhn/test_32x32.mat"]),
        ("har", ["har/har.zip"]),
    ],
)
def test_missing_files_without_a_network_are_listed_with_their_places(name, files, tmp_path, offline, monkeypatch):
    monkeypatch.setattr("fedkin.data.idx.DEBIAN_FASHION", tmp_path / "no-debian")
    with pytest.raises(FileNotFoundError) as caught:
        load(name, tmp_path)
    text = str(caught.value)
    assert all(str(tmp_path / file) in text for file in files)
    assert all(word in text for word in ("no route to host", "--data-dir", "FEDKIN_DATA", offline[0]))
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_only_missing_files_are_fetched(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("here")
    fetched = []
    monkeypatch.setattr(pooch, "retrieve", lambda url, known, fname, **rest: fetched.append((url, known, fname)))
    fetch(tmp_path, {"a": ("http://x/a", None), "b": ("http://x/b", "md5:1")}, what="Letters")
    assert fetched == [("http://x/b", "md5:1", "b")]


@pytest.fixture
def served(monkeypatch):
    """pooch whose downloads give these bytes; everything else of it is real."""

    def serve(content: bytes) -> None:
        def downloader(url: str, output_file: str, caller: object) -> None:
            Path(output_file).write_bytes(content)

        monkeypatch.setattr("pooch.core.choose_downloader", lambda url, progressbar=False: downloader)

    return serve


def test_a_wrong_checksum_leaves_nothing_behind(tmp_path, served):
    served(b"a login page")
    with pytest.raises(ValueError, match="hash"):
        fetch(tmp_path / "new", {"file": ("https://x/file", "md5:" + "0" * 32)}, what="It")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_the_right_checksum_keeps_the_file(tmp_path, served):
    served(b"content")
    fetch(tmp_path, {"file": ("https://x/file", f"md5:{hashlib.md5(b'content').hexdigest()}")}, what="It")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"content"


def archive(path: Path, files: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as bundle:
            for name, content in files.items():
                bundle.writestr(name, content)
    else:
        with tarfile.open(path, "w:gz") as tar:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
class TestUnpack:
    # random bytes, so that a cut falls into the data and not behind it
    CONTENT = {"in/one": np.random.default_rng(0).bytes(20000), "../two": b"2", "three": b"3"}

    def test_takes_just_the_members_asked_for(self, name, tmp_path):
        source = archive(tmp_path / name, self.CONTENT)
        unpack(source, tmp_path / "out", ["in/one", "three"])
        found = sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file())
        assert found == ["in/one", "three"]
        assert (tmp_path / "out/in/one").read_bytes() == self.CONTENT["in/one"]

    def test_a_member_that_is_not_there_is_named(self, name, tmp_path):
        source = archive(tmp_path / name, self.CONTENT)
        with pytest.raises(ValueError, match=r"(?s)a\.(zip|tar\.gz) is broken.*four"):
            unpack(source, tmp_path / "out", ["four"])

    @pytest.mark.parametrize("keep", [0, 10, 5000])
    def test_a_cut_archive_says_so_and_leaves_no_piece(self, name, keep, tmp_path):
        source = archive(tmp_path / name, self.CONTENT)
        source.write_bytes(source.read_bytes()[:keep])
        with pytest.raises(ValueError, match=r"a\.(zip|tar\.gz) is broken or cut short .*remove it"):
            unpack(source, tmp_path / "out", ["in/one"])
        assert not [p for p in (tmp_path / "out").rglob("*") if p.is_file()]


@pytest.mark.parametrize("zipped", [True, False])
class TestReadIdx:
    ARRAY = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)

    def write(self, folder: Path, content: bytes, zipped: bool) -> Path:
        path = folder / ("file.gz" if zipped else "file")
        path.write_bytes(gzip.compress(content) if zipped else content)
        return path

    def test_round_trip(self, zipped, tmp_path):
        np.testing.assert_array_equal(read_idx(self.write(tmp_path, idx(self.ARRAY), zipped)), self.ARRAY)

    @pytest.mark.parametrize("keep", [4, 9, 15, 16, 39])
    def test_cut_short(self, zipped, keep, tmp_path):
        path = self.write(tmp_path, idx(self.ARRAY)[:keep], zipped)
        with pytest.raises(ValueError, match=f"{path} is cut short"):
            read_idx(path)

    @pytest.mark.parametrize("content", [b"", b"\0\0", b"<html>", b"\0\0\x0d\1\0\0\0\1\0\0\0\0"])
    def test_something_else(self, zipped, content, tmp_path):
        path = self.write(tmp_path, content, zipped)
        with pytest.raises(ValueError, match="not an idx file of bytes"):
            read_idx(path)

    def test_too_long(self, zipped, tmp_path):
        with pytest.raises(ValueError, match="its header says"):
            read_idx(self.write(tmp_path, idx(self.ARRAY) + b"x", zipped))


@pytest.mark.parametrize(
    "content",
    [b"not gzip", gzip.compress(idx(TestReadIdx.ARRAY))[:-12], b"\x1f\x8b\x08\0" + b"x" * 30],
    ids=["no gzip", "cut short", "garbage"],
)
def test_a_broken_gzip_is_named(content, tmp_path):
    path = tmp_path / "file.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path} is broken or cut short"):
        read_idx(path)


def test_every_data_set_has_a_usual_network():
    assert DEFAULT_MODEL.keys() == DATASETS.keys()
    assert set(DEFAULT_MODEL.values()) <= MODELS.keys()


def test_an_unknown_name_gets_a_hint():
    with pytest.raises(ValueError, match=r"no data set 'mnits'. Did you mean .*mnist"):
        load("mnits")
