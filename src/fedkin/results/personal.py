"""A client's personal model: as a module, and in the files of a run."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedkin.protocol import Client, Method, Model
from fedkin.results import checksums
from fedkin.results.files import read_json
from fedkin.results.folder import is_own
from fedkin.task import Task

BATCH = 256
FROZEN = "frozen.safetensors"  # in the folder of models: parameters that are not trained, the same for all clients


class PersonalModel(nn.Module):
    """One client's personal model, for every method: `forward(x)` gives scores.

    If a method's personal model is a single network, `network` is that network, and can be exported.
    """

    def __init__(self, method: Method, client: Client, personal: Model) -> None:
        super().__init__()
        self._method, self._client, self.personal = method, client, personal
        self.task = client.net.task
        single = isinstance(personal, Tensor) and type(method).predict is Method.predict
        self.network: nn.Module | None = client.net.module if single else None
        if isinstance(personal, Tensor):
            client.net.load(personal)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.task.in_units(self.outputs(x))

    def outputs(self, x: Tensor) -> Tensor:
        """As `forward`, but in the units that the network learned in: of a regression, standardized numbers."""
        if self.network is not None:
            scores: Tensor = self.network(x)
            return scores
        self._client.net.eval()
        return self._method.predict(self._client, self.personal, x)


@torch.no_grad()
def outputs_of(model: PersonalModel, x: Tensor) -> Tensor:
    return torch.cat([model.outputs(part) for part in x.split(BATCH)]) if len(x) else torch.empty(0)


def measured(task: Task, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    return {**task.scores(outputs, targets), "loss": float(task.loss(outputs, targets))}


def personal_data(method: Method, folder: Path) -> str:
    """What to say where personal models are written, if they hold anything of single examples."""
    held, models = method.model_holds, folder / "models"
    return f"The models in {models} hold {held}: treat these files like the examples themselves." if held else ""


def stored_tensors(folder: Path | None, name: str) -> dict[str, Tensor]:
    """A client's personal model from the folder of a run, verified."""
    index = folder / "models" / "index.json" if folder is not None else None
    if index is None or not index.exists():
        raise ValueError("This run kept no personal models (save_models=False): run it again with save_models=True.")
    assert folder is not None
    checksums.verify(folder, "models/index.json")
    files = read_json(index)
    if name not in files:
        raise ValueError(f"This run has no personal model of {name}: it had left, or could not be measured.")
    file = f"models/{files[name]}"
    if not is_own(file):
        raise ValueError(f"{index} is damaged: restore it from a copy.")
    checksums.verify(folder, file)
    try:
        return load_file(folder / file)
    except SafetensorError as error:
        raise ValueError(f"{folder / file} is damaged ({error}): restore it from a copy.") from None


def in_memory(folder: Path) -> dict[str, dict[str, Tensor]]:
    """All personal models of a folder, each file read once."""
    if not (folder / "index.json").exists():
        return {}
    index: dict[str, str] = json.loads((folder / "index.json").read_text())
    files = {name: load_file(folder / name) for name in set(index.values())}
    return {client: files[name] for client, name in index.items()}
