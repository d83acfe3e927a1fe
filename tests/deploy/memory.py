"""A grid in memory: the sites' own code is called directly, over the wire's own bytes, with faults on demand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedkin.deploy import client


def wired(record: RecordDict) -> RecordDict:
    """As Flower sends it: taken apart into bytes, and put together again."""
    contents = {name: thing.deflate() for name, thing in get_all_nested_objects(record).items()}
    made = inflate_object_from_contents(record.object_id, contents)
    assert isinstance(made, RecordDict)
    return made


class Memory(Grid):
    """`fault(grid, node, message)` may return an error code, "lost" (no reply ever), or a reply's record."""

    def __init__(self, config: dict[str, Any], fault: Callable[..., Any] | None = None) -> None:
        self.config, self.fault = config, fault
        self.nodes: dict[int, Any] = {}
        self.homes: dict[int, dict[str, Any]] = {}
        self.replies: dict[str, Message] = {}
        self.asked: list[tuple[int, str]] = []
        self._ids = itertools.count(1)

    def join(self, config: dict[str, Any], key: bytes = b"") -> int:
        node = next(self._ids) + 1000
        self.homes[node] = config
        self.nodes[node] = SimpleNamespace(node_id=node, last_activated_at=f"at {node}", public_key=key)
        return node

    def leave(self, node: int) -> dict[str, Any]:
        del self.nodes[node]
        return self.homes[node]

    def restart(self, node: int) -> None:
        self.nodes[node].last_activated_at = f"again at {next(self._ids)}"

    def get_nodes(self) -> Iterable[Any]:
        return [SimpleNamespace(**vars(node)) for node in self.nodes.values()]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        out = []
        for message in messages:
            name = f"m{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = name
            out.append(name)
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            self.asked.append((node, kind))
            made = self.fault(self, node, message) if self.fault else None
            if made == "lost" or node not in self.nodes:
                continue
            if isinstance(made, int):
                self.replies[name] = Message(Error(made, "as ordered"), reply_to=message)
            elif isinstance(made, RecordDict):
                self.replies[name] = Message(made, reply_to=message)
            else:
                arrived = make_message(metadata=message.metadata, content=wired(message.content))
                context = Context(1, node, self.homes[node], RecordDict(), dict(self.config))
                handlers = {"query.hello": client.hello, "query.statistics": client.statistics}
                answer = handlers.get(kind, client.task)(arrived, context)
                self.replies[name] = make_message(metadata=answer.metadata, content=wired(answer.content))
        return out

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    # what fedkin does not use
    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        raise NotImplementedError("it waits for all, in steps of three seconds")
