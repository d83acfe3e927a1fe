"""Convolutional networks of the papers. Where a paper gives no widths, they are ours; `width` scales them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.models.conv_gradient import ConvolutionalGradient, Stage
from fedkin.models.mlp import Dense, scaled


class Convolutional(nn.Module):
    """Convolutions and 2x2 max-pools (written as 0), then fully connected layers."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        convolutions: tuple[int, ...],
        kernel: int,
        padding: int,
        hidden: tuple[int, ...],
        width: float,
        border: int = 0,
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ValueError(
                f"A convolutional network needs images [channels, height, width]; this data has shape {list(shape)}. "
                "Use --model mlp, or har for windows [channels, time]."
            )
        channels, height, side = shape
        height, side = height + 2 * border, side + 2 * border
        self.plan, self.border = convolutions, border
        self.paired = padding == 0 and kernel % 2 == 1 and side % 2 == 0
        # Measured: 3x3 convolutions of color images are 1.2 to 2.3 times as fast with the channels innermost, 5x5
        # ones are not. The layout of gray images is left to the data.
        self.channels_last = kernel == 3 and channels > 1
        index = 0
        for out in convolutions:
            if out:
                index += 1
                out = scaled(out, width)
                self.add_module(f"conv{index}", nn.Conv2d(channels, out, kernel, padding=padding))
                channels, height, side = out, height + 2 * padding - kernel + 1, side + 2 * padding - kernel + 1
            else:
                height, side = height // 2, side // 2
            if min(height, side) < 1:
                raise ValueError(f"Images of {shape[1]}x{shape[2]} are too small for this network: use --model mlp.")
        dense = Dense((channels, height, side), tuple(scaled(h, width) for h in hidden), classes)
        for name, layer in dense.named_children():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        if self.border:
            x = F.pad(x, (self.border,) * 4)
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        layers = iter(self.children())
        for i, out in enumerate(self.plan):
            if not out:
                # ReLU after the pool: the same function and gradient for a quarter of the work
                x = F.relu_(F.max_pool2d(x, 2))
                continue
            x = next(layers)(x)
            if self.plan[i + 1 : i + 2] != (0,):
                x = F.relu_(x)
        x = x.flatten(1)
        *inner, last = layers
        for layer in inner:
            x = F.relu_(layer(x))
        return last(x)  # type: ignore[no-any-return]

    def gradient_function(self, out: list[Tensor]) -> ConvolutionalGradient:
        """Gradient of the mean cross entropy as a function that writes to `out` in every call."""
        layers = list(self.children())
        pooled = [after == 0 for before, after in zip(self.plan, (*self.plan[1:], None)) if before]
        stages = [Stage(layer, pool) for layer, pool in zip(layers, pooled)]  # type: ignore[arg-type]
        dense: list[nn.Linear] = layers[len(stages) :]  # type: ignore[assignment]
        return ConvolutionalGradient(
            stages, dense, out, border=self.border, channels_last=self.channels_last, paired=self.paired
        )


def cnn2(shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> nn.Module:
    plan = (16, 0, 32, 0)
    return Convolutional(shape, classes, convolutions=plan, kernel=5, padding=2, hidden=(128,), width=width)


def cnn3(shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> nn.Module:
    plan = (32, 0, 64, 0, 64, 0)
    return Convolutional(shape, classes, convolutions=plan, kernel=3, padding=1, hidden=(128,), width=width)


def cnn3fc3(shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> nn.Module:
    plan = (32, 0, 64, 0, 64, 0)
    return Convolutional(shape, classes, convolutions=plan, kernel=3, padding=1, hidden=(128, 64), width=width)


def cnn6(shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> nn.Module:
    plan = (32, 32, 0, 64, 64, 0, 128, 128, 0)
    return Convolutional(shape, classes, convolutions=plan, kernel=3, padding=1, hidden=(256,), width=width)


def lenet(shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> nn.Module:
    border = 2 if shape[-1] == 28 else 0
    plan = (6, 0, 16, 0)
    return Convolutional(
        shape, classes, convolutions=plan, kernel=5, padding=0, hidden=(120, 84), width=width, border=border
    )
