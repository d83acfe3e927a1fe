"""Turn a name, a user's function or module into a function that builds the same network everywhere."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.data import DEFAULT_MODEL
from fedkin.data.npz import memory
from fedkin.models import MODELS
from fedkin.models.network import build
from fedkin.registry import load_path, lookup

Source = str | nn.Module | Callable[..., nn.Module]


def resolve(source: Source, data: str) -> Source:
    """Replace 'auto' by the default network for the data."""
    if source != "auto":
        return source
    if data not in DEFAULT_MODEL:
        return "mlp"
    return DEFAULT_MODEL[data]


def maker(
    source: Source, shape: tuple[int, ...], classes: int, seed: int, options: dict[str, Any]
) -> Callable[[int], nn.Module]:
    """Return a function of k that builds the network with its k-th independent initialization. 0 is the common initial
    model."""
    if isinstance(source, nn.Module):
        return lambda k: _restarted(source, _seed(seed, k)) if k else copy.deepcopy(source)
    if isinstance(source, str):
        function = load_path(source) if ":" in source else lookup(MODELS, source, "model").load()
    else:
        function = source
    arguments: tuple[Any, ...] = (shape, classes)
    try:
        inspect.signature(function).bind(*arguments, **options)
    except TypeError:
        try:
            inspect.signature(function).bind(**options)
        except TypeError:
            raise ValueError(
                f"The model {getattr(function, '__name__', function)} cannot be built: it must take (shape, classes) "
                f"or nothing, and the options {', '.join(options) or '(none given)'}."
            ) from None
        arguments = ()
    if isinstance(source, str) and source in MODELS:
        _check_size(source, lambda: function(*arguments, **options))
    return lambda k: build(lambda: _module(function(*arguments, **options)), _seed(seed, k))


def check_outputs(module: nn.Module, example: Tensor, outputs: int) -> None:
    """Raise unless the network accepts this example and gives this many outputs for it."""
    was_training = module.training
    try:
        with torch.no_grad():
            out = module.eval()(example[:1])
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"The network {type(module).__name__} cannot take an example of shape {list(example.shape[1:])} and dtype "
            f"{example.dtype} ({type(error).__name__}): build it for this shape, or give it (shape, classes)."
        ) from error
    finally:
        module.train(was_training)
    if not isinstance(out, Tensor):
        what = "None: does its last line lack a `return`?" if out is None else f"a {type(out).__name__}."
        raise ValueError(
            f"The network {type(module).__name__} must return one tensor [examples, {outputs}] from `forward`; it "
            f"returned {what}"
        )
    found = list(out.shape)
    if found != [1, outputs] and not (outputs == 1 and found == [1]):
        raise ValueError(
            f"The network {type(module).__name__} must give [examples, {outputs}], one output for each class or "
            f"target; for one example it gives {found}. Change the size of its last layer to {outputs}."
        )


def _check_size(name: str, make: Callable[[], nn.Module]) -> None:
    """Raise if a network does not fit into memory, before memory is taken for it."""
    try:
        with torch.device("meta"):
            size = 4 * sum(p.numel() for p in make().parameters())
    except (RuntimeError, OverflowError, TypeError) as error:
        raise ValueError(f"The model {name} cannot be built with these options: {error}") from None
    if size > memory() // 2:
        raise ValueError(
            f"The model {name} would take {size / 1e9:.3g} GB with these options and this data; this machine has "
            f"{memory() / 1e9:.3g} GB. Make it narrower, or check the number of classes."
        )


def _module(made: object) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise TypeError(f"The model function returned a {type(made).__name__}; it must return an nn.Module.")
    return made


def _seed(seed: int, k: int) -> int:
    return (seed * 1_000_003 + k * 7919 + 17) % (1 << 63)


def _restarted(module: nn.Module, seed: int) -> nn.Module:
    """A copy with new random weights."""

    def again() -> nn.Module:
        fresh = copy.deepcopy(module)
        for part in fresh.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
        return fresh

    with torch.no_grad():
        return build(again, seed)
