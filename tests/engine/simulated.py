"""A simulated accelerator: tensors on device `meta` that compute on a CPU tensor inside.

As on a GPU, an operation on such a tensor and an ordinary one raises, but for what PyTorch allows there: numbers
(tensors without dimensions), copies between devices, and indices in host memory.
"""

from __future__ import annotations

import contextlib

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from fedkin.engine.device import Device

COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
INDEXED = {"aten::index.Tensor", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class Tagged(torch.Tensor):
    """A tensor of the simulated device."""

    @staticmethod
    def __new__(cls, inside):
        return torch.Tensor._make_wrapper_subclass(
            cls, inside.shape, strides=inside.stride(), storage_offset=inside.storage_offset(), dtype=inside.dtype,
            device="meta", requires_grad=False,
        )  # fmt: skip

    def __init__(self, inside):
        self.inside = inside

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def data(self):
        return Tagged(self.inside.detach())

    @data.setter
    def data(self, value):
        self.inside = value.inside

    def data_ptr(self):
        return self.inside.data_ptr()

    def untyped_storage(self):
        return self.inside.untyped_storage()

    def cpu(self):
        return self.inside.clone()

    def __setitem__(self, index, value):
        if isinstance(value, bool | int | float):  # PyTorch would make a tensor of it on `meta`
            value = Tagged(torch.tensor(value, dtype=self.dtype, device="cpu"))
        super().__setitem__(index, value)

    def __repr__(self):
        return f"Tagged({self.inside!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            if func is torch.ops.aten._to_copy.default and torch.device(kwargs["device"]).type == "cpu":
                return func(args[0].inside, **kwargs)
            kwargs["device"] = torch.device("cpu")
        name = func.name()
        if func is torch.ops.aten.clamp_min_.Tensor and args[1].is_meta:
            args = (args[0], torch.tensor(1e-8, device="cpu"))  # the eps of F.cosine_similarity
        if func is torch.ops.aten.where.self and args[2].is_meta and not isinstance(args[2], Tagged):
            args = (*args[:2], torch.tensor(0.0, device="cpu"))  # the slope of a clamp below its limit
        if any(isinstance(a, torch.Tensor) and not isinstance(a, Tagged) and a.is_meta for a in tree_flatten(args)[0]):
            raise NotImplementedError(f"{name}: PyTorch made a tensor on `meta` itself, whose numbers are lost")
        if func not in COPIES:
            checked = (args[0], *args[2:]) if name in INDEXED else (args, kwargs)
            strange = [
                a
                for a in tree_flatten(checked)[0]
                if isinstance(a, torch.Tensor) and not isinstance(a, Tagged) and a.dim()
            ]
            if strange:
                raise RuntimeError(f"{name}: expected all tensors on the simulated device; one is on the CPU")
        out = func(*tree_map(_inside, args), **tree_map(_inside, kwargs))
        if func._schema.name.endswith("_") and isinstance(args[0], torch.Tensor):
            return args[0]
        return tree_map(lambda t: Tagged(t) if isinstance(t, torch.Tensor) else t, out)


def _inside(value):
    return value.inside if isinstance(value, Tagged) else value


class ToMeta(TorchDispatchMode):
    """`tensor.to(other.device)` of an ordinary tensor, where the other is on the simulated device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        wanted = kwargs.get("device")
        if func is torch.ops.aten._to_copy.default and wanted is not None and torch.device(wanted).type == "meta":
            return Tagged(func(_inside(args[0]), **{**kwargs, "device": torch.device("cpu")}))
        return func(*args, **kwargs)


class VectorTimesMatrix(TorchFunctionMode):
    """PyTorch changes the shape of the product in place, which a wrapper cannot follow: the same without that."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__) and [a.dim() for a in args] == [1, 2]:
            return args[0][None].mm(args[1])[0]
        return func(*args, **(kwargs or {}))


class Simulated(Device):
    """`entered` counts the uses of mixed precision, which this device has none of."""

    def __init__(self, name="sim"):
        super().__init__(name)
        self.entered = 0

    def to_device(self, array):
        return array if isinstance(array, Tagged) else Tagged(array.detach().clone())

    def to_host(self, array):
        array = array.detach()
        return array.inside.clone() if isinstance(array, Tagged) else array

    def make(self, factory, args, kwargs):
        """Of lists of tensors, torch.tensor makes one where they are numbers."""
        return Tagged(factory(*tree_map(_number, args), **{**kwargs, "device": "cpu"}))

    def module(self, module):
        known = {}
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    made = nn.Parameter(Tagged(parameter.detach().clone()), parameter.requires_grad)
                    part._parameters[name] = known.setdefault(id(parameter), made)
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = known.setdefault(id(buffer), Tagged(buffer.clone()))
        return module

    @contextlib.contextmanager
    def active(self):
        with ToMeta(), VectorTimesMatrix(), super().active():
            yield

    def autocast(self):
        self.entered += 1
        return contextlib.nullcontext()


def _number(value):
    return value.inside if isinstance(value, Tagged) else value
