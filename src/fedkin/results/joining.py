"""A newcomer to a finished run: its personal model by the method's own rule, what to expect of it, its folder."""

from __future__ import annotations

import hashlib
import sys
import warnings
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from fedkin.data.table import DataWarning
from fedkin.protocol import Data, Examples, Reply
from fedkin.results.files import read_json, write_bytes, write_json
from fedkin.results.folder import Folder
from fedkin.results.newcomer import with_newcomer
from fedkin.results.personal import FROZEN, PersonalModel, measured, outputs_of, personal_data

if TYPE_CHECKING:
    from fedkin.results.run import Run

HOLDOUT = 0.2  # of a newcomer's examples, to say what to expect
ADAPTATION = 5  # rounds of a newcomer's own work, before its model is made


@dataclass(frozen=True)
class Joined:
    """A newcomer's personal model, and the performance to expect from it."""

    name: str
    model: PersonalModel
    expected: dict[str, float]
    """The task's metrics on held-out examples of a trial; the model itself is made from all examples."""
    examples: int
    """Number of examples that this is based on."""
    preprocessing: dict[str, Any] | None = None
    """How a table becomes the model's input, with the newcomer's own scales; None if the run learned from arrays."""


def join(run: Run, name: str, x: Any, y: Any, *, validation: float, rounds: int) -> Joined:
    """`Run.join`."""
    if not run.state and "joined" in run.config:
        raise ValueError(
            f"{run.folder} holds one client's model, not the server's state that a newcomer starts from: use the "
            "folder of the run itself."
        )
    if name in run.clients:
        warnings.warn(
            f"{name} is already a client of this run. Its model there stays as it is; the one made now is that of a "
            "newcomer. If its examples were in the run, it will do worse on new ones than is measured here.",
            DataWarning,
            stacklevel=3,
        )
    examples = Examples(run.inputs(x, name, newcomer=True), run.targets(y))
    if len(examples.y) < 2:
        raise ValueError(f"{name} has {len(examples.y)} examples: a newcomer needs at least 2.")
    order = torch.from_numpy(np.random.default_rng([run.config["options"]["seed"], 0x101]).permutation(len(examples.y)))
    held = order[: max(1, round(HOLDOUT * len(order)))]
    rest = order[len(held) :]
    trial = _made(run, Examples(examples.x[rest], examples.y[rest]), validation, rounds)
    expected = measured(run.task, outputs_of(trial, examples.x[held]), examples.y[held])
    return Joined(name, _made(run, examples, validation, rounds), expected, len(held), _preprocessing(run, x, name))


def _preprocessing(run: Run, x: Any, newcomer: str) -> dict[str, Any] | None:
    stored: dict[str, Any] | None = run.config["federation"].get("preprocessing")
    if stored is None or is_numeric(x):
        return stored
    from fedkin.data.preprocess import Preprocessing

    return Preprocessing.from_json(stored).with_client(newcomer, x).to_json()


def _made(run: Run, examples: Examples, validation: float, rounds: int) -> PersonalModel:
    count = round(validation * len(examples.y))
    chosen, rest = slice(0, count), slice(count, None)
    train, held = (Examples(examples.x[part], examples.y[part]) for part in (rest, chosen))
    state, id = with_newcomer(run.method, run.state, run._server(), len(train.y))
    net = run._network()
    client = run._client(net, Data(lambda: train, lambda: held, run.config["inputs"]["classes"]))
    torch.default_generator.manual_seed(client.seed)
    message = run.method.join(state, client, id)
    for turn in range(1, rounds + 1):
        kept = run.method.local(client._replace(seed=client.seed + turn), deepcopy(message)).state
        if not kept:
            break  # the method keeps nothing at clients: `personal` does everything
        client = client._replace(state=kept)
    made: list[Reply] = []

    def trained() -> Reply:
        if not made:
            torch.default_generator.manual_seed(client.seed)
            made.append(run.method.local(client, message))
        return made[0]

    torch.default_generator.manual_seed(client.seed)
    return PersonalModel(run.method, client, run.method.personal(client, message, trained))


def keep(run: Run, joined: Joined, out: str | Path, *, fresh: bool) -> Path:
    """`Run.keep`."""
    check_target(Path(out), joined.name)
    with Folder(out, "run") as owned:
        net = run._network()
        personal = joined.model.personal
        tensors = net.layout.tensors(personal) if isinstance(personal, Tensor) else personal
        content = save({k: v.detach().contiguous().clone() for k, v in tensors.items()})
        name = f"{hashlib.blake2b(content, digest_size=8).hexdigest()}.safetensors"
        index = owned.path / "models" / "index.json"
        if index.exists() and read_json(index).get(joined.name) != name:
            if not fresh:
                raise ValueError(
                    f"{out} holds an earlier model of {joined.name}, which stays. To keep both, name another folder; "
                    "to replace it, say --fresh (fresh=True)."
                )
            owned.clear()
        write_bytes(owned.path / "models" / name, content)
        write_json(owned.path / "models" / "index.json", {joined.name: name})
        if text := personal_data(run.method, owned.path):
            print(f"fedkin: {text}", file=sys.stderr)
        if net.frozen_parameters:
            content = save({k: v.contiguous().clone() for k, v in net.frozen_parameters.items()})
            write_bytes(owned.path / "models" / FROZEN, content)
        inputs = {**run.config["inputs"], "clients": [joined.name], "sizes": [joined.examples]}
        federation = dict(run.config["federation"])
        if joined.preprocessing is not None:
            federation["preprocessing"] = joined.preprocessing
        expected = {metric: None if np.isnan(value) else value for metric, value in joined.expected.items()}
        config = {**run.config, "inputs": inputs, "federation": federation, "joined": expected}
        write_json(owned.path / "config.json", config)
    return Path(out)


def check_target(out: Path, newcomer: str) -> None:
    """A newcomer's folder may hold an earlier model of it, and nothing else: another run would be lost."""
    config = out / "config.json"
    if not config.exists():
        return
    found = read_json(config)
    if "joined" not in found or found["inputs"]["clients"] != [newcomer]:
        what = "another newcomer's model" if "joined" in found else "a run"
        raise ValueError(f"{out} holds {what}: name another folder for the model of {newcomer}.")


def is_numeric(x: Any) -> bool:
    return isinstance(x, Tensor) or (isinstance(x, np.ndarray) and np.issubdtype(x.dtype, np.number))
