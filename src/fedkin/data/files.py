"""Where data files are, and how missing ones are downloaded."""

from __future__ import annotations

import gzip
import os
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray


def data_dir(folder: str | Path | None) -> Path:
    """`--data-dir`, else the variable FEDKIN_DATA, else the user's cache."""
    named = folder or os.environ.get("FEDKIN_DATA")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedkin"


def fetch(folder: Path, sources: Mapping[str, tuple[str, str | None]], *, what: str) -> None:
    """Download each missing `folder/name` from (address, checksum). Nothing half-written is left behind."""
    import pooch

    missing = {name: source for name, source in sources.items() if not (folder / name).exists()}
    for name, (address, checksum) in missing.items():
        bar = _Bar(name)
        try:
            pooch.retrieve(address, checksum, fname=name, path=folder, progressbar=bar)
        except ValueError:  # pooch: the file that came is not the file expected
            raise
        except Exception as error:
            listed = "\n".join(f"  {folder / n}   (from {a})" for n, (a, _) in missing.items())
            raise FileNotFoundError(
                f"{what} is not in {folder} and could not be downloaded ({type(error).__name__}: {error}).\n"
                f"Put these files there, or name another folder with --data-dir or FEDKIN_DATA:\n{listed}"
            ) from None
        finally:
            bar.close()


def unpack(archive: Path, folder: Path, members: list[str]) -> None:
    """Extract these members of a .tar.gz or .zip, by name. Each file appears whole or not at all."""
    import tarfile
    import zipfile

    broken = (KeyError, EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile)
    with readable(archive, broken, "remove it to download it again"):
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as bundle:
                for name in members:
                    with bundle.open(name) as source:
                        _write(source, folder / name)
        else:
            with tarfile.open(archive, "r:gz") as tar:
                for name in members:
                    inner = tar.extractfile(name)
                    if inner is None:
                        raise KeyError(f"{name} is not a file")
                    _write(inner, folder / name)


def _write(source: IO[bytes], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "wb") as out:
            shutil.copyfileobj(source, out)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def readable(
    path: Path, errors: tuple[type[Exception], ...], advice: str = "replace it with a complete one"
) -> Iterator[None]:
    """Turn any of these errors in the block into one that names the broken file."""
    try:
        yield
    except errors as error:
        raise ValueError(f"{path} is broken or cut short ({type(error).__name__}: {error}): {advice}.") from error


class _Bar:
    """The progress bar that pooch expects, drawn by rich; silent without a terminal."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task(name, total=None)
        self._progress.start()

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, value: float) -> None:
        self._progress.update(self._task, total=value)

    def update(self, amount: int) -> None:
        self._progress.advance(self._task, amount)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The idx format of MNIST, gzipped or not."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        with readable(path, (EOFError, gzip.BadGzipFile, zlib.error)):
            raw = gzip.decompress(raw)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path} is not an idx file of bytes: it starts with {raw[:4]!r}.")
    start = 4 + 4 * raw[3]
    shape = tuple(np.frombuffer(raw[4:start], ">u4").tolist()) if len(raw) >= start else ()
    body = np.frombuffer(memoryview(raw)[start:], np.uint8)
    if len(shape) != raw[3] or body.size != prod(shape):
        raise ValueError(f"{path} is cut short: its header says {shape}, it holds {body.size} bytes.")
    return body.reshape(shape)
