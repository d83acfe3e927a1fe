"""`Run`: a finished run as an object that people keep. What `fedkin.run` returns and `fedkin.load` reads back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Data, Examples, Method, Model, Server, State, Training
from fedkin.registry import load_path
from fedkin.results import checksums, joining
from fedkin.results.files import digest_of, read_json
from fedkin.results.folder import is_own
from fedkin.results.history import History
from fedkin.results.joining import ADAPTATION, is_numeric
from fedkin.results.joining import Joined as Joined
from fedkin.results.personal import FROZEN, measured, outputs_of, stored_tensors
from fedkin.results.personal import PersonalModel as PersonalModel
from fedkin.results.predictions import predictions
from fedkin.results.store import load_state
from fedkin.task import Task, from_config


@dataclass
class Run:
    """A run and its results: settings, summary, history, and the personal model of each client."""

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
        return self.task.in_units(self._outputs(client, x))

    def _outputs(self, client: str | int, x: Any) -> Tensor:
        return outputs_of(self.model(client), self.inputs(x, client))

    def predict(self, client: str | int, x: Any) -> np.ndarray[Any, Any]:
        """Labels (as the data names them), or numbers in a regression."""
        found = self.task.predictions(self._outputs(client, x)).numpy()
        names = self.config["inputs"]["class_names"]
        return np.array(names)[found] if names and self.task.has_classes else found

    def predict_proba(self, client: str | int, x: Any) -> np.ndarray[Any, Any]:
        """Probabilities [examples, classes], in the order of the classes."""
        return self.task.probabilities(self._outputs(client, x)).numpy()

    def predictions(self, client: str | int, x: Any, *, keep: str | Sequence[str] = ()) -> dict[str, list[Any]]:
        """Labels or numbers, and probabilities, as named columns: `pandas.DataFrame(run.predictions(…))`. `keep` are
        columns of the file or frame to stand beside them, such as a patient's number, as they are written there."""
        return predictions(self, client, x, keep)

    def evaluate(self, client: str | int, x: Any, y: Any) -> dict[str, float]:
        """The task's metrics and the loss of a client's model on these examples."""
        return measured(self.task, self._outputs(client, x), self.targets(y))

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

        return export(self, self._name(client), Path(path))

    # ---- newcomers
    def join(self, name: str, x: Any, y: Any, *, validation: float = 0.1, rounds: int = ADAPTATION) -> Joined:
        """A personal model for a client that was not in the run, by the method's own rule. The run stays as it is.

        If the method keeps something at clients (a head, a model), the newcomer first trains for `rounds` rounds alone.
        The expected performance is measured on a fifth of the examples, with a model made from the others; the model
        returned is made from all of them.
        """
        return joining.join(self, name, x, y, validation=validation, rounds=rounds)

    def keep(self, joined: Joined, out: str | Path, *, fresh: bool = False) -> Path:
        """Write a newcomer's model to a folder of its own, which `load` reads as a run with this one client. With
        `fresh`, it replaces an earlier model of the same newcomer there."""
        return joining.keep(self, joined, out, fresh=fresh)

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
        if stored is not None and not is_numeric(x):
            from fedkin.data.preprocess import Preprocessing

            prepared = Preprocessing.from_json(stored)
            name = str(client) if newcomer else self._name(client)
            if newcomer:
                prepared = prepared.with_client(name, x)
            return torch.from_numpy(prepared.transform(x, name))
        shape = tuple(about["shape"])
        if not isinstance(x, Tensor) and np.asarray(x).dtype.kind not in "biuf":
            raise ValueError(
                f"This run learned from arrays, not from a table with named columns: give an array "
                f"[examples, {', '.join(map(str, shape))}], at the terminal as a .npy or .npz file."
            )
        array = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
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
        return self.models[name] if name in self.models else stored_tensors(self.folder, name)

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
    """What a run must know of its data to use its models later: for config.json."""
    arrays, prepared = getattr(federation, "arrays", None), getattr(federation, "preprocessing", None)
    return {
        "clients": list(federation.names),
        "sizes": federation.sizes.tolist(),
        "shape": list(federation.shape),
        "dtype": str(federation.example.dtype).removeprefix("torch."),
        "outputs": federation.outputs,
        "classes": federation.classes,
        "class_names": list(getattr(arrays, "class_names", ())),
        "targets": list(prepared.reading.labels) if prepared is not None else [],
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


def _named_by_integers(names: Sequence[str]) -> bool:
    return any(name.lstrip("-").isdecimal() for name in names)
