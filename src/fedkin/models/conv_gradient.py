"""Gradient of a convolutional network by the chain rule, without autograd."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.models.mlp import GradientFunction

ATEN = torch.ops.aten
NARROW = 8
"""Up to this number of output channels, a convolution fills less than half of a vector register of 16 numbers."""


class Stage(NamedTuple):
    """A convolution, then a 2x2 max-pool or none, then ReLU."""

    convolution: nn.Conv2d
    pooled: bool


class ConvolutionalGradient:
    """Gradient of the mean cross entropy of convolutions and fully connected layers, written to `out`.

    It calls the kernels that autograd would call. In a small network autograd's bookkeeping takes a good part of a
    step; see `GradientFunction`.
    """

    def __init__(
        self,
        stages: list[Stage],
        dense: list[nn.Linear],
        out: list[Tensor],
        *,
        border: int,
        channels_last: bool,
        paired: bool,
    ) -> None:
        """`paired`: the first convolution may take two columns at a time: it has no padding, its kernel an odd width
        and the images an even one."""
        self._border, self._channels_last = border, channels_last
        self._stages: list[tuple[_Convolution | _PairedConvolution, bool, Tensor, Tensor]] = []
        for stage, weight_slope, bias_slope in zip(stages, out[::2], out[1::2]):
            inner, layer = bool(self._stages), stage.convolution
            in_pairs = paired and not inner and layer.out_channels <= NARROW
            made = _PairedConvolution(layer) if in_pairs else _Convolution(layer, inner)
            self._stages.append((made, stage.pooled, weight_slope, bias_slope))
        self._dense = GradientFunction(dense, out[2 * len(stages) :], inputs=True)
        self._out = out

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        if self._border:
            x = F.pad(x, (self._border,) * 4)
        if self._channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        passed = []
        for convolution, pooled, weight_slope, bias_slope in self._stages:
            before, wide = x, convolution(x)
            x, chosen = ATEN.max_pool2d_with_indices(wide, (2, 2)) if pooled else (wide, None)
            torch.relu_(x)
            passed.append((convolution, before, wide, chosen, x, weight_slope, bias_slope))
        self._dense(x, y)
        slope: Tensor | None = self._dense.input_slope.view(x.shape)
        while passed:  # what is not needed any more is freed, and its memory taken again while it is in the cache
            convolution, before, wide, chosen, after, weight_slope, bias_slope = passed.pop()
            slope = ATEN.threshold_backward(slope, after, 0)
            if chosen is not None:
                slope = ATEN.max_pool2d_with_indices_backward(
                    slope, wide, (2, 2), (2, 2), (0, 0), (1, 1), False, chosen
                )
            del wide, chosen, after
            slope = convolution.backward(slope, before, weight_slope, bias_slope)
        return self._out


class _Convolution:
    def __init__(self, layer: nn.Conv2d, inner: bool) -> None:
        assert layer.bias is not None
        assert not isinstance(layer.padding, str)
        self._weight, self._padding = layer.weight.detach(), layer.padding
        self._bias = layer.bias.detach()
        self._wanted = (inner, True, True)  # the slope of a network's inputs is not needed

    def __call__(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self._weight, self._bias, padding=self._padding)

    def backward(self, slope: Tensor, x: Tensor, weight_slope: Tensor, bias_slope: Tensor) -> Tensor | None:
        """Write the gradient by weight and bias; return that by x, if it is needed."""
        below, by_weight, by_bias = _backward(slope, x, self._weight, self._padding, self._wanted)
        weight_slope.copy_(by_weight)
        bias_slope.copy_(by_bias)
        return below


class _PairedConvolution:
    """The first convolution of a network, if it has few output channels: two neighboring columns at a time.

    With the channels innermost, an image [height, width, channels] is in memory an image [height, width / 2, 2
    channels], and so is the output. The kernel for two neighboring outputs is the given one twice, shifted by a column
    and filled up with zeros. That is 1.2 times the work for a kernel of width 5, with twice the output channels, which
    fill the processor's vectors.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        assert layer.bias is not None
        out, channels, height, width = layer.weight.shape
        self._given = layer.weight.detach().permute(0, 2, 3, 1), layer.bias.detach()
        wide = layer.weight.new_zeros(2, out, height, width + 1, channels)
        self._copies = wide[0, :, :, :-1], wide[1, :, :, 1:]
        self._weight = wide.view(2 * out, height, (width + 1) // 2, 2 * channels).permute(0, 3, 1, 2)
        self._shape = wide.shape

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias = self._given
        for copy in self._copies:
            copy.copy_(weight)
        return _halved(F.conv2d(_doubled(x), self._weight, bias.repeat(2)))

    def backward(self, slope: Tensor, x: Tensor, weight_slope: Tensor, bias_slope: Tensor) -> None:
        _, by_weight, by_bias = _backward(_doubled(slope), _doubled(x), self._weight, (0, 0), (False, True, True))
        first, second = by_weight.permute(0, 2, 3, 1).reshape(self._shape)
        torch.add(first[:, :, :-1], second[:, :, 1:], out=weight_slope.permute(0, 2, 3, 1))
        torch.sum(by_bias.view(2, -1), 0, out=bias_slope)


def _doubled(x: Tensor) -> Tensor:
    """Two neighboring columns of images as one column with twice the channels."""
    examples, channels, height, width = x.shape
    return x.permute(0, 2, 3, 1).reshape(examples, height, width // 2, 2 * channels).permute(0, 3, 1, 2)


def _halved(x: Tensor) -> Tensor:
    """The inverse of `_doubled`."""
    examples, channels, height, width = x.shape
    return x.permute(0, 2, 3, 1).reshape(examples, height, 2 * width, channels // 2).permute(0, 3, 1, 2)


def _backward(
    slope: Tensor, x: Tensor, weight: Tensor, padding: tuple[int, ...], wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient by inputs, weight and bias of a convolution with stride 1."""
    return ATEN.convolution_backward(  # type: ignore[no-any-return]
        slope, x, weight, (weight.shape[0],), (1, 1), padding, (1, 1), False, (0, 0), 1, wanted
    )
