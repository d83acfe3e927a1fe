"""Output folders: fedkin writes only into a folder that is empty or its own, and removes only files that it wrote.

A folder of fedkin's has the marker `.fedkin`. What may be removed there is listed by name in `OWN`; every other file in
it belongs to the user. All names are checked before anything is touched, and no link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARKER = ".fedkin"
MARKER_LENGTH = 400
FORMAT = 1
LABEL_LIMIT = 120  # characters; file systems allow 255 bytes

# What fedkin writes, as paths relative to the folder.
OWN = {
    "run": (
        r"(config|summary|checksums|sites|run|cell)\.json|history\.jsonl|timing\.jsonl|report\.html",
        r"models/(index\.json|(frozen|personal)\.safetensors|[0-9a-f]{16}\.safetensors)",
        r"checkpoint/(manifest|previous)\.json",
        r"checkpoint/(server-\d{6,}|client-\d{6,}-\d{6,}-\d+)\.safetensors",
    ),
    "comparison": (r"comparison\.(json|md|csv|tex)|clients\.(csv|tex)|report\.html",),
    "experiment": (r"leaderboard\.(json|md|csv|tex)",),
    "sweep": (r"sweep\.(json|csv|tex)",),
    "tune": (r"tune\.(json|csv|tex|journal|journal\.lock)",),
}
TEMPORARY = r"((models|checkpoint)/)?\.[0-9a-f]{16}"  # as files.write_bytes names unfinished files
SUBFOLDERS = ("models", "checkpoint")

# How folders from before there was a marker are recognized: a file, and keys that it must have.
BEFORE_MARKERS = {
    "run": ("config.json", {"label", "method", "federation", "options"}),
    "comparison": ("comparison.json", {"setting", "methods"}),
}


class FolderError(ValueError):
    """A folder that fedkin must not write to."""


class Folder:
    """A folder that only this process writes to, for as long as the `with` block lasts.

    The lock is the kernel's (flock on the marker): it ends with the process, however that ends.
    """

    def __init__(self, path: str | Path, kind: str) -> None:
        self.path, self.kind = Path(path), kind
        self._marker: int | None = None

    def __enter__(self) -> Folder:
        check(self.path, self.kind)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._marker = os.open(self.path / MARKER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise FolderError(f"Cannot write to {self.path}: {error.strerror}. Name another --out.") from error
        _held.add(self._marker)
        try:
            self._lock(self._marker)
            self._mark(self._marker)
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def clear(self) -> None:
        """Remove the files that fedkin wrote here, and nothing else."""
        _remove(self.path, own_files(self.path, self.kind))

    def _lock(self, marker: int) -> None:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = _decoded(os.pread(marker, 4096, 0))
            by = f" (process {who['process']} on {who['host']})" if {"process", "host"} <= who.keys() else ""
            raise FolderError(
                f"{self.path} is in use by another fedkin{by}: wait until it has ended, or name another --out."
            ) from None
        except OSError as error:
            # a file system without locks: a single run works, but two at once cannot be detected
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
        if not os.path.samestat(os.fstat(marker), os.stat(self.path / MARKER)):
            raise FolderError(f"{self.path} was just removed by another fedkin: try again.")

    def _mark(self, marker: int) -> None:
        """Write the marker in one write of a fixed length, so that a kill leaves the old one or the new one."""
        text = json.dumps({"format": FORMAT, "kind": self.kind, "process": os.getpid(), "host": socket.gethostname()})
        try:
            os.pwrite(marker, f"{text:<{MARKER_LENGTH}}\n".encode(), 0)
        except OSError as error:
            raise FolderError(f"Cannot write to {self.path}: {error.strerror}. Name another --out.") from error

    def _release(self) -> None:
        if self._marker is not None:
            _held.discard(self._marker)
            with contextlib.suppress(OSError):
                fcntl.flock(self._marker, fcntl.LOCK_UN)  # even if a child process has not closed its copy yet
            os.close(self._marker)
            self._marker = None


_held: set[int] = set()


def _close_in_child() -> None:
    """Release the lock in a worker: if it outlives a killed parent, it must not keep the parent's lock."""
    for marker in _held:
        os.close(marker)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


def prepare(path: str | Path, kind: str) -> Path:
    """Check a folder, create it and mark it as fedkin's. For callers that write to it without locking it first."""
    with Folder(path, kind) as folder:
        return folder.path


def check(path: str | Path, kind: str) -> None:
    """Raise if fedkin must not write to this folder; nothing is changed."""
    path = Path(path)
    if not path.exists():
        if path.is_symlink():
            raise FolderError(f"{path} is a broken link. Name another --out.")
        for parent in path.absolute().parents:
            if parent.exists():
                if not parent.is_dir():
                    raise FolderError(f"{path} cannot be created: {parent} is a file. Name another --out.")
                break
        return
    if not path.is_dir():
        raise FolderError(f"{path} is a file, not a folder. Name another --out.")
    try:
        names = os.listdir(path)
    except OSError as error:
        raise FolderError(f"Cannot read {path}: {error.strerror}. Name another --out.") from error
    if not names or (names == [MARKER] and not (path / MARKER).stat().st_size):  # killed right after it was created
        return
    found = kind_of(path)
    if found is None:
        raise FolderError(
            f"{path} holds files that fedkin did not write ({_few(names)}). Name an empty or a new folder with --out."
        )
    if found != kind:
        raise FolderError(f"{path} holds a fedkin {found}, not a {kind}. Name another --out.")
    for name in _names(path):
        _check_plain(path, name, kind)


def check_file(path: Path, mark: bytes) -> None:
    """Raise if writing this file would replace one that fedkin did not write. Files of its kind contain `mark`."""
    if path.is_dir():
        raise FolderError(f"{path} is a folder, not a file. Name a file with --out.")
    if path.is_file() and path.stat().st_size and mark not in path.read_bytes():
        raise FolderError(f"{path} is there, and fedkin did not write it. Name another file with --out.")


def kind_of(path: str | Path) -> str | None:
    """What fedkin has in this folder (run, comparison, experiment, sweep, tune); None if it is not fedkin's."""
    path = Path(path)
    marker = path / MARKER
    if marker.is_file() and not marker.is_symlink():
        kind = _decoded(marker.read_bytes()).get("kind")
        if kind in OWN:
            return str(kind)
    for kind, (name, keys) in BEFORE_MARKERS.items():
        file = path / name
        if file.is_file() and not file.is_symlink() and keys <= _decoded(file.read_bytes()).keys():
            return kind
    return "experiment" if any(path.glob("runs/*/cell.json")) else None


def own_files(path: str | Path, kind: str) -> list[Path]:
    """The files in this folder that fedkin wrote, without the marker."""
    path = Path(path)
    return [path / name for name in _names(path) if is_own(name, kind)]


def is_own(name: str, kind: str = "run") -> bool:
    """Is this the name of a file that fedkin writes? `name` is relative to the folder."""
    return any(re.fullmatch(pattern, name) for pattern in (*OWN[kind], TEMPORARY))


def remove_run(path: str | Path) -> None:
    """Remove a run: its files, and the folder itself if nothing else is in it."""
    path = Path(path)
    if not path.exists() and not path.is_symlink():
        return
    with Folder(path, "run") as folder:
        folder.clear()
        if os.listdir(path) == [MARKER]:
            (path / MARKER).unlink()
    _remove_if_empty(path)


def inside(folder: str | Path, *names: str) -> Path:
    """A path below a folder. Raise if a name would lead out of it, by itself or through a link."""
    path = Path(folder)
    for name in names:
        if name in ("", ".", "..") or "/" in name or os.sep in name or "\0" in name:
            raise FolderError(f"'{name}' cannot be the name of a folder below {folder}.")
        path = path / name
        if path.is_symlink():
            raise FolderError(f"{path} is a link: fedkin does not follow links below its output folder. Remove it.")
    return path


def check_label(label: str) -> str:
    """The name of the folder for a label such as `fedprox,mu=1`. Raise if there is none."""
    name = "".join(c if c.isalnum() or c in "-_=.," else "_" for c in label)
    if not name.strip("."):
        raise FolderError(f"'{label}' cannot be the name of a folder. Name a method: `fedkin list methods`.")
    if len(name.encode()) > LABEL_LIMIT:
        digest = hashlib.blake2b(label.encode(), digest_size=6).hexdigest()
        name = f"{name.encode()[: LABEL_LIMIT - 13].decode(errors='ignore')}-{digest}"
    return name


def _check_plain(path: Path, name: str, kind: str) -> None:
    """Raise if a name that fedkin writes to is not a plain file or folder."""
    target = path / name
    wanted = "folder" if name in SUBFOLDERS and kind == "run" else "file"
    if wanted == "file" and not (is_own(name, kind) or name == MARKER):
        return
    if target.is_symlink():
        raise FolderError(f"{target} is a link: fedkin does not follow links in its output folder. Remove it.")
    if target.is_dir() != (wanted == "folder"):
        raise FolderError(f"{target} should be a {wanted}. Move it away, or name another --out.")


def _remove(path: Path, files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
    for sub in SUBFOLDERS:
        _remove_if_empty(path / sub)


def _remove_if_empty(path: Path) -> None:
    if path.is_dir() and not path.is_symlink() and not os.listdir(path):
        path.rmdir()


def _names(path: Path) -> Iterator[str]:
    """What is in a folder and in its models/ and checkpoint/, as relative paths."""
    if path.is_dir():
        yield from sorted(os.listdir(path))
    for sub in SUBFOLDERS:
        if (path / sub).is_dir() and not (path / sub).is_symlink():
            yield from (f"{sub}/{name}" for name in sorted(os.listdir(path / sub)))


def _decoded(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _few(names: list[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
