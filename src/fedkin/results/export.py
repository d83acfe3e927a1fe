"""A personal model for use outside fedkin: ONNX, or a torch.export program."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from fedkin.results.personal import PersonalModel
from fedkin.task import Task


def export(model: PersonalModel, example: Tensor, path: Path, method: str) -> Path:
    """Write the network for batches of any size. Inputs and outputs are those of the network: for a table, the
    preprocessed features."""
    if path.suffix not in (".onnx", ".pt2"):
        raise ValueError(f"{path.name}: give a file name that ends in .onnx or .pt2.")
    if model.network is None:
        raise ValueError(
            f"A personal model of {method} is not one network (it predicts from several arrays): it cannot be "
            "exported. Use run.predict, or a method whose personal model is a network."
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
