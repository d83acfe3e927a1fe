"""Files on disk: each one appears whole or not at all, and an error about damaged JSON names the file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Content = (
    bytes | Iterable[bytes | memoryview]
)  # bytes, or their parts one after another, so that they are never whole in memory
Write = Callable[[Path, Content], None]


class StorageError(OSError):
    """One of fedkin's own files could not be written or read: a full disk, missing permission, a damaged file."""


def write_bytes(path: Path, content: Content, *, durable: bool = False) -> None:
    """Write a file atomically. With `durable`, it is flushed to the disk before this returns."""
    temporary = path.with_name(f".{secrets.token_hex(8)}")  # not mkstemp, whose files only the owner may read
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as f:
            for part in [content] if isinstance(content, bytes) else content:
                f.write(part)
            if durable:
                f.flush()
                os.fsync(f.fileno())
        os.replace(temporary, path)
        if durable:
            sync(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StorageError(f"Cannot write {path}: {error.strerror or error}") from error
        raise


def write_durably(path: Path, content: Content) -> None:
    write_bytes(path, content, durable=True)


def sync(path: Path) -> None:
    """Flush to the disk: a file's content, or a folder's list of names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def digest_of(path: Path, length: int | None = None) -> str:
    """Digest of a file, or of its first `length` bytes. Raises StorageError if it has fewer."""
    found = hashlib.blake2b(digest_size=16)
    left = length
    try:
        with open(path, "rb") as f:
            while chunk := f.read(min(left, 1 << 20) if left is not None else 1 << 20):
                found.update(chunk)
                left = None if left is None else left - len(chunk)
    except OSError as error:
        raise StorageError(f"Cannot read {path}: {error.strerror or error}") from error
    if left:
        raise StorageError(f"{path} is cut short: it has {(length or 0) - left} bytes, {length} were written")
    return found.hexdigest()


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    write_bytes(path, (json.dumps(value, indent=2, default=float) + "\n").encode(), durable=durable)


def read_json(path: Path, constant: Callable[[str], Any] | None = None) -> dict[str, Any]:
    """The object in a JSON file that fedkin wrote. Raises a ValueError that names the file if it is damaged.

    `constant` makes a value from the names NaN, Infinity and -Infinity, which are numbers otherwise.
    """
    try:
        value = json.loads(path.read_bytes(), parse_constant=constant)
    except RecursionError:
        raise ValueError(f"{path} is damaged: it is nested too deeply. Restore it from a copy.") from None
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: it is not JSON ({type(error).__name__}: {error}). Restore it from a copy."
        ) from None
    if not isinstance(value, dict):
        raise ValueError(
            f"{path} is damaged: it contains a {type(value).__name__}, not an object. Restore it from a copy."
        )
    return value


def relabel(folder: Path, label: str) -> None:
    """Change a run's label in tables and figures, without running it again."""
    from fedkin.results import checksums

    for name, key in (("config.json", "label"), ("summary.json", "method")):
        content = read_json(folder / name)
        if content.get(key) != label:
            checksums.verify(folder, name)
            write_json(folder / name, {**content, key: label})
            checksums.renew(folder, name)
