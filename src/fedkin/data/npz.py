"""Arrays from a user's .npz file. Sizes are checked before anything is read, and nothing is unpickled."""

from __future__ import annotations

import os
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.data.table import Problems


def read_npz(path: Path, label: str, problems: Problems) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Arrays `x` and `label`. Sizes are checked before anything is read; nothing is unpickled."""
    broken = (ValueError, EOFError, OSError, TypeError, KeyError, NotImplementedError, zlib.error, zipfile.BadZipFile)
    try:
        with zipfile.ZipFile(path) as bundle:
            names = [name.removesuffix(".npy") for name in bundle.namelist()]
            wanted = [name for name in ("x", label) if name in names]
            if len(wanted) < 2:
                problems.add(f"it must hold the arrays 'x' and '{label}'", source=path.name)
                return None
            for name in wanted:
                if trouble := _too_much(bundle, f"{name}.npy"):
                    problems.add(f"the array '{name}' {trouble}", source=path.name)
                    return None
        with np.load(path, allow_pickle=False) as stored:
            x, y = stored["x"], stored[label]
    except broken:
        problems.add("it is broken or cut short, or not an .npz of numbers", source=path.name)
        return None
    if x.ndim < 2 or not x.size or y.shape[:1] != x.shape[:1]:
        problems.add(
            f"it must hold examples and a label for each; x has shape {x.shape}, '{label}' {y.shape}", source=path.name
        )
        return None
    if x.dtype.kind not in "buif":
        problems.add("the array 'x' must be numbers", source=path.name)
        return None
    return x, y


def _too_much(bundle: zipfile.ZipFile, member: str) -> str:
    """Why an array cannot be read into memory, from its header and the archive's index alone."""
    with bundle.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        start = stream.tell()
    if dtype.hasobject:
        return "holds Python objects; only numbers are read"
    size = prod(shape) * dtype.itemsize
    if size > bundle.getinfo(member).file_size - start:
        return f"says that it has the shape {shape}, but the file is too short for that"
    if size > memory() // 2:
        return f"takes {size / 1e9:.0f} GB in memory; this machine has {memory() / 1e9:.0f} GB"
    return ""


def memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
