"""What happened in a run: append-only records (round, client, metric, value) in `history.jsonl`.

Records are a pure function of the run's configuration; what depends on the machine (seconds) is in `timing.jsonl`.
While a run writes its history, no record is kept in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fedkin.results import checksums
from fedkin.results.files import StorageError

ALL = "all"
PARTICIPANTS = "participants"
# Metrics that had other names when older runs were written.
RENAMED = {f"{part}_rows": f"{part}_examples" for part in ("train", "validation", "test")}


class Record(NamedTuple):
    round: int
    client: int | None
    """None: the record is about the whole federation."""
    metric: str
    value: Any
    scope: str = ""
    """For scores, which always describe the state after `round`: `all` clients were evaluated, or only the
    `participants` of the next round. (`round`, in histories of fedkin 0.1: the state before the round, at its
    participants.)"""


class History:
    def __init__(self, path: Path | None = None, *, keep: int = 0) -> None:
        """Start a history in memory, or in the file `path`. The first `keep` bytes of the file stay, the rest
        is cut off."""
        self._records: list[Record] = []
        self._index: dict[str, dict[int, list[Record]]] = {}
        self._indexed = 0
        self._path = path
        self._file: BinaryIO | None = None
        self._length = keep
        self._digest = hashlib.blake2b(digest_size=16)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._read_kept(path, keep)
            self._file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
            self._file.truncate(keep)
            self._file.seek(keep)

    def _read_kept(self, path: Path, keep: int) -> None:
        left = keep
        if keep and path.exists():
            with open(path, "rb") as f:
                while left and (chunk := f.read(min(left, 1 << 20))):
                    self._digest.update(chunk)
                    left -= len(chunk)
        if left:
            raise ValueError(f"{path} has lost records: it has {keep - left} bytes, {keep} were written.")

    # ---- writing
    def add(self, round: int, client: int | None, metric: str, value: Any, scope: str = "") -> None:
        if isinstance(value, float) and not isfinite(value):
            value = None  # JSON has no NaN, and other readers of the file would fail on it
        if self._path is None:
            self._records.append(Record(round, client, metric, value, scope))
        elif self._file is None:
            raise ValueError(f"{self._path} is closed: nothing more can be added.")
        else:
            line = _line(round, client, metric, value, scope)
            self._digest.update(line)
            self._length += len(line)
            try:
                self._file.write(line)
            except OSError as error:
                raise StorageError(f"Cannot write {self._path}: {error.strerror or error}") from error

    def flush(self, *, durable: bool = False) -> int:
        """Write everything to the file, with `durable` to the disk itself. Returns the file's length."""
        if self._file is None:
            return 0
        try:
            self._file.flush()
            if durable:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise StorageError(f"Cannot write {self._path}: {error.strerror or error}") from error
        return self._length

    @property
    def digest(self) -> str:
        """Digest of the file's content."""
        return self._digest.hexdigest()

    def close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            finally:
                self._file = None

    # ---- reading
    @classmethod
    def load(cls, folder: str | Path, *, limit: int | None = None) -> History:
        """Load the history of a run's folder (or a history.jsonl). That of a finished run is verified. A file of more
        than `limit` bytes is not kept in memory, but read each time it is needed."""
        path = Path(folder)
        if path.is_dir():
            checksums.verify(path, "history.jsonl")
            path = path / "history.jsonl"
        history = cls()
        if limit is not None and path.stat().st_size > limit:
            history._path = path
        else:
            history._records = list(_parsed(path))
        return history

    @property
    def records(self) -> list[Record]:
        """All records, in the order in which they were written."""
        return self._records if self._path is None else list(self)

    def __iter__(self) -> Iterator[Record]:
        """Iterate over the records; from a file, without keeping them in memory."""
        if self._path is None:
            yield from self._records
        else:
            self.flush()
            yield from _parsed(self._path)

    def select(self, metric: str, *, scope: str | None = None, round: int | None = None) -> Iterator[Record]:
        by_round = self._by_metric().get(metric, {})
        chosen: Iterable[list[Record]] = by_round.values() if round is None else (by_round.get(round, []),)
        for records in chosen:
            yield from (record for record in records if scope in (None, record.scope))

    def _by_metric(self) -> dict[str, dict[int, list[Record]]]:
        """Records by metric and round, so that reading one round after the other takes linear time."""
        records = self.records
        if self._path is not None:
            self._index, self._indexed = {}, 0
        for record in records[self._indexed :]:
            self._index.setdefault(record.metric, {}).setdefault(record.round, []).append(record)
        self._indexed = len(records)
        return self._index

    def values(self, metric: str, *, round: int, scope: str = ALL) -> dict[int, Any]:
        """Map clients to values, in one round."""
        return {r.client: r.value for r in self.select(metric, scope=scope, round=round) if r.client is not None}

    def rounds(self, metric: str = "personal", scope: str = ALL) -> list[int]:
        return sorted({record.round for record in self.select(metric, scope=scope)})

    def __repr__(self) -> str:
        return f"<History: {sum(1 for _ in self)} records>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from fedkin.report import notebook

        return notebook.history(self)

    def to_pandas(self) -> Any:
        """A data frame with the columns round, client, metric, value, scope."""
        try:
            import pandas
        except ImportError:
            raise ImportError("History.to_pandas() needs pandas: pip install 'fedkin[pandas]'.") from None
        frame = pandas.DataFrame(self.records, columns=list(Record._fields))
        frame["client"] = frame["client"].astype("Int64")
        return frame


class Tail:
    """Reads a history that a run may still be writing: some records at a time, and each of them once."""

    END = 4096  # bytes before the end of the last read; if they changed, the file was written anew

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place, self._lines, self._last = 0, 0, b""
        self.caught_up = False
        """All whole lines have been read."""

    @property
    def part_read(self) -> float:
        return min(1.0, self._place / max(1, self._path.stat().st_size))

    def goes_on(self) -> bool:
        """Does the file still begin with what was read of it?"""
        with open(self._path, "rb") as f:
            f.seek(self._place - len(self._last))
            return f.read(len(self._last)) == self._last

    def read(self, most: int) -> list[Record]:
        """The next records, at most so many."""
        out: list[Record] = []
        with open(self._path, "rb") as f:
            f.seek(self._place)
            while len(out) < most and (line := f.readline()).endswith(b"\n"):
                self._lines += 1
                out.append(_record(line, self._lines, self._path))
                self._place += len(line)
            self.caught_up = len(out) < most
            f.seek(max(0, self._place - self.END))
            self._last = f.read(min(self._place, self.END))
        return out


def _parsed(path: Path) -> Iterator[Record]:
    with open(path, "rb") as f:
        for number, line in enumerate(f, start=1):
            if not line.endswith(b"\n"):
                return  # the run may be writing its last line at this moment
            yield _record(line, number, path)


def _record(line: bytes, number: int, path: Path) -> Record:
    try:
        text = line.decode()
        found, end = _DECODER.raw_decode(text)  # `decode` would look for spaces around it in every line
        if text[end:].strip():
            raise ValueError(f"Extra data at character {end}")
        record = Record(**found)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"Line {number} of {path} is damaged: {error}") from error
    if not _sound(record):
        raise ValueError(f"Line {number} of {path} is damaged: it is not a fedkin record.")
    return record._replace(metric=RENAMED[record.metric]) if record.metric in RENAMED else record


def _line(round: int, client: int | None, metric: str, value: Any, scope: str) -> bytes:
    """A record as a line of JSON. There are several for each client and round, so each part is written directly."""
    who = "null" if client is None else client
    written = repr(value) if type(value) in (int, float) else json.dumps(value)
    where = f', "scope": "{scope}"' if scope else ""
    return f'{{"round": {round}, "client": {who}, "metric": {_quoted(metric)}, "value": {written}{where}}}\n'.encode()


_quoted = lru_cache(maxsize=1000)(json.dumps)

# JSON has no NaN or infinity, but Python's reader accepts them.
_DECODER = json.JSONDecoder(parse_constant=lambda name: None)


def _sound(record: Record) -> bool:
    round, client, metric, _, scope = record
    return (
        type(round) is int
        and round >= 0
        and (client is None or (type(client) is int and client >= 0))
        and isinstance(metric, str)
        and isinstance(scope, str)
    )
