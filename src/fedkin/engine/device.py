"""Where client functions compute: on a CPU, or on accelerators that the workers share.

A worker's network, the message, the client's state and its data are placed on the device before a client function runs,
and its reply comes back to host memory. Client code is ordinary PyTorch written for a CPU: inside `Device.active()`
factory functions such as `torch.zeros` make tensors on the device.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedkin.protocol import Reply

KINDS = "auto, cpu, cuda, cuda:0 or cuda:0,1, mps"
FACTORIES: frozenset[Any] = frozenset(
    {torch.arange, torch.as_tensor, torch.empty, torch.eye, torch.full, torch.linspace, torch.logspace, torch.ones}
    | {torch.rand, torch.randint, torch.randn, torch.randperm, torch.scalar_tensor, torch.tensor, torch.zeros}
)


class Device:
    """One device, as a worker uses it."""

    def __init__(self, name: str = "cpu") -> None:
        self.name = name
        self.kind = name.partition(":")[0]

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"

    # ---- what differs between kinds of devices
    def to_device(self, array: Tensor) -> Tensor:
        return array.to(self.name)

    def to_host(self, array: Tensor) -> Tensor:
        return array.detach().cpu()

    def module(self, module: nn.Module) -> nn.Module:
        return module.to(self.name)

    def make(self, factory: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
        """A tensor on this device by a factory function. Numbers drawn with a CPU generator are those of a CPU."""
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type == "cpu":
            return self.to_device(factory(*args, **{**kwargs, "device": "cpu"}))
        return factory(*args, **{**kwargs, "device": self.name})

    def seed(self, seed: int) -> None:
        # not torch.manual_seed: without CUDA it queues a call with a stack trace each time
        torch.default_generator.manual_seed(seed)
        if self.kind == "cuda":
            torch.cuda.manual_seed(seed)
        elif self.kind == "mps":
            torch.mps.manual_seed(seed)

    def random_state(self) -> tuple[Tensor, Tensor | None]:
        return torch.default_generator.get_state(), self._own_state()

    def set_random_state(self, state: tuple[Tensor, Tensor | None]) -> None:
        torch.default_generator.set_state(state[0])
        if self.kind == "cuda" and state[1] is not None:
            torch.cuda.set_rng_state(state[1], self.name)
        elif self.kind == "mps" and state[1] is not None:
            torch.mps.set_rng_state(state[1])

    def _own_state(self) -> Tensor | None:
        if self.kind == "cuda":
            return torch.cuda.get_rng_state(self.name)
        return torch.mps.get_rng_state() if self.kind == "mps" else None

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Mixed precision: matrix products and convolutions in bfloat16, which needs no scaling of the loss."""
        return torch.autocast(self.kind, dtype=torch.bfloat16)

    # ---- the same for all devices
    def placed(self, value: Any) -> Any:
        """A message, a state or examples, with every tensor on this device."""
        return value if self.is_cpu else _mapped(value, self.to_device)

    def returned(self, reply: Reply) -> Reply:
        return reply if self.is_cpu else Reply(*_mapped(tuple(reply), self.to_host))

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Inside this block, client code creates its tensors on this device."""
        if self.is_cpu:
            yield
        else:
            with OnDevice(self):
                yield


class OnDevice(TorchFunctionMode):
    """Factory functions that name no device make tensors on this one; numpy sees copies in host memory."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FACTORIES and kwargs.get("device") is None:
            if func is torch.as_tensor and isinstance(args[0], Tensor):
                return func(*args, **kwargs)
            return self._device.make(func, args, kwargs)
        if func in (torch.Tensor.numpy, torch.Tensor.tolist) and args[0].device.type != "cpu":
            return func(self._device.to_host(args[0]), *args[1:], **kwargs)
        return func(*args, **kwargs)


def open_device(name: str) -> Device:
    """Open a device in this process. Only workers and the serial engine call this."""
    return Device(name)


def names(option: str) -> list[str]:
    """The devices of an option such as cuda:0,1. This does not initialize CUDA, because workers are forked later."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if option == "auto":
        option = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if option == "cpu":
        return ["cpu"]
    if option == "mps":
        if not torch.backends.mps.is_available():
            raise ValueError("device=mps, but PyTorch finds no Metal device here: use device=cpu or auto.")
        return ["mps"]
    found = re.fullmatch(r"cuda(?::(\d+(?:,\d+)*))?", option)
    if found is None:
        raise ValueError(f"device={option} must be one of {KINDS}.")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ValueError(f"device={option}, but PyTorch finds no CUDA device here: use device=cpu or auto.")
    chosen = [int(n) for n in found[1].split(",")] if found[1] else list(range(count))
    if absent := [n for n in chosen if n >= count]:
        raise ValueError(f"device={option}: there is no CUDA device {absent[0]}; there are {count}, from 0.")
    return [f"cuda:{n}" for n in chosen]


def check(option: str, amp: bool) -> list[str]:
    """The devices of a run. Raise if they cannot do what is asked."""
    found = names(option)
    if amp and found == ["cpu"]:
        raise ValueError("amp=True is for accelerators; on a CPU it is slower or unavailable: leave it out.")
    return found


def check_fork(devices: Sequence[str]) -> None:
    """Raise if forked workers could not use CUDA, because this process has already used it."""
    if any(name.startswith("cuda") for name in devices) and torch.cuda.is_initialized():
        raise RuntimeError(
            "CUDA is already in use in this process, so forked workers cannot use it: call run() before anything on "
            "the GPU, or use engine='serial'."
        )


def make_deterministic() -> None:
    """Use kernels that give the same bits each time; an operation that has none raises."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {k: _mapped(v, change) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(v, change) for v in value))
    if isinstance(value, tuple | list):
        return type(value)(_mapped(v, change) for v in value)
    return value
