"""What happened in a run: append-only rows (round, client, metric, value) in `history.jsonl`.

Rows are a pure function of the run's configuration; what depends on the machine (seconds) is in `timing.jsonl`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

ALL = "all"
PARTICIPANTS = "participants"


class Record(NamedTuple):
    round: int
    client: int | None
    """None: of the whole federation."""
    metric: str
    value: Any
    scope: str = ""
    """Of scores, which are always of the state after `round`: `all` clients were evaluated, or only the `participants`
    of the next round. (`round`, in histories of fedkin 0.1: of the state before the round, at its participants.)"""


class History:
    def __init__(self, path: Path | None = None, *, keep: int = 0) -> None:
        """Rows in memory, and in `path` if given, whose first `keep` bytes are kept and the rest cut off."""
        self.records: list[Record] = []
        self._path = path
        self._file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if keep:
                content = path.read_bytes()[:keep] if path.exists() else b""
                if len(content) < keep:
                    raise ValueError(f"{path} has lost rows: {len(content)} bytes are there, {keep} were written.")
                self.records = [_parse(line) for line in content.splitlines()]
            self._file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
            self._file.truncate(keep)
            self._file.seek(keep)

    def add(self, round: int, client: int | None, metric: str, value: Any, scope: str = "") -> None:
        if isinstance(value, float) and not isfinite(value):
            value = None  # JSON knows no NaN, and other readers of the file would stumble over it
        record = Record(round, client, metric, value, scope)
        self.records.append(record)
        if self._file is not None:
            self._file.write(
                json.dumps({k: v for k, v in record._asdict().items() if k != "scope" or v}).encode() + b"\n"
            )

    def flush(self) -> int:
        """Everything to the file; returns its length."""
        if self._file is None:
            return 0
        self._file.flush()
        return self._file.tell()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @classmethod
    def load(cls, folder: str | Path) -> History:
        """The history of a run's folder (or of a history.jsonl)."""
        path = Path(folder)
        path = path / "history.jsonl" if path.is_dir() else path
        history = cls()
        with open(path, "rb") as f:
            # a run that goes on may be writing its last line just now
            history.records = [_parse(line) for line in f if line.endswith(b"\n")]
        return history

    def select(self, metric: str, *, scope: str | None = None, round: int | None = None) -> Iterator[Record]:
        for record in self.records:
            if record.metric == metric and scope in (None, record.scope) and round in (None, record.round):
                yield record

    def values(self, metric: str, *, round: int, scope: str = "all") -> dict[int, Any]:
        """Client to value, in one round."""
        return {r.client: r.value for r in self.select(metric, scope=scope, round=round) if r.client is not None}

    def rounds(self, metric: str = "personal", scope: str = "all") -> list[int]:
        return sorted({record.round for record in self.select(metric, scope=scope)})

    def to_pandas(self) -> Any:
        """A data frame with the columns round, client, metric, value, scope."""
        try:
            import pandas
        except ImportError:
            raise ImportError("History.to_pandas() needs pandas: pip install 'fedkin[pandas]'.") from None
        frame = pandas.DataFrame(self.records, columns=list(Record._fields))
        frame["client"] = frame["client"].astype("Int64")
        return frame


def _parse(line: bytes) -> Record:
    return Record(**json.loads(line))
