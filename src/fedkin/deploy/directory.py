"""Maps clients to their current Flower nodes. A client is known by its name: it may come back as another node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

import fedkin
from fedkin.deploy.codec import MOST_CLASSES, MOST_EXAMPLES, Malformed, SiteInfo, claimed_name, decode_info, encode_text

T = TypeVar("T")
LOOK_EVERY = 1.0  # seconds between two checks of who is connected
ASK_AGAIN = 10.0  # seconds before a node that did not introduce itself is asked again


class Node(NamedTuple):
    id: int
    started: str
    """When it was last activated: a supernode that was restarted has lost its task."""
    key: bytes


class NodeDirectory:
    def __init__(
        self,
        grid: Grid,
        names: Sequence[str],
        *,
        notify: Callable[[str], None],
        bind_keys: bool = False,
        keys: Mapping[str, bytes] | None = None,
        max_examples: int = MOST_EXAMPLES,
        max_classes: int = MOST_CLASSES,
        task: str = "",
    ) -> None:
        """`bind_keys`: a name belongs to the key it first came with; `keys` are those known before. Sites that claim
        more training examples or classes than allowed are refused: they would outweigh all others. So are sites whose
        targets are of another kind than `task`."""
        self._grid, self._names, self._bind, self._notify = grid, set(names), bind_keys, notify
        self._max_examples, self._max_classes, self._task = max_examples, max_classes, task
        self.refused: dict[str, str] = {}
        """Clients of the run that cannot take part, and why."""
        self.infos: dict[str, SiteInfo] = {}
        self._nodes: dict[int, Node] = {}
        self._speaks: dict[str, int] = {}
        self.keys: dict[str, bytes] = dict(keys or {})
        self._asked: dict[str, Node] = {}
        self._met: dict[Node, float] = {}
        """Nodes that were asked for their names, and when they may be asked again; a restarted node counts as new."""
        self._looked = 0.0
        self._preprocessing = ""

    def node(self, name: str) -> Node | None:
        """The node of a client, if it is connected."""
        return self._nodes.get(self._speaks.get(name, 0))

    def look(self) -> float:
        """Check who is connected and ask new nodes for their names. Return how long the superlink did not answer."""
        if time.monotonic() - self._looked < LOOK_EVERY:
            return 0.0
        begin = time.monotonic()
        found = call(lambda: list(self._grid.get_nodes()))
        self._looked = time.monotonic()
        if found is None:
            return self._looked - begin
        self._nodes = {n.node_id: Node(n.node_id, n.last_activated_at, n.public_key) for n in found}
        new = [node for node in self._nodes.values() if self._met.get(node, 0.0) < self._looked]
        content = encode_text(self._preprocessing) if self._preprocessing else RecordDict()
        hello = [Message(content, dst_node_id=node.id, message_type="query.hello") for node in new]
        for node, sent in zip(new, push(self._grid, hello)):
            if sent:
                self._asked[sent] = node
                self._met[node] = float("inf")
        for reply in pull(self._grid, self._asked):
            self._hear(self._asked.pop(reply.metadata.reply_to_message_id), reply)
        return self._looked - begin

    def introduce_again(self, preprocessing: str) -> None:
        """Ask all clients to introduce themselves again, with the preprocessing that determines their features."""
        self._preprocessing = preprocessing
        for table in (self.infos, self._speaks, self._met, self._asked):
            table.clear()

    def ask(self, kind: str, content: RecordDict, seconds: float) -> dict[str, RecordDict]:
        """Ask every client a question. Clients that do not answer in time are missing from the result."""
        there = {name: node for name in sorted(self._names) if (node := self.node(name)) is not None}
        letters = [Message(content, dst_node_id=node.id, message_type=f"query.{kind}") for node in there.values()]
        open_ = {sent: name for name, sent in zip(there, push(self._grid, letters)) if sent}
        out: dict[str, RecordDict] = {}
        end = time.monotonic() + seconds
        while open_ and time.monotonic() < end:
            for reply in pull(self._grid, open_):
                name = open_.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    self._notify(f"{name} did not answer: {reason(reply)}")
                else:
                    out[name] = reply.content
            if open_:
                time.sleep(0.2)
        return out

    def absent(self) -> list[str]:
        return sorted(name for name in self._names if self.node(name) is None)

    def _hear(self, newcomer: Node, reply: Message) -> None:
        node, key = newcomer.id, newcomer.key
        if reply.has_error():
            self._met[newcomer] = time.monotonic() + ASK_AGAIN
            self._notify(f"node {node} did not introduce itself: {reason(reply)}")
            return
        try:
            info = decode_info(reply.content)
        except Malformed as error:
            self._notify(f"node {node} is refused: {error}")
            if (name := claimed_name(reply.content)) in self._names:
                self._refuse(name, key, str(error))
            return
        if why := info.error or self._unfit(info):
            self._notify(f"node {node} ('{info.client}') cannot take part: {why}")
            if info.client in self._names:
                self._refuse(info.client, key, why)
        elif info.client not in self._names:
            self._notify(f"node {node} is refused: '{info.client}' is not one of {', '.join(sorted(self._names))}")
        elif self._bind and self.keys.setdefault(info.client, key) != key:
            self._notify(f"node {node} is refused: it calls itself '{info.client}', but has another key")
        elif info.client in self.infos and self._changed(self.infos[info.client], info):
            self._notify(f"node {node} is refused: '{info.client}' has examples of another shape than before")
        else:
            self._notify(f"{info.client} is connected as node {node}, with {info.train} training examples")
            if info.fedkin != fedkin.__version__:
                self._notify(
                    f"{info.client} has fedkin {info.fedkin or 'of an unknown version'}, the server has "
                    f"{fedkin.__version__}: results may differ, so install the same version on every machine"
                )
            self.refused.pop(info.client, None)
            self.infos[info.client] = info
            self._speaks[info.client] = node

    @staticmethod
    def _changed(before: SiteInfo, now: SiteInfo) -> bool:
        return (before.shape, before.task, before.outputs) != (now.shape, now.task, now.outputs)

    def _refuse(self, name: str, key: bytes, why: str) -> None:
        """Remember why a client cannot take part, unless a node with another key says so in its name."""
        if not (self._bind and self.keys.get(name, key) != key):
            self.refused[name] = why

    def _unfit(self, info: SiteInfo) -> str:
        if self._task and info.task != self._task:
            return f"its targets are those of a {info.task}, the run's task is {self._task} (`task` in the site's file)"
        if info.train > self._max_examples:
            return f"it says it has {info.train} training examples; run.max_examples allows {self._max_examples}"
        if (count := max(info.classes, info.outputs)) > self._max_classes:
            what = "classes" if info.classes else "targets"
            return f"it says it has {count} {what}; run.max_classes allows {self._max_classes}"
        return ""

    def gather(self, seconds: float) -> list[str]:
        """Wait until all are connected, or one of them cannot take part. Return the names that are missing."""
        end = time.monotonic() + seconds
        while self.absent() and not self.refused and time.monotonic() < end:
            self.look()
            time.sleep(0.2)
        return self.absent()


# ---- the grid, with its failures as values
def call(ask: Callable[[], T]) -> T | None:
    """The superlink's answer; None if there is none. By then Flower itself has retried for a while."""
    try:
        return ask()
    except httpx.TransportError:
        return None
    except httpx.HTTPStatusError as error:
        if error.response.status_code < 500:
            raise
        return None


def push(grid: Grid, messages: list[Message]) -> list[str | None]:
    """The messages' ids, None for those that could not be sent."""
    if not messages:
        return []
    sent = call(lambda: list(grid.push_messages(messages)))
    return [i or None for i in sent] if sent and len(sent) == len(messages) else [None] * len(messages)


def pull(grid: Grid, ids: Iterable[str]) -> list[Message]:
    wanted = list(ids)
    return (call(lambda: list(grid.pull_messages(wanted))) or []) if wanted else []


def reason(reply: Message) -> str:
    lines = (reply.error.reason or "").strip().splitlines()
    return f"{lines[-1] if lines else 'no reason given'} (Flower's code {reply.error.code})"
