"""A vector for each client that is never copied whole: the models that a server keeps of all clients.

A table holds one default vector, which every client has at first, and the rows that were written since. `with_rows`
makes a new table that shares all other rows with the old one, so that both stay valid. A table that would be larger
than `IN_MEMORY` if every client had a row keeps its rows in a temporary file. The file has no name, so nothing is left
on the disk when the process ends, however it ends. Its rows are read with ordinary reads, because mapped pages count as
memory of the process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from math import inf, isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IN_MEMORY = 1 << 30  # bytes of a table with a row for every client, up to which rows are kept in memory
BLOCK = 1 << 26  # bytes of rows that are read from a file at a time


class TableError(OSError):
    """A table's temporary file could not be written or read."""


class ClientTable:
    """One vector for each of `size` clients [size, numbers]; reading gives copies, and nothing changes a table."""

    def __init__(self, default: Tensor, size: int) -> None:
        self.default = default.detach().clone()
        self.shape = torch.Size((size, len(default)))
        self._rows: dict[int, _Row] = {}
        self._file = _File(len(default) * default.element_size()) if self._bytes(size) > IN_MEMORY else None

    @property
    def in_memory(self) -> bool:
        return self._file is None

    @property
    def written(self) -> Tensor:
        """Ids of the clients that have a row of their own."""
        return torch.tensor(sorted(self._rows), dtype=torch.long)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Tensor:
        """Rows as a tensor of its own: `table[3]`, `table[ids]`, `table[mask]`, `table[ids, columns]`."""
        if isinstance(key, tuple):
            return self[key[0]][..., key[1]]
        ids = torch.arange(len(self))[key]
        return self.columns(ids.reshape(-1), 0, self.shape[1]).view(*ids.shape, self.shape[1])

    def columns(self, ids: Tensor, start: int, stop: int) -> Tensor:
        """Numbers `start` to `stop` of the vectors of `ids`."""
        out = self.default.new_empty(len(ids), stop - start)
        for to, client in zip(out, ids.tolist()):
            if row := self._rows.get(client):
                row.read(to, start)
            else:
                to.copy_(self.default[start:stop])
        return out

    def blocks(self, ids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Ids and their rows: all at once if they are in memory, otherwise as many at a time as fit into a block."""
        count = len(ids) if self.in_memory else BLOCK // max(1, self._bytes(1))
        for part in ids.split(max(1, count)):
            yield part, self[part]

    def whole(self) -> Tensor:
        """The table as one tensor."""
        return self[:]

    def with_rows(self, ids: Sequence[int] | Tensor, values: Tensor) -> ClientTable:
        """A table in which the rows of `ids` are `values`: a row for each, or one row for all."""
        clients = torch.arange(len(self))[torch.as_tensor(ids)].tolist()
        vectors = values.detach().to(self.default.dtype).expand(len(clients), -1)
        rows = {client: _Row(vector, self._file) for client, vector in zip(clients, vectors)}
        return self._sharing(len(self), {**self._rows, **rows})

    def resized(self, size: int) -> ClientTable:
        """The same rows among more clients."""
        return self._sharing(size, self._rows)

    def _sharing(self, size: int, rows: dict[int, _Row]) -> ClientTable:
        out = object.__new__(ClientTable)
        out.default, out.shape, out._file, out._rows = self.default, torch.Size((size, self.shape[1])), self._file, rows
        return out

    def reach(self, *, finite: bool = False) -> float:
        """The largest magnitude, known without reading rows; infinite if a number is not finite. With `finite`, such
        numbers are skipped."""
        found = [_largest(self.default)] if len(self._rows) < len(self) else []
        for client, row in self._rows.items():
            vector = self[client] if finite and not isfinite(row.largest) else None
            found.append(row.largest if vector is None else _largest(vector[torch.isfinite(vector)]))
        return max(found, default=0.0)

    def _bytes(self, rows: int) -> int:
        return rows * self.shape[1] * self.default.element_size()

    # ---- numpy and torch take a table as one tensor
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.whole().numpy(), dtype=dtype)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        whole = [part.whole() if isinstance(part, cls) else part for part in args]
        return function(*whole, **(kwargs or {}))


class _Row:
    """One written row: in memory, or in the file until nobody needs it any more."""

    def __init__(self, values: Tensor, file: _File | None) -> None:
        self._file, self._at = file, -1
        self.largest = _largest(values)
        if file is None:
            self._values = values.clone()
        else:
            self._at = file.write(values)

    def read(self, out: Tensor, start: int) -> None:
        if self._file is None:
            out.copy_(self._values[start : start + len(out)])
        else:
            self._file.read(self._at, out, start)

    def __del__(self) -> None:
        if self._file is not None and self._at >= 0:  # a stop may come before the row is written
            self._file.free.append(self._at)


class _File:
    """A file without a name that holds rows of one length. Places of rows that are gone are used again."""

    def __init__(self, length: int) -> None:
        self.free: list[int] = []
        self._length, self._end = length, 0
        self._file = tempfile.TemporaryFile(prefix="fedkin-", buffering=0)  # noqa: SIM115  (open as long as a row is)

    def write(self, row: Tensor) -> int:
        at = self.free.pop() if self.free else self._end
        self._end = max(self._end, at + self._length)
        try:
            self._file.seek(at)
            done = self._file.write(_bytes_of(row.contiguous()))
        except OSError as error:
            raise TableError(f"Cannot write clients' models to {tempfile.gettempdir()}: {error.strerror}") from error
        if done != self._length:
            raise TableError(f"The disk of {tempfile.gettempdir()} is full: free space there, or set TMPDIR.")
        return at

    def read(self, at: int, out: Tensor, start: int) -> None:
        self._file.seek(at + start * out.element_size())
        if self._file.readinto(_bytes_of(out)) != len(out) * out.element_size():
            raise TableError(f"A temporary file in {tempfile.gettempdir()} is cut short.")


def _bytes_of(row: Tensor) -> memoryview:
    return row.view(torch.uint8).numpy().data


def _largest(row: Tensor) -> float:
    if not row.numel():
        return 0.0
    least, most = map(float, torch.aminmax(row))
    return max(-least, most) if isfinite(least) and isfinite(most) else inf


Table = Tensor | ClientTable


def needed(table: Table, mask: Tensor) -> Tensor:
    """Ids of the clients whose rows have to be read, if only those of `mask` count.

    All clients if the table is in memory: to leave out rows of weight 0 changes the rounding of matrix products.
    """
    if isinstance(table, ClientTable) and not table.in_memory:
        return mask.nonzero().flatten()
    return torch.arange(len(mask))


def blocks(table: Table, ids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids and their rows, as in `ClientTable.blocks`."""
    return table.blocks(ids) if isinstance(table, ClientTable) else iter([(ids, table[ids])])


def weighted_sum(table: Table, ids: Tensor, weights: Tensor) -> Tensor:
    """Σ weights_k table[ids_k]."""
    out, done = torch.zeros(table.shape[1]), 0
    for part, rows in blocks(table, ids):
        out += weights[done : done + len(part)] @ rows
        done += len(part)
    return out


def mean_of(table: Table, ids: Tensor) -> Tensor:
    """The mean of these clients' vectors."""
    total = sum((rows.sum(0) for _, rows in blocks(table, ids)), torch.zeros(table.shape[1]))
    return total / len(ids)


def mixed(weights: Tensor, table: Table) -> Tensor:
    """`weights @ table` for weights [..., clients]; rows in a file are read once, a block at a time."""
    if isinstance(table, Tensor) or table.in_memory:
        return weights @ table[:]
    own = torch.zeros(len(table), dtype=torch.bool)
    own[table.written] = True
    flat = weights.reshape(-1, len(table))
    out = flat[:, ~own].sum(1, keepdim=True) * table.default
    for ids, rows in table.blocks((own & (flat != 0).any(0)).nonzero().flatten()):
        out.addmm_(flat[:, ids], rows)
    return out.view(*weights.shape[:-1], -1)
