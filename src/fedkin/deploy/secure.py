"""Secure aggregation: the server learns the mean of the sites' replies, and no reply (`run.secure=true`).

The protocol is SecAgg (Bonawitz et al., CCS 2017), and above `NEIGHBORS` + 1 sites SecAgg+ (Bell et al., CCS 2020), in
which a site shares masks with its neighbors on a random ring. Four stages make one sum:

    keys     each site makes two key pairs for this sum, and the server passes the public ones on
    shares   each site splits its secrets (Shamir) and encrypts one share for each neighbor
    masked   each site trains, and sends its reply plus its own mask plus or minus a mask for each neighbor
    open     the sites give the shares of the masks of those who sent, or of the keys of those who did not

Key agreement, secret sharing and encryption are Flower's (`flwr.common.secure_aggregation`). Masks are the key stream
of ChaCha20 from `cryptography`: Flower's own generator has a seed of 32 bits, which can be tried out.

Replies are summed as whole numbers modulo 2⁶⁴, so the sum is exact, whoever answers first. A site gives away shares for
one sum of a round only, and never both kinds of a site's shares: with fewer than half of the shares nobody learns them.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.app import ConfigRecord, RecordDict
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key
from numpy.typing import NDArray
from torch import Tensor

from fedkin.deploy.codec import DTYPES, Malformed
from fedkin.protocol import Method

STAGES = ("keys", "shares", "masked", "open")
FEWEST = 3  # of two replies, each of the two would learn the other from the mean
NEIGHBORS = 64  # with whom a site shares masks; an even number
SCALE = 1 << 28  # steps between two whole numbers
LONGEST = 1 << 14  # bytes of a key or an encrypted share
OVER = "has given its part of a sum in this round, and gives no other"
Numbers = NDArray[np.uint64]


class Secure(NamedTuple):
    """One stage as it travels, both ways."""

    stage: str
    token: str
    """Of this sum, made by the server; a round that is begun again has another one."""
    names: list[str]
    gone: list[str]
    first: list[bytes]
    second: list[bytes]


def refuse(method: Method) -> None:
    """Raise if a method must see single replies, or does not say."""
    order = type(method).__mro__

    def defined(name: str) -> int:
        return next(i for i, kind in enumerate(order) if name in vars(kind))

    # a class that changes the merge of another one must say anew what it needs
    if not method.averages or defined("averages") > min(defined("merge"), defined("round")):
        raise ValueError(
            f"run.secure=true: {type(method).__name__} with these settings must see every client's reply by itself. "
            "Take a method that needs their mean alone, such as fedavg, fedprox, ditto or fedrep "
            "(docs/privacy.md lists them), or protect replies with run.privacy instead."
        )


def encode(secure: Secure) -> ConfigRecord:
    return ConfigRecord(dict(secure._asdict()))


def decode(record: RecordDict) -> Secure | None:
    """The stage that a message belongs to; None if it is of no secure sum."""
    found = record.get("secure")
    if found is None:
        return None
    fields: dict[str, Any] = dict(found) if isinstance(found, ConfigRecord) else {}
    texts = [fields.get(name) for name in ("stage", "token")]
    lists = [fields.get(name) for name in ("names", "gone", "first", "second")]
    sound = fields.keys() == set(Secure._fields) and all(isinstance(text, str) for text in texts)
    sound = sound and all(isinstance(part, list) for part in lists)
    sound = sound and all(isinstance(name, str) for part in lists[:2] for name in part or ())
    sound = sound and all(isinstance(b, bytes) and len(b) <= LONGEST for part in lists[2:] for b in part or ())
    if not sound or fields["stage"] not in STAGES:
        raise Malformed("A stage of a secure sum has a name, a token, names and bytes; something else came.")
    return Secure(**fields)


# ---- masks
def stream(secret: bytes, token: str, count: int) -> Numbers:
    """Numbers that only those who know the secret can make: ChaCha20's key stream."""
    key = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=f"fedkin {token}".encode()).derive(secret)
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)


def pair_mask(private: bytes, public: bytes, token: str, count: int) -> Numbers:
    """What two sites can make, each from its own private key and the other's public one."""
    return stream(generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public)), token, count)


def threshold(members: int) -> int:
    """Shares that open a secret, and replies that a sum has at least. More than half, so that nobody can collect the
    shares of a site's mask from some sites and those of its key from others."""
    return max(FEWEST, members // 2 + 1)


def as_whole(body: Sequence[Tensor], weight: int, members: int) -> Numbers:
    """A reply times its weight, and the weight, as whole numbers modulo 2⁶⁴."""
    for array in body:
        if not array.is_floating_point():
            raise Malformed("secure aggregation sums numbers with a fraction; this reply holds others.")
    flat = np.concatenate([np.zeros(0), *(array.double().numpy().ravel() for array in body)])
    most = 2.0**62 / SCALE / weight / members
    if flat.size and not float(np.abs(flat).max()) < most:  # also NaN
        raise Malformed(
            f"a number of the reply is not below {most:.3g}: with secure aggregation the sum would overflow."
        )
    whole = np.rint(flat * SCALE).astype(np.int64) * weight
    return np.append(whole, weight).astype(np.uint64)


def as_mean(total: Numbers, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
    """The mean of the replies, from the sum of what `as_whole` made of them."""
    *_, weight = total.view(np.int64)
    if weight <= 0:
        raise Malformed("the sum of the weights is not positive.")
    flat = torch.from_numpy(total.view(np.int64)[:-1].astype(np.float64) / SCALE / float(weight))
    parts = flat.split([int(np.prod(shape)) for shape in shapes])
    return tuple(part.reshape(shape).to(dtype) for part, shape, dtype in zip(parts, shapes, dtypes))


# ---- at the server
class SecureSum:
    """The server's part in one sum: what it passes on, and what it makes of the answers."""

    def __init__(self, names: Collection[str], token: str) -> None:
        self._token = token
        self._order = random.Random(token).sample(sorted(names), len(names))
        self._keys: dict[str, list[bytes]] = {}
        self._letters: dict[str, dict[str, bytes]] = {}
        """By receiver and sender."""
        self._senders: set[str] = set()

    def keys(self, names: Iterable[str]) -> dict[str, Secure]:
        return {name: self._ask("keys") for name in names}

    def shares(self, answers: Mapping[str, Secure]) -> dict[str, Secure]:
        self._keys = {name: answer.first for name, answer in answers.items() if len(answer.first) == 2}
        out = {}
        for name in self._keys:
            ring = [other for other in self._ring(name) if other in self._keys]
            first, second = ([self._keys[other][which] for other in ring] for which in (0, 1))
            out[name] = self._ask("shares", ring, first=first, second=second)
        return out

    def masked(self, answers: Mapping[str, Secure]) -> dict[str, Secure]:
        self._senders = set(answers)
        self._letters = {name: {} for name in answers}
        for sender, answer in answers.items():
            for receiver, letter in zip(answer.names, answer.first):
                if receiver in answers and sender in answers[receiver].names:  # a mask needs both of them
                    self._letters[receiver][sender] = letter
        return {
            name: self._ask("masked", list(letters), first=list(letters.values()))
            for name, letters in self._letters.items()
        }

    def open(self, sent: Collection[str]) -> dict[str, Secure]:
        """Ask those who sent. Of each site either the mask's seed or the key is opened, never both."""
        out = {}
        for name in sent:
            circle = {name, *self._letters[name]}
            out[name] = self._ask("open", sorted(circle & set(sent)), gone=sorted(circle - set(sent)))
        return out

    def total(self, masked: Mapping[str, Numbers], answers: Mapping[str, Secure]) -> Numbers:
        """The sum of all that was sent, without the masks."""
        pieces: dict[str, list[bytes]] = {name: [] for name in self._senders}
        for answer in answers.values():
            for owner, share in zip(answer.names, answer.first):
                if owner in pieces:
                    pieces[owner].append(share)
        count = len(next(iter(masked.values())))
        total = np.zeros(count, dtype=np.uint64)
        for numbers in masked.values():
            total += numbers
        for owner, shares in sorted(pieces.items()):
            neighbors = [name for name in masked if owner in self._letters[name]]
            if owner not in masked and not neighbors:
                continue  # nobody has a mask of it
            needed = threshold(len([name for name in self._ring(owner) if name in self._keys]))
            if len(shares) < needed:
                raise Malformed(f"{len(shares)} sites gave their share of {owner}'s secret; {needed} are needed.")
            secret = _combined(owner, shares[:needed])
            if owner in masked:
                total -= stream(secret, self._token, count)
                continue
            for name in neighbors:  # the masks that they share with one who did not send
                mask = pair_mask(secret, self._keys[name][0], self._token, count)
                total = total - mask if name > owner else total + mask
        return total

    def _ring(self, name: str) -> list[str]:
        """A site's neighbors and itself: those next to it on a ring in random order."""
        count, at = len(self._order), self._order.index(name)
        if count <= NEIGHBORS + 1:
            return self._order
        return [self._order[(at + step) % count] for step in range(-NEIGHBORS // 2, NEIGHBORS // 2 + 1)]

    def _ask(
        self,
        stage: str,
        names: Sequence[str] = (),
        gone: Sequence[str] = (),
        first: Sequence[bytes] = (),
        second: Sequence[bytes] = (),
    ) -> Secure:
        return Secure(stage, self._token, list(names), list(gone), list(first), list(second))


def _combined(owner: str, shares: list[bytes]) -> bytes:
    try:
        return combine_shares(shares)
    except Exception as error:
        raise Malformed(f"the shares of {owner}'s secret do not fit together.") from error


def kinds_of(answer: Secure) -> list[torch.dtype]:
    """The dtypes of a masked reply's arrays, before they became whole numbers."""
    if not all(name in DTYPES and DTYPES[name].is_floating_point for name in answer.names):
        raise Malformed(f"a masked reply has the dtypes {', '.join(answer.names)}.")
    return [DTYPES[name] for name in answer.names]


def shapes_of(body: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """The shapes of a masked reply's arrays, without the weight at its end."""
    return [tuple(array.shape) for array in body[:-1]]


def flat(body: Sequence[Tensor]) -> Numbers:
    """A masked reply as one flat array."""
    if not body or any(array.dtype is not torch.int64 for array in body):
        raise Malformed("a masked reply is made of whole numbers.")
    return np.concatenate([array.numpy().ravel() for array in body]).view(np.uint64)


def exchange_of(new_state: str) -> int:
    """The number of the exchange in a round, from the name of the state that it makes."""
    if not new_state:
        raise Malformed("a secure sum needs the name of the state that it makes.")
    return int(new_state.split("-")[3].split(".")[0])
