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

import json
import random
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.app import ConfigRecord, RecordDict
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)
from numpy.typing import NDArray
from torch import Tensor

from fedkin.deploy.codec import DTYPES, Malformed
from fedkin.protocol import Method
from fedkin.results.files import digest, read_json, write_json

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


# ---- at a site
@dataclass
class Session:
    """What a site knows of the sum that it takes part in. It is kept on its disk: every message is a new process."""

    token: str
    round: int
    exchange: int
    private: list[str] = field(default_factory=list)
    public: list[str] = field(default_factory=list)
    ring: dict[str, list[str]] = field(default_factory=dict)
    """Public keys of all with whom masks may be shared, this site's too."""
    seed: str = ""
    """Of this site's own mask."""
    sent: dict[str, str] = field(default_factory=dict)
    held: dict[str, list[str]] = field(default_factory=dict)
    """By site: its shares of the seed and of the private key."""
    asked: dict[str, str] = field(default_factory=dict)
    """By stage: the digest of what was asked. Asked again, the answer is the same; anything else is refused."""
    masked: str = ""
    """Digest of the masked reply."""


class SecureSite:
    """One site's part in the sums of a run."""

    def __init__(self, folder: Path, name: str, round: int, exchange: int, asked: Secure) -> None:
        self._path, self._name, self._asked = folder / "secure.json", name, asked
        old = Session(**read_json(self._path)) if self._path.exists() else None
        self._session = old or Session(asked.token, round, exchange)
        when = (round, exchange)
        if old is not None and old.token != asked.token:
            if (old.round, old.exchange) > when:
                raise Malformed(f"round {round} is over: a later sum has begun.")
            if (old.round, old.exchange) == when and "open" in old.asked:
                raise Malformed(f"this site {OVER}.")
            self._session = Session(asked.token, round, exchange)
        elif old is not None and (old.round, old.exchange) != when:
            raise Malformed("this sum belongs to another round.")
        if STAGES.index(asked.stage) and STAGES[STAGES.index(asked.stage) - 1] not in self._session.asked:
            raise Malformed(f"the stage '{asked.stage}' of a sum comes after the others.")
        self._once(asked.stage, asked)

    def _once(self, stage: str, asked: Secure) -> None:
        mark = digest(json.dumps([asked.names, asked.gone, *([b.hex() for b in part] for part in asked[4:])]).encode())
        if self._session.asked.setdefault(stage, mark) != mark:
            raise Malformed(f"the stage '{stage}' of this sum was asked for already, in another way.")

    def _keep(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, asdict(self._session), durable=True)

    def keys(self) -> Secure:
        mine = self._session
        if not mine.private:
            for private, public in (generate_key_pairs(), generate_key_pairs()):
                mine.private.append(private_key_to_bytes(private).hex())
                mine.public.append(public_key_to_bytes(public).hex())
            self._keep()
        return self._told(first=[bytes.fromhex(key) for key in mine.public])

    def shares(self) -> Secure:
        mine, asked = self._session, self._asked
        if not mine.sent:
            pairs = zip(asked.names, asked.first, asked.second, strict=True)
            mine.ring = {name: [one.hex(), two.hex()] for name, one, two in pairs}
            keys = [key for both in mine.ring.values() for key in both]
            if mine.ring.get(self._name) != mine.public or len(set(keys)) < 2 * len(asked.names):
                raise Malformed("the keys of this sum are not each site's own.")
            if len(mine.ring) < FEWEST:
                raise Malformed(f"a sum of {len(mine.ring)} replies would show them; at least {FEWEST} are needed.")
            mine.seed = secrets.token_hex(32)
            needed, count = threshold(len(mine.ring)), len(mine.ring)
            hidden = (bytes.fromhex(mine.seed), bytes.fromhex(mine.private[0]))
            split = zip(mine.ring, *(create_shares(secret, needed, count) for secret in hidden))
            for name, of_seed, of_key in split:
                if name == self._name:
                    mine.held[name] = [of_seed.hex(), of_key.hex()]
                    continue
                text = json.dumps([self._name, name, of_seed.hex(), of_key.hex()])
                mine.sent[name] = encrypt(self._key_with(name), text.encode()).hex()
            self._keep()
        return self._told(names=list(mine.sent), first=[bytes.fromhex(text) for text in mine.sent.values()])

    def accept(self) -> None:
        """Take the neighbors' shares, before the work that is to be masked."""
        mine, asked = self._session, self._asked
        if not set(asked.names) <= mine.ring.keys() - {self._name} or len(set(asked.names)) < len(asked.names):
            raise Malformed("shares came from sites that are not in this sum.")
        if len(asked.names) + 1 < threshold(len(mine.ring)):
            raise Malformed(f"only {len(asked.names) + 1} of {len(mine.ring)} sites are left: too few to hide a reply.")
        for name, text in zip(asked.names, asked.first, strict=True):
            try:
                source, target, of_seed, of_key = json.loads(decrypt(self._key_with(name), text))
            except (InvalidToken, ValueError, TypeError):
                raise Malformed(f"the shares of '{name}' cannot be decrypted.") from None
            if (source, target) != (name, self._name):
                raise Malformed(f"the shares of '{name}' are from '{source}' to '{target}'.")
            mine.held[name] = [of_seed, of_key]

    def masked(self, body: Sequence[Tensor], weight: int) -> tuple[Secure, tuple[Tensor, ...]]:
        mine = self._session
        whole = as_whole(body, weight, len(mine.ring))
        whole += stream(bytes.fromhex(mine.seed), mine.token, len(whole))
        for name in self._asked.names:
            mask = pair_mask(bytes.fromhex(mine.private[0]), bytes.fromhex(mine.ring[name][0]), mine.token, len(whole))
            whole = whole + mask if self._name > name else whole - mask
        mark = digest(whole.tobytes())
        if mine.masked and mine.masked != mark:
            raise Malformed("this site's data has changed since it sent its reply: the difference would show it.")
        mine.masked = mark
        self._keep()
        numbers = torch.from_numpy(whole.view(np.int64))
        *parts, weighed = numbers.split([*(array.numel() for array in body), 1])
        kinds = [str(array.dtype).removeprefix("torch.") for array in body]
        shaped = tuple(part.reshape(array.shape) for part, array in zip(parts, body))
        return self._told(names=kinds), (*shaped, weighed)

    def open(self) -> Secure:
        mine, asked = self._session, self._asked
        together = [*asked.names, *asked.gone]
        if sorted(together) != sorted(mine.held):
            raise Malformed("those who sent and those who did not are not the sites of this sum.")
        if self._name not in asked.names or len(asked.names) < threshold(len(mine.ring)):
            raise Malformed(f"a sum of {len(asked.names)} of {len(mine.ring)} replies is not opened.")
        self._keep()
        given = [mine.held[name][0] for name in asked.names] + [mine.held[name][1] for name in asked.gone]
        return self._told(names=together, first=[bytes.fromhex(share) for share in given])

    def _key_with(self, name: str) -> bytes:
        """For what is sent to a neighbor through the server."""
        mine = self._session
        other = bytes_to_public_key(bytes.fromhex(mine.ring[name][1]))
        return generate_shared_key(bytes_to_private_key(bytes.fromhex(mine.private[1])), other)

    def _told(self, names: Iterable[str] = (), first: Iterable[bytes] = ()) -> Secure:
        return Secure(self._asked.stage, self._asked.token, list(names), [], list(first), [])


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

    def shares(self, told: Mapping[str, Secure]) -> dict[str, Secure]:
        self._keys = {name: answer.first for name, answer in told.items() if len(answer.first) == 2}
        out = {}
        for name in self._keys:
            ring = [other for other in self._ring(name) if other in self._keys]
            first, second = ([self._keys[other][which] for other in ring] for which in (0, 1))
            out[name] = self._ask("shares", ring, first=first, second=second)
        return out

    def masked(self, told: Mapping[str, Secure]) -> dict[str, Secure]:
        self._senders = set(told)
        self._letters = {name: {} for name in told}
        for sender, answer in told.items():
            for receiver, letter in zip(answer.names, answer.first):
                if receiver in told and sender in told[receiver].names:  # a mask needs both of them
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

    def total(self, masked: Mapping[str, Numbers], told: Mapping[str, Secure]) -> Numbers:
        """The sum of all that was sent, without the masks."""
        pieces: dict[str, list[bytes]] = {name: [] for name in self._senders}
        for answer in told.values():
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


def kinds_of(told: Secure) -> list[torch.dtype]:
    """The dtypes of a masked reply's arrays, before they became whole numbers."""
    if not all(name in DTYPES and DTYPES[name].is_floating_point for name in told.names):
        raise Malformed(f"a masked reply has the dtypes {', '.join(told.names)}.")
    return [DTYPES[name] for name in told.names]


def shapes_of(body: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """The shapes of a masked reply's arrays, without the weight at its end."""
    return [tuple(array.shape) for array in body[:-1]]


def flat(body: Sequence[Tensor]) -> Numbers:
    """A masked reply as one row of numbers."""
    if not body or any(array.dtype is not torch.int64 for array in body):
        raise Malformed("a masked reply is made of whole numbers.")
    return np.concatenate([array.numpy().ravel() for array in body]).view(np.uint64)


def exchange_of(new_state: str) -> int:
    """The number of the exchange in a round, from the name of the state that it makes."""
    if not new_state:
        raise Malformed("a secure sum needs the name of the state that it makes.")
    return int(new_state.split("-")[3].split(".")[0])
