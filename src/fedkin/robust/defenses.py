"""Defenses of the server against hostile clients: `--defend normbound`. They change replies before a method merges.

A method merges replies in its own way, so a defense cannot replace the merge. It replaces each reply by a safe one
instead. With u_i the change of reply i against what client i was sent:

| name | what becomes of the replies | number |
|---|---|---|
| normbound | u_i is shortened to at most NUMBER times the median length | 1 |
| median | every u_i becomes the coordinate-wise median of all | none |
| trimmed | each coordinate of u_i is clamped to what is left after trimming a fraction NUMBER at both ends | 0.2 |
| krum | every u_i becomes the one that Krum selects; NUMBER is the fraction of clients that may be hostile | 0.2 |
| multikrum | the fraction NUMBER of the replies with the worst Krum scores is left out, as if lost | 0.2 |
| report | nothing: outliers are only named | none |

If all clients were sent one model and the server averages, then median, krum and multikrum are exactly those of the
papers, and trimmed is the winsorized mean, with the trimmed mean's breakdown point. Where each client is sent a model
of its own, the safe change is applied to that model, so personal models stay personal. median and krum make all changes
equal, so a method that looks for similar clients finds no differences: normbound and trimmed leave them. Clients that
were sent the same model (up to rounding), at least five of them, are then judged by Krum among themselves.

Every array of a reply is defended by itself; Krum and the report look at the largest one. Only arrays of equal shapes
can be compared, and fewer than three cannot be judged.

Norm bound: Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?", 2019. Median, trimmed mean:
Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning", ICML 2018. Krum: Blanchard, El Mhamdi,
Guerraoui, Stainer, "Machine Learning with Adversaries", NeurIPS 2017.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import torch
from torch import Tensor

from fedkin.protocol import Message, round_half_up
from fedkin.robust.updates import judged, offers, references

NUMBERS = {"normbound": 1.0, "median": 0.0, "trimmed": 0.2, "krum": 0.2, "multikrum": 0.2, "report": 0.0}
FEWEST = 3  # replies that can be judged
FEWEST_OF_A_GROUP = 5  # Krum with one hostile client needs five
SAME = 1e-3  # models nearer than this part of the median update are the same: they differ by rounding
OUTLIER = 3.5  # modified z-score above which a reply is named (Iglewicz and Hoaglin, 1993)
Bodies = Mapping[int, Sequence[Tensor]]


@dataclass(frozen=True)
class Defended:
    """Replies after a defense, by client."""

    bodies: dict[int, tuple[Tensor, ...]]
    left_out: dict[int, str] = field(default_factory=dict)
    """Clients whose replies are not used, and why."""
    outliers: dict[int, str] = field(default_factory=dict)
    """Clients whose replies are unlike the others', and how."""


@dataclass(frozen=True)
class Defense:
    name: str
    number: float

    @classmethod
    def read(cls, text: str) -> Defense | None:
        """Parse `normbound` or `trimmed:0.3`; None if the text is empty."""
        if not text:
            return None
        name, colon, value = (word.strip() for word in text.partition(":"))
        try:
            number = float(value) if colon else NUMBERS[name]
            allowed = name in NUMBERS and isfinite(number) and (not colon or number > 0)
            allowed = allowed and not (name in ("trimmed", "krum", "multikrum") and number >= 0.5)
        except (ValueError, KeyError):
            allowed = False
        if not allowed:
            raise ValueError(
                f"defend='{text}' is not a defense; expected NAME or NAME:NUMBER, such as trimmed:0.2 (the fractions "
                f"of trimmed, krum and multikrum are below 0.5). Known: {', '.join(NUMBERS)}."
            )
        return cls(name, number)

    def apply(self, bodies: Bodies, sent: Mapping[int, Message], from_zero: Collection[int] = ()) -> Defended:
        """The replies of one exchange made safe. `sent` holds what each client received."""
        safe = {client: list(body) for client, body in bodies.items()}
        left_out: dict[int, str] = {}
        outliers: dict[int, str] = {}
        selected: dict[int, int] = {}  # by Krum, for each client
        for k in _largest_first(bodies):
            for clients in _alike(bodies, k):
                if len(clients) < FEWEST:
                    continue
                base = _base(k, clients, bodies, sent, from_zero)
                updates = torch.stack([bodies[c][k] for c in clients]) - base
                if k == _largest_first(bodies)[0]:
                    outliers |= {clients[i]: text for i, text in unlike(updates).items()}
                    if self.name in ("krum", "multikrum"):
                        found, worst = self._krum(updates, base)
                        selected |= {clients[i]: clients[best] for i, best in found.items()}
                        left_out |= {clients[i]: text for i, text in worst.items()}
                for i, update in enumerate(self._safe(updates, clients, selected)):
                    safe[clients[i]][k] = base[i] + update
        if self.name in ("report", "multikrum"):
            safe = {client: list(body) for client, body in bodies.items()}
        kept = {client: tuple(body) for client, body in safe.items() if client not in left_out}
        return Defended(kept, left_out, outliers)

    def _krum(self, updates: Tensor, base: Tensor) -> tuple[dict[int, int], dict[int, str]]:
        """For each reply the one that Krum selects in its group; and the worst of all groups, with their scores."""
        selected: dict[int, int] = {}
        worst: dict[int, str] = {}
        for members in _groups(updates, base):
            hostile = self._hostile(len(members))
            scores = krum_scores(updates[members], hostile)
            selected |= dict.fromkeys(members, members[int(scores.argmin())])
            if self.name == "multikrum":
                for i in scores.argsort(stable=True)[len(members) - hostile :].tolist():
                    words = f"score {float(scores[i]):.3g}, median {float(scores.median()):.3g}"
                    worst[members[i]] = f"left out by multikrum: {words}"
        return selected, worst

    def _safe(self, updates: Tensor, clients: Sequence[int], selected: Mapping[int, int]) -> Tensor:
        if self.name != "krum":
            return self._coordinates(updates)
        index = {client: i for i, client in enumerate(clients)}
        # an array that the selected reply does not have, or has in another shape, is bounded instead
        bounded = norm_bounded(updates)
        chosen = [index.get(selected.get(client, -1)) for client in clients]
        return torch.stack([bounded[i] if best is None else updates[best] for i, best in enumerate(chosen)])

    def _coordinates(self, updates: Tensor) -> Tensor:
        if self.name == "normbound":
            return norm_bounded(updates, self.number)
        if self.name == "median":
            return median(updates).expand_as(updates)
        if self.name == "trimmed":
            return trimmed(updates, self.number)
        return updates

    def _hostile(self, count: int) -> int:
        """How many of these clients may be hostile: Krum needs at least two honest ones besides the one judged."""
        return max(0, min(max(1, round_half_up(self.number * count)), count - 3))


# ---- pure functions on the updates [clients, …] of an exchange
def norm_bounded(updates: Tensor, factor: float = 1.0) -> Tensor:
    """Updates shortened to at most `factor` times their median length."""
    norms = updates.reshape(len(updates), -1).double().norm(dim=1)
    bound = factor * middle(norms)
    shrink = (bound / norms.clamp(min=1e-300)).clamp(max=1.0)
    shortened: Tensor = updates * shrink.to(updates.dtype).view(-1, *[1] * (updates.dim() - 1))
    return shortened


def median(updates: Tensor) -> Tensor:
    """Coordinate-wise median; for an even count the mean of the two in the middle."""
    ordered = updates.sort(0).values
    return (ordered[(len(updates) - 1) // 2] + ordered[len(updates) // 2]) / 2


def trimmed(updates: Tensor, fraction: float) -> Tensor:
    """Each coordinate clamped to the range that is left after trimming a fraction of the clients at both ends."""
    cut = min(round_half_up(fraction * len(updates)), (len(updates) - 1) // 2)
    ordered = updates.sort(0).values
    return updates.clamp(ordered[cut], ordered[len(updates) - 1 - cut])


def krum_scores(updates: Tensor, hostile: int) -> Tensor:
    """Krum's score: the sum of squared distances to the nearest n − f − 2 others. Small is good."""
    flat = updates.reshape(len(updates), -1).double()
    products = flat @ flat.T
    lengths = products.diagonal()
    distances = (lengths[:, None] + lengths - 2 * products).clamp(min=0)
    distances.fill_diagonal_(torch.inf)
    nearest = max(1, len(flat) - hostile - 2)
    return distances.sort(1).values[:, :nearest].sum(1)


def unlike(updates: Tensor) -> dict[int, str]:
    """Updates whose length, or whose direction against the median update, is unlike the others', and how."""
    flat = updates.reshape(len(updates), -1).double()
    norms = flat.norm(dim=1)
    usual, center = middle(norms), median(flat)
    cosines = flat @ center / (norms * center.norm()).clamp(min=1e-300)
    lengths = (norms / usual).clamp(1e-9, 1e9) if usual > 0 else torch.ones_like(norms)
    odd_length, odd_direction = _modified_z(lengths.log()).abs() > OUTLIER, _modified_z(cosines) < -OUTLIER
    out = {}
    for i in (odd_length | odd_direction).nonzero().flatten().tolist():
        found = []
        if odd_length[i]:
            found.append(f"its update is {float(lengths[i]):.3g} times as long as the median")
        if odd_direction[i]:
            found.append(f"its cosine with the median update is {float(cosines[i]):.2f}, usual {middle(cosines):.2f}")
        out[i] = " and ".join(found)
    return out


def middle(values: Tensor) -> float:
    return float(median(values[:, None])[0])


def _modified_z(values: Tensor) -> Tensor:
    center = middle(values)
    spread = max(middle((values - center).abs()), 0.05)  # a small difference among equal clients is no outlier
    return 0.6745 * (values - center) / spread


# ---- which replies are compared, and with what
def _largest_first(bodies: Bodies) -> list[int]:
    """Indices of the arrays of replies. The largest, the first of several, speaks for the reply."""
    sizes: dict[int, int] = {}
    for body in bodies.values():
        for k, array in enumerate(body):
            sizes[k] = max(sizes.get(k, 0), array.numel() if judged(array) else 0)
    return sorted(sizes, key=lambda k: (-sizes[k], k))


def _alike(bodies: Bodies, k: int) -> list[list[int]]:
    """Clients whose k-th arrays have the same shape, in the order of clients."""
    found: dict[tuple[object, ...], list[int]] = {}
    for client in sorted(bodies):
        if k < len(bodies[client]) and judged(array := bodies[client][k]):
            found.setdefault((tuple(array.shape), array.dtype), []).append(client)
    return list(found.values())


def _base(
    k: int, clients: Sequence[int], bodies: Bodies, sent: Mapping[int, Message], from_zero: Collection[int]
) -> Tensor:
    """What the k-th arrays of these replies are compared with, [clients, …].

    It is what the client was sent. A client that was sent several models has chosen one: the nearest counts. For other
    arrays, such as a loss, it is the median of the replies, and zero for those in `from_zero`.
    """
    arrays = torch.stack([bodies[client][k] for client in clients])
    if k in from_zero:
        return torch.zeros_like(arrays)
    usual = median(arrays)
    found = []
    for client, array in zip(clients, arrays):
        base = references(sent[client], bodies[client], from_zero)[k]
        if k == 0 and (choice := offers(sent[client], array)):
            distances = [float((model - array).norm()) for model in choice]
            base = choice[distances.index(min(distances))]
        found.append((usual if base is None else base).to(array.dtype))
    return torch.stack(found)


def _groups(updates: Tensor, bases: Tensor) -> list[list[int]]:
    """Which clients Krum compares: those that were sent the same model, if there are enough; the others together.

    Where few others are left, they are judged with the largest group: nobody is judged by nobody.
    """
    near = SAME * middle(updates.flatten(1).double().norm(dim=1))
    groups: list[list[int]] = []
    for i, base in enumerate(bases):
        known = next((group for group in groups if float((bases[group[0]] - base).norm()) <= near), None)
        if known is None:
            groups.append([i])
        else:
            known.append(i)
    large = [group for group in groups if len(group) >= FEWEST_OF_A_GROUP]
    rest = sorted(i for group in groups if len(group) < FEWEST_OF_A_GROUP for i in group)
    if large and len(rest) < FEWEST_OF_A_GROUP:
        max(large, key=len).extend(rest)
        return large
    return [*large, rest]
