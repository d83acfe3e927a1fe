"""A site's part in secure aggregation: its keys, its shares, its masked reply. The protocol is in secure.py."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from cryptography.fernet import InvalidToken
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)
from torch import Tensor

from fedkin.deploy.codec import Malformed
from fedkin.deploy.secure import FEWEST, OVER, STAGES, Secure, as_whole, pair_mask, stream, threshold
from fedkin.results.files import digest, read_json, write_json


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
