"""Runs a command in this process and says what became of it: it worked, or one message told the user what to do.

Everything else is a failure: an exception, another exit code, a pickle that was opened, a file that was written or
removed outside the case's own folder, a connection to another machine.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from fedkin.cli.main import main

WORKED, REFUSED = "worked", "refused"
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"}
# What libraries write for themselves, whoever uses them.
_HARMLESS = ("/dev/", "/proc/", "__pycache__", "matplotlib", "fontconfig", "pytest-of", ".hypothesis")


class Said(NamedTuple):
    code: int
    out: str
    err: str


class _Watch:
    """What happened while it was on. An audit hook stays in the process, so there is one for all cases."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.seen: list[str] = []
        self.installed = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "pickle.find_class":
            self.seen.append(f"unpickled {arguments[0]}.{arguments[1]}")
        elif event in ("socket.connect", "socket.getaddrinfo"):
            raise OSError("no network in tests")
        elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            _, mode, flags = arguments
            if (isinstance(mode, str) and set(mode) & set("wax+")) or (mode is None and flags & _WRITING):
                self._changed(arguments[0])
        elif event in _CHANGES:
            for path in arguments[: 2 if event == "os.rename" else 1]:
                if isinstance(path, str | bytes | os.PathLike):
                    self._changed(path)

    def _changed(self, name: str | bytes | os.PathLike[str]) -> None:
        folder, self.folder = self.folder, None  # looking at the path must not be looked at
        assert folder is not None
        try:
            path = os.path.realpath(os.fsdecode(name))
            if not f"{path}{os.sep}".startswith(f"{folder}{os.sep}") and not any(part in path for part in _HARMLESS):
                self.seen.append(f"changed {path}")
        finally:
            self.folder = folder


_watch = _Watch()


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """Collect what must not happen in this block. `folder` is where files may be written."""
    if not _watch.installed:
        sys.addaudithook(_watch)
        _watch.installed = True
    _watch.seen = []
    before, temporary = os.getcwd(), tempfile.tempdir
    os.chdir(folder)
    tempfile.tempdir = str(folder)
    _watch.folder = Path(os.path.realpath(folder))
    try:
        yield _watch.seen
    finally:
        _watch.folder = None
        os.chdir(before)
        tempfile.tempdir = temporary


def command(words: Sequence[str], folder: Path) -> Said:
    """Run a command as `main` does, with this as its current folder. Raises if it did what no command may do."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=e) for e in ("strict", "backslashreplace"))
    code: Any = 0
    with (
        watched(folder) as seen,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            main(list(words))
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            raise AssertionError(f"{words} ended with\n{traceback.format_exc()}") from None
    said = []
    for stream in (out, err):
        stream.flush()
        said.append(stream.buffer.getvalue().decode())
    assert not seen, f"{words}: {seen}"
    assert code in (0, 2), f"{words} ended with {code}:\n{said[0]}{said[1]}"
    assert "Traceback" not in said[0] + said[1], f"{words} showed\n{said[0]}{said[1]}"
    if code:
        assert said[1].strip(), f"{words} failed without a word"
        first = said[1].split("\n")[0]
        assert first.startswith("fedkin: ") or words[:1] == ["run"], f"{words} said {first}"
        assert first.removeprefix("fedkin: ").strip(), f"{words} said nothing of what is wrong"
    return Said(code, *said)


def outcome(words: Sequence[str], folder: Path) -> str:
    return REFUSED if command(words, folder).code else WORKED


def hunt(case: Callable[[Any], str], values: SearchStrategy[Any], cases: int) -> Counter[str]:
    """Try a case on so many values; returns how often there was which outcome. The values are always the same."""
    found: Counter[str] = Counter()

    @settings(
        max_examples=cases,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(values)
    def each(value: Any) -> None:
        found[case(value)] += 1

    each()
    return found
