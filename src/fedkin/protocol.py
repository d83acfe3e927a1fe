"""The contract between a method and the engine that runs it.

In a round the server sends each client a message, the client works on its own data, and the server merges the replies.
A method is one file with both sides. The engine knows no method, and a method knows no engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedkin.bounds import Bound, check
from fedkin.client.settings import Training as Training
from fedkin.maths.table import ClientTable

if TYPE_CHECKING:
    from fedkin.models.network import Layout, Network

State = dict[str, Any]  # named arrays, tables and numbers, nothing else: it is written to safetensors and JSON
Model = Tensor | dict[str, Tensor]  # a flat vector, or named arrays where a method uses more than one network
Function = TypeVar("Function", bound=Callable[..., Any])
MANY_PAIRS = 1 << 27  # bytes of a float32 matrix of clients × clients: about 5,800 clients
Rows = TypeVar("Rows", Tensor, ClientTable)


class Message(NamedTuple):
    """What goes to clients. `shared` is the same for all; `own[k][i]` is for the i-th client asked.

    An entry of `own` is one array whose first dimension is the clients, or a list of arrays where their shapes differ.
    A client receives the same type, in which each entry of `own` is its own part.
    """

    shared: tuple[Tensor, ...] = ()
    own: tuple[Tensor | list[Tensor], ...] = ()

    def for_position(self, position: int) -> Message:
        return Message(self.shared, tuple(part[position] for part in self.own))


class Examples(NamedTuple):
    x: Tensor
    y: Tensor


class Data:
    """One client's examples, loaded on first use. Test examples are there only for a method that `sees_test`."""

    def __init__(
        self,
        train: Callable[[], Examples],
        validation: Callable[[], Examples],
        classes: int,
        test: Callable[[], Examples] | None = None,
    ) -> None:
        self.classes = classes
        self._train, self._validation, self._test = train, validation, test

    @cached_property
    def train(self) -> Examples:
        return self._train()

    @property
    def x(self) -> Tensor:
        return self.train.x

    @property
    def y(self) -> Tensor:
        return self.train.y

    @cached_property
    def validation(self) -> Examples:
        """Examples held out of training for making choices; there may be none."""
        return self._validation()

    @cached_property
    def test(self) -> Examples:
        if self._test is None:
            raise PermissionError("Test examples are for the scorer only: choose on client.data.validation.")
        return self._test()


class Client(NamedTuple):
    """What a client function works with: private state that never travels, data, a seed, and a network."""

    state: State
    data: Data
    seed: int
    net: Network
    training: Training


class Reply(NamedTuple):
    """What a client function returns: its next private state, and the arrays that travel."""

    state: State
    body: tuple[Tensor, ...]


class Replies(NamedTuple):
    """Who answered, and what: entry r of every array belongs to client `ids[r]`, which was asked at `position[r]`.

    Replies get lost: index by `ids` or `position`, never by the order in which clients were asked.
    """

    ids: Tensor
    n: Tensor
    body: tuple[Any, ...]
    position: Tensor
    seed: int

    @property
    def weights(self) -> Tensor:
        """Each answer's share of the examples behind all answers."""
        return (self.n.double() / self.n.sum()).float()

    def weights_by(self, weighting: str) -> Tensor:
        """`size`: by the number of examples. `equal`: all answers count the same."""
        return self.weights if weighting == "size" else torch.full((len(self.ids),), 1 / len(self.ids))


class Clients(Protocol):
    """The engine as a method sees it."""

    ids: Tensor

    def run(self, function: Callable[..., Reply], message: Message) -> Replies:
        """Run a client function at every client of `ids`. Clients that fail are missing from the replies."""


@dataclass(frozen=True)
class Server:
    """What the server knows about the federation: never the data, only how many examples there are."""

    ids: Tensor
    """Clients present in this round; they may come and go."""
    n: Tensor
    """Number of training examples of every client of the run, by id."""
    classes: int
    seed: int
    participation: float
    training: Training
    layout: Layout
    initial: Callable[[int], Tensor]
    least_loss: float | None = 0.0
    """The smallest value of the task's loss; None if it is not known."""

    @property
    def size(self) -> int:
        return len(self.n)

    @property
    def loss_bound(self) -> Bound:
        """What a client's loss may be, for `Method.reply_bounds`."""
        return Bound(least=self.least_loss)

    def equal_shares(self, *models: int) -> Tensor:
        """Each client's share in a model that nobody has trained yet: [clients], or [models, clients]."""
        return torch.full((*models, self.size), 1 / self.size)

    def rng(self, round: int, *tag: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, round, 0x5E21, *tag])

    def sample(self, round: int) -> Tensor:
        """Uniform without replacement, at the run's participation, at least one client."""
        count = max(1, round_half_up(self.participation * len(self.ids)))
        if count == len(self.ids):
            return self.ids
        picked = self.rng(round).choice(len(self.ids), size=count, replace=False)
        return self.ids[torch.from_numpy(np.sort(picked))]


def round_half_up(value: float) -> int:
    return int(np.floor(value + 0.5))


class UnusableReplies(ValueError):
    """Raise this in a merge if replies of these clients cannot be used: the round is repeated without them, and they
    are named in the history."""

    def __init__(self, clients: Iterable[int], why: str) -> None:
        self.clients = tuple(clients)
        super().__init__(why)


def require(replies: Replies, fits: Iterable[bool], why: str) -> None:
    """Raise `UnusableReplies` for the replies that do not fit. `why` follows the client's name: "replied with …"."""
    if wrong := [client for client, fit in zip(replies.ids.tolist(), fits) if not fit]:
        raise UnusableReplies(wrong, why)


def client_function(function: Function) -> Function:
    """Mark a method's function as one that runs at clients. Nothing else can be called there."""
    function.__client__ = True  # type: ignore[attr-defined]
    return function


def ragged(function: Function) -> Function:
    """Mark a client function whose replies may differ in shape from client to client. `body` then holds lists if
    they do, and the method checks the shapes itself (see `UnusableReplies`)."""
    function.__ragged__ = True  # type: ignore[attr-defined]
    return client_function(function)


def is_client_function(owner: object, name: str) -> bool:
    return bool(getattr(getattr(type(owner), name, None), "__client__", False))


class Method(ABC):
    """A personalized federated learning method: a frozen dataclass whose fields are its hyper-parameters.

    Every hook takes what it needs and returns what is new; nothing is kept on the instance.
    """

    paper: ClassVar[str] = ""
    """Authors, venue and year of the paper."""
    citation: ClassVar[str] = ""
    """Its BibTeX entry."""
    travels: ClassVar[str] = ""
    """What goes between server and clients, in a few words."""
    stays: ClassVar[str] = ""
    """What stays at a client between rounds."""
    needs_classes: ClassVar[bool] = False
    """True for a method that needs class labels, so that it cannot learn a regression."""
    needs_sgd: ClassVar[str] = ""
    """A sentence that says why the method's derivation needs plain SGD at the clients; empty if it does not. A run with
    another optimizer or with clipping says so before round 1."""
    needs_validation: ClassVar[str] = ""
    """What this method is without validation examples, in a sentence, where it needs them to act. A run on clients that
    have none says so before round 1."""
    quadratic: ClassVar[str] = ""
    """What the server keeps for every pair of clients, and what else grows with them; empty if it keeps nothing. A run
    with thousands of clients says so, with the size of such a matrix, before round 1."""
    matters: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """For `fedkin verify`, which changes each field and expects a different outcome: other settings that must hold for
    a field to have an effect (`{"fine_tune_epochs": {"fine_tune": True}}`) and, under its own name, the value to
    try."""

    def __post_init__(self) -> None:
        """Check every field against its annotation. Rules between fields go into an override that calls this first."""
        if is_dataclass(self):
            check(self)

    @property
    def sees_test(self) -> bool:
        """True only for a method that learns from test examples because its paper does; a run then says so."""
        return False

    @property
    def model_holds(self) -> str:
        """What a client's personal model holds of its single training examples, in a few words; empty if nothing.
        Whoever writes such a model says so: the file is personal data."""
        return ""

    @property
    def from_zero(self) -> tuple[int, ...]:
        """Indices of the arrays of a reply that are differences or gradients. Defenses and privacy take all others as
        continuing the array of the same shape that the client was sent."""
        return ()

    def reply_bounds(self, fed: Server, client: int) -> Mapping[int, Bound]:
        """What this client may send in arrays of a reply that are not parameters: losses, counts, choices. By index.

        A reply outside is not merged, and its client is named. If a bound has no upper end, a number ten thousand times
        larger than the median client's is outside.
        """
        return {}

    @property
    def averages(self) -> str:
        """`size` or `equal` if the merge uses nothing of the replies but their mean with these weights (as in
        `Replies.weights_by`): then a server can do without seeing single replies (`run.secure` in docs/privacy.md)."""
        return ""

    # ---- server
    @abstractmethod
    def init(self, fed: Server) -> State:
        """The server's state before round 1."""

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        """Why this method cannot act in this run, one text for each reason; shown before round 1."""
        return []

    def select(self, state: State, fed: Server, round: int) -> Tensor:
        """Who takes part in this round."""
        return fed.sample(round)

    @abstractmethod
    def send(self, state: State, ids: Tensor) -> Message:
        """What each of these clients would receive now. Also called for clients that do not take part."""

    @abstractmethod
    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        """The next server state."""

    def round(self, state: State, clients: Clients) -> State:
        """One round. Override it only if a round has several exchanges."""
        sent = self.send(state, clients.ids)
        return self.merge(state, sent, clients.run(self.local, sent))

    # ---- client
    def init_client(self) -> State:
        """A client's private state before it first takes part."""
        return {}

    @abstractmethod
    def local(self, client: Client, message: Message) -> Reply:
        """One client's work in a round, in ordinary PyTorch. It is a client function in every subclass."""

    def received(self, client: Client, message: Message) -> Model | None:
        """The model as sent, before any work of the client; None if nothing is sent."""
        parts = message.own or message.shared
        vector = parts[0] if parts else None
        return vector if isinstance(vector, Tensor) else None

    @abstractmethod
    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        """The model this client would use now.

        `trained()` is what `local` returns for this message: it is run on demand. `client.state` is what the client
        has kept since it last took part.
        """

    def join(self, state: State, client: Client, id: int) -> Message:
        """What a newcomer is sent after training. `state` has room for its `id`, as for a client that never answered.

        Override it if the newcomer's own examples should decide, for example by the group whose model fits them best.
        """
        return self.send(state, torch.tensor([id])).for_position(0)

    def predict(self, client: Client, personal: Model, x: Tensor) -> Tensor:
        """Scores [examples, classes] of a personal model: log-probabilities or logits."""
        if not isinstance(personal, dict | Tensor):
            raise TypeError(
                f"{type(self).__name__}.personal must return a flat vector or a dict of arrays; it returned "
                f"{'None' if personal is None else f'a {type(personal).__name__}'}."
            )
        if not isinstance(personal, Tensor):
            raise TypeError(
                f"{type(self).__name__}.personal returned {sorted(personal)}, not one flat vector: "
                "override predict() to say how these arrays predict."
            )
        client.net.load(personal)
        return client.net(x)

    # ---- to look at
    def describe_personal(self, personal: Model) -> dict[str, float]:
        """Numbers about one client's personal model for the history, as `model_NAME`. Names that begin with `weight_`
        are shares of the model's parts: the report shows them for each client."""
        return {}

    def mixing(self, state: State) -> Tensor | dict[str, Tensor] | None:
        """Who contributes how much to whose next model: [clients, clients], rows sum to 1. Named matrices where parts
        of the model are mixed in different ways."""
        return None

    def describe(self, state: State) -> dict[str, Any]:
        """Numbers and lists of this round for the history. `clusters`, a label for each client, is compared with the
        true groups where they are known."""
        return {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "local" in cls.__dict__:
            client_function(cls.__dict__["local"])


def needs_plain_sgd(method: Method, training: Training) -> list[str]:
    """A warning if the method's derivation assumes plain SGD and the clients take other steps."""
    other = [f"optimizer={training.optimizer}"] if training.optimizer != "sgd" else []
    other += [f"clip={training.clip:g}"] if training.clip else []
    if not method.needs_sgd or not other:
        return []
    return [
        f"{type(method).__name__} needs plain SGD: {method.needs_sgd} This does not hold with {' and '.join(other)}. "
        "Use optimizer=sgd without clip, or read the results with care."
    ]


def needs_few_clients(method: Method, clients: int) -> list[str]:
    """A warning if the method keeps a number for every pair of clients and these are many."""
    size = 4 * clients**2
    if not method.quadratic or size < MANY_PAIRS:
        return []
    return [
        f"With {clients} clients, memory and time of {type(method).__name__}'s server grow with their square: it keeps "
        f"{method.quadratic} One matrix of clients × clients takes {size / 1e9:.1f} GB, and a round needs a few of "
        "them. kin, ditto, pflic and fedcedar have no such matrix."
    ]


def needs_validation_examples(method: Method, validation: float | None) -> list[str]:
    """A warning if the method acts by validation examples and clients have none; None: how many is not known."""
    if not method.needs_validation or validation != 0:
        return []
    return [
        f"{type(method).__name__} needs validation examples, and there are none: {method.needs_validation} Set "
        "validation above 0."
    ]


def with_rows(table: Rows, ids: Sequence[int] | Tensor, values: Tensor) -> Rows:
    """A copy of `table` in which the rows of `ids` are `values`. A `ClientTable` shares all others."""
    if not isinstance(table, Tensor):
        return table.with_rows(ids, values)
    out: Any = table.clone()
    out[torch.as_tensor(ids)] = values
    return out  # type: ignore[no-any-return]
