"""`Run`: a finished run as an object that people keep. What `fedkin.run` returns and `fedkin.load` reads back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Data, Examples, Method, Model, Reply, Server, State, Training
from fedkin.registry import load_path
from fedkin.results import checksums
from fedkin.results.files import digest_of, read_json, write_bytes, write_json
from fedkin.results.folder import Folder, is_own
from fedkin.results.history import History
from fedkin.results.newcomer import with_newcomer
from fedkin.results.store import load_state
from fedkin.task import Task, from_config

BATCH = 256
FROZEN = "frozen.safetensors"  # in the folder of models: parameters that are not trained, the same for all clients
HOLDOUT = 0.2  # of a newcomer's examples, to say what to expect
ADAPTATION = 5  # rounds of a newcomer's own work, before its model is made


class PersonalModel(nn.Module):
    """One client's personal model, for every method: `forward(x)` gives scores.

    If a method's personal model is a single network, `network` is that network, and can be exported.
    """

    def __init__(self, method: Method, client: Client, personal: Model) -> None:
        super().__init__()
        self._method, self._client, self.personal = method, client, personal
        single = isinstance(personal, Tensor) and type(method).predict is Method.predict
        self.network: nn.Module | None = client.net.module if single else None
        if isinstance(personal, Tensor):
            client.net.load(personal)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if self.network is not None:
            scores: Tensor = self.network(x)
            return scores
        self._client.net.eval()
        return self._method.predict(self._client, self.personal, x)


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


@dataclass
class Run:
    config: dict[str, Any]
    summary: dict[str, Any]
    history: History
    state: State
    folder: Path | None
    method: Method
    make: Callable[[int], nn.Module]
    models: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False)
    """Personal models by client, if they are not in `folder`."""

    @property
    def out(self) -> Path | None:
        return self.folder

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.config["inputs"]["clients"])

    @property
    def with_models(self) -> tuple[str, ...]:
        """The clients whose personal models were kept."""
        if self.models or self.folder is None:
            return tuple(self.models)
        index = self.folder / "models" / "index.json"
        return tuple(json.loads(index.read_text())) if index.exists() else ()

    @property
    def task(self) -> Task:
        return from_config(self.config["task"])

    def __repr__(self) -> str:
        if not self.summary:
            return f"<Run of {self.config['label']}: the model of the newcomer {', '.join(self.clients)}>"
        headline, mean = self.summary["headline"], self.summary["personal"]["mean"]
        shown = f"{mean:.2%}" if headline["percent"] else f"{mean:.4g}"
        return f"<Run of {self.summary['method']}: {len(self.clients)} clients, {headline['metric']} {shown}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from fedkin.report import notebook

        return notebook.run(self)

    # ---- use
    def model(self, client: str | int) -> PersonalModel:
        """The personal model of a client, by its name or number."""
        name = self._name(client)
        tensors = self._tensors(name)
        net = self._network()
        pieces = {piece.name for piece in net.layout.pieces}
        single = pieces <= tensors.keys() and tensors.keys() <= pieces | {other for other, _ in net.layout.aliases}
        personal: Model = net.layout.flatten(tensors) if single else tensors
        return PersonalModel(self.method, self._client(net), personal)

    def predict_scores(self, client: str | int, x: Any) -> Tensor:
        """The model's outputs [examples, outputs]."""
        return _scores(self.model(client), self.inputs(x, client))

    def predict(self, client: str | int, x: Any) -> np.ndarray[Any, Any]:
        """Labels (as the data names them), or numbers in a regression."""
        found = self.task.predictions(self.predict_scores(client, x)).numpy()
        names = self.config["inputs"]["class_names"]
        return np.array(names)[found] if names and self.task.has_classes else found

    def predict_proba(self, client: str | int, x: Any) -> np.ndarray[Any, Any]:
        """Probabilities [examples, classes], in the order of the classes."""
        return self.task.probabilities(self.predict_scores(client, x)).numpy()

    def evaluate(self, client: str | int, x: Any, y: Any) -> dict[str, float]:
        """The task's metrics and the loss of a client's model on these examples."""
        return _measured(self.task, self.predict_scores(client, x), self.targets(y))

    def report(self, out: str | Path | None = None) -> Path:
        """Write the run's page and return its path."""
        from fedkin.report import page
        from fedkin.results.citation import citation

        if self.folder is None:
            raise ValueError("This run was not kept: run it with out=FOLDER to have a report.")
        folders = [str(self.folder)]
        return page.write(folders, out, citation(page.labels(folders)))

    def export(self, client: str | int, path: str | Path) -> Path:
        """Write a client's model as ONNX (.onnx) or as a torch.export program (.pt2)."""
        from fedkin.results.export import export

        return export(self.model(client), self.example(), Path(path), type(self.method).__name__)

    # ---- newcomers
    def join(self, name: str, x: Any, y: Any, *, validation: float = 0.1, rounds: int = ADAPTATION) -> Joined:
        """A personal model for a client that was not in the run, by the method's own rule. The run stays as it is.

        If the method keeps something at clients (a head, a model), the newcomer first trains for `rounds` rounds alone.
        The expected performance is measured on a fifth of the examples, with a model made from the others; the model
        returned is made from all of them.
        """
        if not self.state and "joined" in self.config:
            raise ValueError(
                f"{self.folder} holds one client's model, not the server's state that a newcomer starts from: use the "
                "folder of the run itself."
            )
        examples = Examples(self.inputs(x, name, newcomer=True), self.targets(y))
        if len(examples.y) < 2:
            raise ValueError(f"{name} has {len(examples.y)} examples: a newcomer needs at least 2.")
        order = torch.from_numpy(
            np.random.default_rng([self.config["options"]["seed"], 0x101]).permutation(len(examples.y))
        )
        held = order[: max(1, round(HOLDOUT * len(order)))]
        rest = order[len(held) :]
        trial = self._joined(Examples(examples.x[rest], examples.y[rest]), validation, rounds)
        expected = _measured(self.task, _scores(trial, examples.x[held]), examples.y[held])
        return Joined(
            name, self._joined(examples, validation, rounds), expected, len(held), self._preprocessing(x, name)
        )

    def _preprocessing(self, x: Any, newcomer: str) -> dict[str, Any] | None:
        stored: dict[str, Any] | None = self.config["federation"].get("preprocessing")
        if stored is None or _is_numeric(x):
            return stored
        from fedkin.data.preprocess import Preprocessing

        return Preprocessing.from_json(stored).with_client(newcomer, x).to_json()

    def _joined(self, examples: Examples, validation: float, rounds: int) -> PersonalModel:
        count = round(validation * len(examples.y))
        chosen, rest = slice(0, count), slice(count, None)
        train, held = (Examples(examples.x[part], examples.y[part]) for part in (rest, chosen))
        state, id = with_newcomer(self.method, self.state, self._server(), len(train.y))
        net = self._network()
        client = self._client(net, Data(lambda: train, lambda: held, self.config["inputs"]["classes"]))
        torch.default_generator.manual_seed(client.seed)
        message = self.method.join(state, client, id)
        for turn in range(1, rounds + 1):
            kept = self.method.local(client._replace(seed=client.seed + turn), deepcopy(message)).state
            if not kept:
                break  # the method keeps nothing at clients: `personal` does everything
            client = client._replace(state=kept)
        made: list[Reply] = []

        def trained() -> Reply:
            if not made:
                torch.default_generator.manual_seed(client.seed)
                made.append(self.method.local(client, message))
            return made[0]

        torch.default_generator.manual_seed(client.seed)
        return PersonalModel(self.method, client, self.method.personal(client, message, trained))

    def keep(self, joined: Joined, out: str | Path) -> Path:
        """Write a newcomer's model to a folder of its own, which `load` reads as a run with this one client."""
        with Folder(out, "run") as owned:
            net = self._network()
            personal = joined.model.personal
            tensors = net.layout.tensors(personal) if isinstance(personal, Tensor) else personal
            content = save({k: v.detach().contiguous().clone() for k, v in tensors.items()})
            name = f"{hashlib.blake2b(content, digest_size=8).hexdigest()}.safetensors"
            write_bytes(owned.path / "models" / name, content)
            write_json(owned.path / "models" / "index.json", {joined.name: name})
            if net.frozen_parameters:
                content = save({k: v.contiguous().clone() for k, v in net.frozen_parameters.items()})
                write_bytes(owned.path / "models" / FROZEN, content)
            inputs = {**self.config["inputs"], "clients": [joined.name], "sizes": [joined.examples]}
            federation = dict(self.config["federation"])
            if joined.preprocessing is not None:
                federation["preprocessing"] = joined.preprocessing
            config = {**self.config, "inputs": inputs, "federation": federation, "joined": joined.expected}
            write_json(owned.path / "config.json", config)
        return Path(out)

    def examples_of(self, path: Path) -> tuple[Any, Any]:
        """The examples and labels of a file: a table like the run's, or an .npz with x and y."""
        stored = self.config["federation"].get("preprocessing")
        if path.suffix != ".npz":
            if stored is None:
                raise ValueError(f"This run learned from arrays: give an .npz with x and y instead of {path.name}.")
            from fedkin.data.preprocess import Preprocessing

            return path, torch.from_numpy(Preprocessing.from_json(stored).labels(path))
        with np.load(path, allow_pickle=False) as arrays:
            if not {"x", "y"} <= set(arrays):
                raise ValueError(f"{path} must have the arrays x and y; it has {', '.join(arrays)}.")
            return arrays["x"], arrays["y"]

    # ---- what a model takes and gives
    def inputs(self, x: Any, client: str | int = "", *, newcomer: bool = False) -> Tensor:
        """Examples as the network takes them: from a file or frame with named columns if the run learned from tables,
        from arrays if it learned from arrays (raw uint8 images, or what the network takes)."""
        about = self.config["inputs"]
        stored = self.config["federation"].get("preprocessing")
        if stored is not None and not _is_numeric(x):
            from fedkin.data.preprocess import Preprocessing

            prepared = Preprocessing.from_json(stored)
            name = str(client) if newcomer else self._name(client)
            if newcomer:
                prepared = prepared.with_client(name, x)
            return torch.from_numpy(prepared.transform(x, name))
        array = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
        shape = tuple(about["shape"])
        if array.dtype == torch.uint8 and about["image"]:
            array = (array.float() - torch.tensor(about["mean"])).div_(torch.tensor(about["std"])).permute(0, 3, 1, 2)
        if tuple(array.shape[1:]) != shape:
            raise ValueError(
                f"Examples of this run have shape {list(shape)}; these have {list(array.shape[1:])}. Give an array "
                f"[examples, {', '.join(map(str, shape))}]" + (", or a table with named columns." if stored else ".")
            )
        return array.long() if about["dtype"] == "int64" else array.float()

    def targets(self, y: Any) -> Tensor:
        """Labels as the loss takes them. Classes may be given by their names in the data or by their numbers: a tensor
        always holds numbers; other integers are numbers unless a class is named by an integer."""
        array = np.asarray(y)
        names = self.config["inputs"]["class_names"]
        numbers = isinstance(y, Tensor) or (np.issubdtype(array.dtype, np.integer) and not _named_by_integers(names))
        if self.task.has_classes and names and not numbers:
            index = {name: i for i, name in enumerate(names)}
            unknown = sum(str(label) not in index for label in array.tolist())
            if unknown:
                raise ValueError(f"{unknown} labels are not among this run's classes: {', '.join(names)}.")
            return torch.tensor([index[str(label)] for label in array.tolist()])
        tensor = torch.as_tensor(array)
        return tensor.long() if self.task.has_classes else tensor.float()

    def example(self) -> Tensor:
        """One example of zeros, of the shape and type that the network takes."""
        about = self.config["inputs"]
        return torch.zeros((1, *about["shape"]), dtype=getattr(torch, about["dtype"]))

    # ---- inside
    def _name(self, client: str | int) -> str:
        if isinstance(client, int) and 0 <= client < len(self.clients):
            return self.clients[client]
        if client not in self.clients:
            shown = ", ".join(self.clients[:8]) + (", …" if len(self.clients) > 8 else "")
            raise ValueError(f"There is no client {client!r} in this run; its clients are {shown}.")
        return str(client)

    def _tensors(self, name: str) -> dict[str, Tensor]:
        if name in self.models:
            return self.models[name]
        index = self.folder / "models" / "index.json" if self.folder is not None else None
        if index is None or not index.exists():
            raise ValueError(
                "This run kept no personal models (save_models=False): run it again with save_models=True."
            )
        assert self.folder is not None
        checksums.verify(self.folder, "models/index.json")
        files = read_json(index)
        if name not in files:
            raise ValueError(f"This run has no personal model of {name}: it had left, or could not be measured.")
        file = f"models/{files[name]}"
        if not is_own(file):
            raise ValueError(f"{index} is damaged: restore it from a copy.")
        checksums.verify(self.folder, file)
        try:
            return load_file(self.folder / file)
        except SafetensorError as error:
            raise ValueError(f"{self.folder / file} is damaged ({error}): restore it from a copy.") from None

    def _network(self) -> Network:
        stored = self.folder / "models" / FROZEN if self.folder is not None else None
        frozen = load_file(stored) if stored is not None and stored.exists() else None
        return Network(self.make(0), self.example(), self.config["model"]["head"], self.task, frozen)

    def _training(self) -> Training:
        return Training(**self.config["training"])

    def _client(self, net: Network, data: Data | None = None) -> Client:
        nobody = Examples(self.example()[:0], torch.zeros(0, dtype=torch.long))
        data = data or Data(lambda: nobody, lambda: nobody, self.config["inputs"]["classes"])
        options = self.config["options"]
        training = self._training().at(options["rounds"] + 1)
        return Client(self.method.init_client(), data, options["seed"], net, training)

    def _server(self) -> Server:
        net, options = self._network(), self.config["options"]
        sizes = torch.tensor(self.config["inputs"]["sizes"])

        def initial(k: int) -> Tensor:
            module = self.make(k)
            tensors = dict(module.named_parameters()) | dict(module.named_buffers())
            return net.layout.flatten({name: value.detach() for name, value in tensors.items()})

        return Server(
            ids=torch.arange(len(sizes)), n=sizes, classes=self.config["inputs"]["classes"], seed=options["seed"],
            participation=options["participation"], training=self._training(), layout=net.layout, initial=initial,
        )  # fmt: skip


def load(folder: str | Path, *, method: Method | None = None, model: Any = None) -> Run:
    """Read a run back from its folder. `method` and `model` stand in for ones that cannot be imported from their names
    in config.json (defined in a notebook, or in a file that has moved)."""
    path = Path(folder)
    config = _read(path / "config.json", path)
    for part in ("method", "model", "inputs", "options", "training"):
        if not isinstance(config.get(part), dict):
            raise ValueError(f"{path / 'config.json'} has no '{part}': this is not the folder of a finished run.")
    summary, state, history = {}, {}, History()
    if "joined" not in config:  # a newcomer's folder holds only its model
        summary = _read(path / "summary.json", path)
        manifest = _read(path / "checkpoint" / "manifest.json", path)
        state = _state(path / "checkpoint", manifest)
        history = History.load(path)
    if method is None:
        fields = dict(config["method"])
        kind = _imported(fields.pop("class"), "method")
        if not (isinstance(kind, type) and issubclass(kind, Method)):
            raise ValueError(f"{path / 'config.json'} is damaged: {config['method']['class']} is not a method.")
        method = kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()})
    about, inputs = config["model"], config["inputs"]
    source = model if model is not None else about["name"]
    if isinstance(source, str) and ":" in source:
        source = _imported(source, "model")
    make = maker(source, tuple(inputs["shape"]), inputs["outputs"], config["options"]["seed"], about["options"])
    return Run(config, summary, history, state, path, method, make)


def inputs_of(federation: Any) -> dict[str, Any]:
    """What config.json stores about the data, so that the models can be used later."""
    arrays = getattr(federation, "arrays", None)
    return {
        "clients": list(federation.names),
        "sizes": federation.sizes.tolist(),
        "shape": list(federation.shape),
        "dtype": str(federation.example.dtype).removeprefix("torch."),
        "outputs": federation.outputs,
        "classes": federation.classes,
        "class_names": list(getattr(arrays, "class_names", ())),
        "image": bool(getattr(arrays, "image", False)),
        "mean": list(getattr(arrays, "mean", (0.0,))),
        "std": list(getattr(arrays, "std", (1.0,))),
    }


def _read(path: Path, folder: Path) -> dict[str, Any]:
    if not path.exists():
        from fedkin.report.tables import some

        found = sorted(str(inner.parent) for depth in ("*", "*/*") for inner in folder.glob(f"{depth}/config.json"))
        raise ValueError(
            f"{folder} is not the folder of a finished run: it has no {path.relative_to(folder)}."
            + (f" There are runs in it; give one of them: {some(found)}." if found else "")
        )
    content = read_json(path)
    checksums.verify(folder, str(path.relative_to(folder)))
    return content


def _state(folder: Path, manifest: dict[str, Any]) -> State:
    """The server's state that a manifest names, verified."""
    name = str(manifest.get("server"))
    if not is_own(f"checkpoint/{name}"):
        raise ValueError(f"{folder / 'manifest.json'} is damaged: restore it from a copy.")
    expected = manifest.get("digests", {}).get(name)
    if expected is not None and digest_of(folder / name) != expected:
        raise ValueError(f"{folder / name} is damaged: it was changed after it was written. Restore it from a copy.")
    return load_state(folder / name)


def _imported(target: str, what: str) -> Any:
    try:
        return load_path(target)
    except (ImportError, ValueError, AttributeError) as error:
        raise ValueError(
            f"The {what} of this run, {target}, cannot be imported ({error}): give it with load(folder, {what}=…)."
        ) from error


def _is_numeric(x: Any) -> bool:
    return isinstance(x, Tensor) or (isinstance(x, np.ndarray) and np.issubdtype(x.dtype, np.number))


def _named_by_integers(names: Sequence[str]) -> bool:
    return any(name.lstrip("-").isdecimal() for name in names)


@torch.no_grad()
def _scores(model: PersonalModel, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in x.split(BATCH)]) if len(x) else torch.empty(0)


def _measured(task: Task, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    return {**task.scores(outputs, targets), "loss": float(task.loss(outputs, targets))}


def in_memory(folder: Path) -> dict[str, dict[str, Tensor]]:
    """All personal models of a folder, each file read once."""
    if not (folder / "index.json").exists():
        return {}
    index: dict[str, str] = json.loads((folder / "index.json").read_text())
    files = {name: load_file(folder / name) for name in set(index.values())}
    return {client: files[name] for client, name in index.items()}
