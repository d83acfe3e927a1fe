"""A personal model for use outside fedkin: ONNX, or a torch.export program."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedkin.task import Task

if TYPE_CHECKING:
    from fedkin.results.run import Run


def export(run: Run, client: str, path: Path) -> Path:
    """`Run.export`: write the network for batches of any size. Inputs and outputs are those of the network: for a
    table, the preprocessed features."""
    model, example = run.model(client), run.example()
    if path.suffix not in (".onnx", ".pt2"):
        raise ValueError(f"{path.name}: give a file name that ends in .onnx or .pt2.")
    if model.network is None:
        others = _exportable(run, client)
        instead = (
            f"export another method of this comparison: {', '.join(others)}"
            if others
            else "train with a method whose personal model is one network, such as fedavg-ft, fedper or ditto"
        )
        raise ValueError(
            f"A personal model of {run.config['label']} is not one network (it predicts from several arrays): it "
            f"cannot be exported. Use it with `fedkin predict` (run.predict), or {instead}."
        )
    pair = example.expand(2, *example.shape[1:]).contiguous()
    network = model.eval() if type(model.task).in_units is not Task.in_units else model.network.eval()
    batch = torch.export.Dim("examples", min=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".pt2":
        with _quiet():
            torch.export.save(torch.export.export(network, (pair,), dynamic_shapes=({0: batch},)), path)
        return path
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise ImportError("Export to ONNX needs onnx and onnxscript: pip install 'fedkin[onnx]'.") from None
    with _quiet():
        program = torch.onnx.export(
            network, (pair,), dynamo=True, input_names=["examples"], output_names=["scores"],
            dynamic_shapes=({0: batch},), verbose=False,
        )  # fmt: skip
    assert program is not None
    program.save(path)
    return path


def _exportable(run: Run, client: str) -> list[str]:
    """Folders of the other methods of the run's comparison, at the same seed, whose model of this client is a
    network."""
    from fedkin.results.run import load

    if run.folder is None or not (run.folder.parent.parent / "comparison.json").exists():
        return []
    found = []
    for config in sorted(run.folder.parent.parent.glob(f"*/{run.folder.name}/config.json")):
        with contextlib.suppress(ValueError, OSError):  # it is not finished, or its method cannot be imported
            other = load(config.parent)
            if client in other.with_models and other.model(client).network is not None:
                found.append(str(config.parent))
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporters say of themselves: of packages that the network does not need, of old names."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
