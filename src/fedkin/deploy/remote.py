"""`RemoteFederation`: the clients as the server knows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from fedkin.data.partition import Ints
from fedkin.deploy.codec import SiteInfo
from fedkin.protocol import Data, Examples


@dataclass(frozen=True)
class RemoteFederation:
    """The clients as the server knows them: their examples are elsewhere."""

    infos: tuple[SiteInfo, ...]
    secure: bool = False
    """The server sees the mean of their replies alone."""

    def __post_init__(self) -> None:
        shapes = {info.shape for info in self.infos}
        if len(shapes) > 1:
            listed = "; ".join(f"{info.client}: [{info.shape}]" for info in self.infos)
            raise ValueError(f"The sites' examples have different shapes ({listed}): give all of them one shape.")
        headers = {info.columns for info in self.infos if info.columns}
        if len(headers) > 1:
            listed = "; ".join(f"{info.client}: {info.columns or 'no names'}" for info in self.infos)
            raise ValueError(
                f"The sites' columns differ in name or order (digests {listed}): use the same columns everywhere."
            )

        targets = {(info.task, info.outputs) for info in self.infos}
        if len(targets) > 1:
            listed = "; ".join(f"{info.client}: {info.task}, {info.outputs or info.classes}" for info in self.infos)
            raise ValueError(
                f"The sites have different targets (task and number: {listed}): use the same label columns everywhere."
            )

    def __len__(self) -> int:
        return len(self.infos)

    @property
    def description(self) -> dict[str, Any]:
        kinds = {info.data for info in self.infos}
        about = {"engine": "flower", "data": kinds.pop() if len(kinds) == 1 else "own", "clients": len(self)}
        return about | ({"secure": True} if self.secure else {})

    @property
    def classes(self) -> int:
        """The largest number at any site: some sites may not have every class. 0 if the task has none."""
        return max(info.classes for info in self.infos)

    @property
    def outputs(self) -> int:
        return self.classes or self.infos[0].outputs

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(int, self.infos[0].shape.split()))

    @property
    def groups(self) -> Ints | None:
        return None

    @cached_property
    def sizes(self) -> Tensor:
        return torch.tensor([info.train for info in self.infos])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(info.client for info in self.infos)

    @property
    def example(self) -> Tensor:
        made = torch.zeros(1, *self.shape)
        return made.contiguous(memory_format=torch.channels_last) if made.dim() == 4 else made

    def data(self, client: int, *, with_test: bool = False) -> Data:
        raise RuntimeError("Examples never leave their site.")

    def test(self, client: int) -> Examples:
        raise RuntimeError("Examples never leave their site.")

    def fingerprint(self) -> str:
        """A hash of who takes part, but not of how many examples they have: a site's data may grow."""
        text = json.dumps([self.names, self.shape, self.classes or [self.infos[0].task, self.outputs]])
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def facts(self) -> Iterator[tuple[int | None, str, Any]]:
        for client, info in enumerate(self.infos):
            yield client, "train_examples", info.train
            yield client, "validation_examples", info.validation
            yield client, "test_examples", info.test
            yield client, "name", info.client
