"""`Network`: any `nn.Module` whose numbers are one flat float32 vector, so that a merge of models is one GEMM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedkin.task import Classification, Task

Loss = Callable[["Network", Tensor, Tensor], Tensor]


class Piece(NamedTuple):
    """One named tensor of a module, and its range in the vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Layer(NamedTuple):
    """A module with parameters of its own: weight and bias together, and its float buffers."""

    name: str
    positions: Tensor
    parameters: Tensor


@dataclass(frozen=True)
class Layout:
    """What each number of a vector is: trained parameters, then float buffers.

    Frozen parameters (`requires_grad=False` in the module) are constants: they are in no vector, do not travel and are
    not stored for each client.
    """

    pieces: tuple[Piece, ...]
    parameters: int
    """Number of trained parameters."""
    size: int
    layers: tuple[Layer, ...]
    """The layers with something to train."""
    head_layer: int
    aliases: tuple[tuple[str, str], ...] = ()
    """Other names of tensors that a module uses more than once, and the name of their piece."""
    frozen: tuple[str, ...] = ()
    """Names of the frozen parameters."""

    @property
    def head(self) -> Tensor:
        """Positions of the head: the last linear layer, or the one the user named."""
        return self.layers[self.head_layer].positions

    @property
    def body(self) -> Tensor:
        """Positions of everything but the head."""
        inside = torch.ones(self.size, dtype=torch.bool)
        inside[self.head] = False
        return inside.nonzero().flatten()

    def positions(self, layers: tuple[str | int, ...]) -> Tensor:
        """Positions of the layers given by name or index (negative counts from the end). A frozen layer
        has none."""
        names = [layer.name for layer in self.layers]
        held = {name.rpartition(".")[0] for name in self.frozen}
        out: list[Tensor] = []
        for key in layers:
            if key in held and key not in names:
                continue
            known = names if isinstance(key, str) else range(-len(names), len(names))
            if key not in known:
                raise ValueError(
                    f"There is no layer {key!r}; the layers are {', '.join(names)} (0 to {len(names) - 1})."
                )
            out.append(self.layers[names.index(key) if isinstance(key, str) else key].positions)
        return torch.cat(out).unique() if out else torch.empty(0, dtype=torch.long)

    def tensors(self, vector: Tensor) -> dict[str, Tensor]:
        """A vector as named tensors, as `nn.Module.load_state_dict` takes them."""
        named = {p.name: vector[p.start : p.stop].reshape(p.shape).clone() for p in self.pieces}
        return named | {other: named[name].clone() for other, name in self.aliases}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([tensors[p.name].reshape(-1).float() for p in self.pieces])


class Network:
    """A module whose parameters and float buffers are views of one flat vector. Integer buffers do not travel.

    `cost` counts what was computed, in FLOPs, from the samples that went through.
    """

    def __init__(
        self,
        module: nn.Module,
        example: Tensor,
        head: str | None = None,
        task: Task | None = None,
        frozen: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`frozen`: values of the frozen parameters, used in place of the module's own so that several networks share
        their memory."""
        self.module = module
        self.task = task or Classification()
        self._names = dict(module.named_modules())
        self._parts = tuple(self._names.values())
        self._plain_modes = all(
            type(part).train is nn.Module.train and "train" not in vars(part) for part in self._parts
        )
        self.layout = _layout(module, head)
        self.parameters: list[nn.Parameter] = []
        self.views: list[Tensor] = []
        self._counters = [b for b in module.buffers() if not b.is_floating_point()]
        self._counter_start = [b.clone() for b in self._counters]
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        values = [(parameters | buffers)[piece.name].detach().reshape(-1) for piece in self.layout.pieces]
        self.flat = torch.cat(values)  # on the device of the module
        for piece in self.layout.pieces:
            view = self.flat[piece.start : piece.stop].view(piece.shape)
            if piece.name in parameters:
                parameter = parameters[piece.name]
                parameter.data = view
                self.parameters.append(parameter)
                self.views.append(view)
            else:
                owner, _, name = piece.name.rpartition(".")
                self._names[owner]._buffers[name] = view
        for name in self.layout.frozen if frozen is not None else ():
            parameters[name].data = frozen[name]  # type: ignore[index]
        self.frozen_parameters = {name: parameters[name].detach() for name in self.layout.frozen}
        self.trainable = self.flat[: self.layout.parameters]
        self.initial = self.flat.clone()
        """The common initial model: every client can make it from the run's seed, so it need not travel."""
        self.needs_pairs = any(isinstance(m, _BatchNorm) for m in module.modules())
        self._gradient = torch.empty_like(self.trainable)
        self._gradient_pieces = self.pieces(self._gradient)
        # a module's own gradient is that of all its parameters
        make = None if self.layout.frozen else getattr(module, "gradient_function", None)
        self._closed: Callable[[Tensor, Tensor], list[Tensor]] | None = make and make(self._gradient_pieces)
        self.flattens_inputs: bool = getattr(module, "flattens_inputs", False)
        """Does the module begin by flattening each example, so that it may be given flat ones?"""
        self._head: nn.Module = self._names[self.layout.layers[self.layout.head_layer].name]
        self.autocast: Callable[[], AbstractContextManager[Any]] | None = None
        """Mixed precision of the module's passes; losses, gradients and vectors stay float32."""
        self.forward_flops, self.training_flops = _flops(self, example)
        self.cost = 0.0

    def load(self, vector: Tensor) -> None:
        if vector.shape != self.flat.shape:
            raise ValueError(
                f"This network has {self.layout.size} numbers; the vector given has shape {tuple(vector.shape)}."
            )
        self.flat.copy_(vector)
        for counter, start in zip(self._counters, self._counter_start):
            counter.copy_(start)

    def trains(self, positions: Tensor) -> bool:
        """Is there anything to train at these positions?"""
        return bool((positions < self.layout.parameters).any())

    def like(self, module: nn.Module) -> Tensor:
        """Another module of the same architecture as a vector."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        return self.layout.flatten({name: value.detach() for name, value in tensors.items()})

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """A flat vector of the parameters' size as views in the parameters' shapes."""
        count = len(self.parameters)
        return [flat[p.start : p.stop].view(p.shape) for p in self.layout.pieces[:count]]

    def vector(self) -> Tensor:
        return self.flat.clone()

    def holds(self, value: Tensor) -> bool:
        """Is this tensor in memory that the network writes to?"""
        own = (self.flat, self._gradient)
        return value.untyped_storage().data_ptr() in [tensor.untyped_storage().data_ptr() for tensor in own]

    def train(self, mode: bool = True) -> None:
        """Set the module, and all its parts, to training mode."""
        if self.module.training is mode and all(part.training is mode for part in self._parts):
            return
        if self._plain_modes:
            for part in self._parts:
                vars(part)["training"] = mode  # an eighth of the time of `module.train()`
        else:
            self.module.train(mode)

    def eval(self) -> None:
        self.train(False)

    def __call__(self, x: Tensor) -> Tensor:
        self.cost += len(x) * (self.training_flops if torch.is_grad_enabled() else self.forward_flops)
        if self.autocast is None:
            return self.module(x)  # type: ignore[no-any-return]
        with self.autocast():
            return self.module(x).float()  # type: ignore[no-any-return]

    def is_closed(self, loss: Loss | None, parameters: Sequence[nn.Parameter]) -> bool:
        """Does the module itself know the gradient of this loss (the task's where None) for these parameters?"""
        return (
            loss is None
            and self._closed is not None
            and self.autocast is None
            and self.task.is_cross_entropy
            and len(parameters) == len(self.parameters)
        )

    def closed_gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradient of the task's loss on a batch, as a flat vector, where `is_closed`. The next call writes over it."""
        assert self._closed is not None
        self.cost += x.shape[0] * self.training_flops
        self._closed(x, y)
        return self._gradient

    def gradients(self, x: Tensor, y: Tensor, loss: Loss | None, parameters: list[nn.Parameter]) -> list[Tensor]:
        """Gradient of the loss (the task's where None) on a batch, for these parameters. The next call may write over
        it."""
        if self.is_closed(loss, parameters):
            self.closed_gradient(x, y)
            return self._gradient_pieces
        value = self.task.loss(self(x), y) if loss is None else loss(self, x, y)
        slopes = torch.autograd.grad(value, parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for g, p in zip(slopes, parameters)]

    def gradient_vector(self, x: Tensor, y: Tensor, loss: Loss | None = None) -> Tensor:
        """Gradient of the loss (the task's where None) on a batch, for all parameters, as a flat vector of its own."""
        if self.is_closed(loss, self.parameters):
            return self.closed_gradient(x, y).clone()
        return torch.cat([part.reshape(-1) for part in self.gradients(x, y, loss, self.parameters)])

    def example_gradients(self, x: Tensor, y: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
        """Gradient of the task's loss on each single example, [examples, …] for each of these parameters."""
        if self.needs_pairs:
            raise ValueError(
                "this network has batch norm, whose output for one example depends on the others, so there is no "
                "gradient of a single example: use a network without it for --privacy example:…"
            )
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        values = {names[id(p)]: p.detach() for p in parameters}
        self.cost += len(x) * self.training_flops

        def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            outputs = torch.func.functional_call(self.module, values, (x[None],))
            return self.task.loss(outputs, y[None], reduction="sum")

        slopes = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")(values, x, y)
        return list(slopes.values())

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features (the head's input) and logits."""
        caught: list[Tensor] = []
        handle = self._head.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
        try:
            logits = self(x)
        finally:
            handle.remove()
        return (caught[0] if self.autocast is None else caught[0].float()), logits

    def features(self, x: Tensor) -> Tensor:
        return self.split(x)[0]

    def head(self, features: Tensor) -> Tensor:
        if self.autocast is None:
            return self._head(features)  # type: ignore[no-any-return]
        with self.autocast():
            return self._head(features).float()  # type: ignore[no-any-return]

    @contextmanager
    def frozen(self, positions: Tensor) -> Any:
        """Inside this block, the parameters in `positions` stay as they are: they take no
        gradient, and batch norm does not move its running mean and variance."""
        inside = torch.zeros(self.layout.size, dtype=torch.bool)
        inside[positions] = True
        within = {piece.name for piece in self.layout.pieces if bool(inside[piece.start : piece.stop].all())}
        held = [p for p, piece in zip(self.parameters, self.layout.pieces) if piece.name in within and p.requires_grad]
        norms = [
            (m, m.momentum)
            for name, m in self._names.items()
            if isinstance(m, _BatchNorm) and f"{name}.running_mean".removeprefix(".") in within
        ]
        try:
            for parameter in held:
                parameter.requires_grad_(False)
            for norm, _ in norms:
                norm.momentum = 0.0
            yield
        finally:
            for parameter in held:
                parameter.requires_grad_(True)
            for norm, momentum in norms:
                norm.momentum = momentum


def build(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module with its usual initialization, a pure function of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


def _layout(module: nn.Module, head: str | None) -> Layout:
    pieces: list[Piece] = []
    frozen = []
    at = 0
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            frozen.append(name)
            continue
        if parameter.dtype != torch.float32:
            raise ValueError(f"Parameter {name} is {parameter.dtype}; a model vector is float32: call module.float().")
        pieces.append(Piece(name, tuple(parameter.shape), at, at := at + parameter.numel()))
    count = at
    if not count:
        raise ValueError(f"{type(module).__name__} has no parameters to learn{': all are frozen' if frozen else ''}.")
    persistent = set(module.state_dict())
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point() and name in persistent:
            pieces.append(Piece(name, tuple(buffer.shape), at, at := at + buffer.numel()))
    owned: dict[str, list[Tensor]] = {}
    for piece in pieces:
        owned.setdefault(piece.name.rpartition(".")[0], []).append(torch.arange(piece.start, piece.stop))
    layers = []
    for name, parts in owned.items():
        positions = torch.cat(parts)
        if bool((positions < count).any()):
            layers.append(Layer(name, positions, positions[positions < count]))
    names = [layer.name for layer in layers]
    if head is None:
        linear = [n for n, m in module.named_modules() if isinstance(m, nn.Linear) and n in names]
        head = linear[-1] if linear else names[-1]
    if head not in names:
        raise ValueError(
            f"head='{head}' is not a layer of {type(module).__name__}; its layers are {', '.join(names)}"
            f"{' (those that are not frozen)' if frozen else ''}."
        )
    first: dict[int, str] = {}
    aliases = []
    for name, tensor in [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]:
        known = first.setdefault(id(tensor), name)
        if known != name and name in persistent and tensor.is_floating_point() and known not in frozen:
            aliases.append((name, first[id(tensor)]))
    return Layout(tuple(pieces), count, at, tuple(layers), names.index(head), tuple(aliases), tuple(frozen))


def _flops(net: Network, example: Tensor) -> tuple[float, float]:
    """FLOPs of one sample, forward alone and in training (forward and backward)."""
    pair = example[:1].expand(2, *example.shape[1:])  # batch norm in training mode rejects a single example
    kept = net.flat.clone()
    was_training = net.module.training
    with _Counter() as counter, torch.enable_grad():
        out = net.module.train()(pair)
        forward = counter.flops
        torch.autograd.grad(out.sum(), [p for p in net.parameters if p.requires_grad], allow_unused=True)
    net.module.train(was_training)
    net.load(kept)
    return forward / 2, counter.flops / 2


class _Counter(TorchDispatchMode):
    """Counts FLOPs with torch's own formulas, as `FlopCounterMode` does, but without its import of the compiler, which
    takes as long as that of torch itself."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        return out
