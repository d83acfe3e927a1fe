"""Replies that would ruin the server's state: how they are noticed, and whose they are.

A reply may be finite and still so large that the merged model is not, or that the next round of every client fails. So
the state is checked after each merge, before it is kept. If it is not usable, the round is repeated without the
clients whose replies have the largest numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import isfinite

from torch import Tensor

from fedkin.engine.round import NoReplies, RoundClients
from fedkin.engine.runner import ClientError, reach
from fedkin.maths.table import TableError
from fedkin.protocol import Method, State, UnusableReplies
from fedkin.results.files import StorageError
from fedkin.results.summary import QUARANTINED

Clients = tuple[int, ...]
NOT_FINITE = "the merged model would hold NaN or infinity"
GROWTH = 1e6  # no merge of valid replies makes the numbers of a state a million times larger
APART = 2.0  # a reply with numbers this many times the median client's may have made the models grow
ATTEMPTS = 3  # number of the largest replies to leave out before giving up


def sound(
    method: Method, before: State, after: State | None, clients: RoundClients, error: Exception | None = None
) -> State:
    """The state to keep after a round that made `after`, or that failed with `error`.

    Raise NoReplies if no reply can be used.
    """
    everybody = clients.ids
    unusable: dict[int, str] = {}
    while isinstance(error, UnusableReplies) and not unusable.keys() >= set(error.clients):
        unusable |= dict.fromkeys(error.clients, str(error))
        after, error = _without(unusable, everybody, method, before, clients)
    for client, text in unusable.items():
        clients.drop(client, f"{QUARANTINED}{text}")
    if after is None and error is None:
        raise NoReplies
    why = f"the merge failed ({type(error).__name__}: {error})" if after is None else ""
    why = why or problem(method, before, after or {}, clients)
    if not why:
        assert after is not None
        return after
    reaches, odd, everybody = clients.reaches(), clients.odd_shapes(), clients.ids
    large = after is not None and why != NOT_FINITE
    if large and not (outliers(reaches) or apart(reaches)):
        assert after is not None
        return after  # the numbers of all replies have grown
    for without in suspects(reaches, odd, merged=after is not None, large=large):
        clients.start_again(everybody, without)
        mended, still = _again(method, before, clients)
        if not still:
            for client in without:
                what = f"has the shapes {odd[client]}" if client in odd else f"reaches {reaches[client]:.2g}"
                clients.drop(client, f"{QUARANTINED}with its reply, which {what}, {why}")
            if mended is None:
                raise NoReplies
            return mended
    if error is not None:
        raise error  # no reply is to blame: it is a bug in the method
    if why != NOT_FINITE:
        clients.start_again(everybody, ())
        return method.round(before, clients)  # large, but because of all clients
    raise ClientError(
        f"Round {clients.number}: {why}, also without the largest replies. Lower --lr, or look for a division by zero "
        f"in {type(method).__name__}.merge. The last checkpoint is sound."
    )


def _without(
    unusable: Collection[int], everybody: Tensor, method: Method, before: State, clients: RoundClients
) -> tuple[State | None, Exception | None]:
    """Repeat the round without these clients. Return the state, or the error; neither if there are no replies."""
    clients.start_again(everybody, unusable)
    try:
        return (method.round(before, clients) if len(clients.ids) else None), None
    except NoReplies:
        return None, None
    except (StorageError, TableError):
        raise
    except Exception as error:
        return None, error


def _again(method: Method, before: State, clients: RoundClients) -> tuple[State | None, str]:
    """Repeat the round. Return the state (None if there are no replies) and why it cannot be used."""
    try:
        after = method.round(before, clients) if len(clients.ids) else None
    except NoReplies:
        return None, ""
    except (StorageError, TableError):
        raise
    except Exception as error:
        return None, str(error)
    return after, problem(method, before, after, clients) if after is not None else ""


def problem(method: Method, before: State, after: State, clients: RoundClients) -> str:
    """Why a merged state cannot be used; empty if it can.

    A method may use NaN or infinity for unknown values. What matters is what clients would be sent. A hostile client
    may make models grow slowly, a few times in each round: so they are also compared with those of the start.
    """
    size = reach(after)
    if not isfinite(size):
        if not isfinite(reach(tuple(method.send(after, clients.ids)))):
            return NOT_FINITE
        size = reach(after, finite=True)
    start = reach(before, finite=True)
    if size > GROWTH * max(start, 1.0):
        return f"the merged state would reach {size:.2g}, after {start:.2g} in the round before"
    start = max(clients.start_reach, 1.0)
    if size > GROWTH * start and (sent := reach(tuple(method.send(after, clients.ids)))) > GROWTH * start:
        return f"the models to send would reach {sent:.2g}, after {start:.2g} at the start of the run"
    return ""


def suspects(
    reaches: Mapping[int, float], odd: Collection[int] = (), *, merged: bool = True, large: bool = False
) -> Iterator[Clients]:
    """Sets of clients to leave out, one after another, until a round can be used.

    First those with much larger numbers than others. If the merge failed, then those with unusual shapes, all
    together and one by one; if it gave NaN, not only `large` numbers, then those with the largest.
    """
    tried = set()
    for without in _suspects(reaches, odd, merged, large):
        if without and frozenset(without) not in tried:
            tried.add(frozenset(without))
            yield without


def _suspects(reaches: Mapping[int, float], odd: Collection[int], merged: bool, large: bool) -> Iterator[Clients]:
    yield outliers(reaches)
    if merged:
        yield apart(reaches)
    if merged and not large:
        order = sorted(reaches, key=lambda client: (-reaches[client], client))
        yield from (tuple(order[:count]) for count in range(1, ATTEMPTS + 1))
    elif not merged and odd:
        yield tuple(sorted(odd))
        yield from ((client,) for client in sorted(odd)[:ATTEMPTS])
        yield tuple(sorted({*odd, *outliers(reaches)}))


def outliers(reaches: Mapping[int, float]) -> Clients:
    """The clients whose replies have numbers a million times larger than those of the median client."""
    ordered = sorted(reaches.values())
    usual = ordered[(len(ordered) - 1) // 2] if len(ordered) > 1 else 0.0
    return tuple(client for client, far in sorted(reaches.items()) if far > GROWTH * max(usual, 1.0))


def apart(reaches: Mapping[int, float]) -> Clients:
    """The clients above the widest gap in the upper half of the replies' numbers, if these are twice the median's."""
    order = sorted(reaches, key=lambda client: (reaches[client], client))
    first = len(order) // 2 + 1  # most clients are honest
    gaps = [reaches[order[i]] / max(reaches[order[i - 1]], 1e-300) for i in range(first, len(order))]
    if not gaps:
        return ()
    cut = first + gaps.index(max(gaps))
    return tuple(sorted(order[cut:])) if reaches[order[cut]] >= APART * reaches[order[first - 1]] else ()
