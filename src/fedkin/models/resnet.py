"""`resnet`: residual networks with batch norm, for small images.

Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun: Deep Residual Learning for Image Recognition. CVPR 2016. Depths 8, 14
and 20 have the three stages of its CIFAR networks (sec. 4.2); depth 18 has the four stages of ResNet-18, with a 3x3
first convolution and no max-pool, as is usual for 32x32 images. Shortcuts that change the shape are 1x1 convolutions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.models.mlp import scaled

STAGES: dict[int, tuple[tuple[int, int], ...]] = {  # (blocks, channels) of each stage
    8: ((1, 16), (1, 32), (1, 64)),
    14: ((2, 16), (2, 32), (2, 64)),
    20: ((3, 16), (3, 32), (3, 64)),
    18: ((2, 64), (2, 128), (2, 256), (2, 512)),
}


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.stride = stride
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inner != outer:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu_(self.norm1(self.conv1(x)))
        # The same as a 1x1 convolution with this stride, whose gradient crashes PyTorch 2.13 on processors
        # without AVX-512 if there are 4 input channels.
        seen = x[:, :, :: self.stride, :: self.stride]
        return F.relu_(self.norm2(self.conv2(out)) + self.shortcut(seen))


class ResNet(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, stages: tuple[tuple[int, int], ...], width: float) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ValueError(
                f"resnet needs images [channels, height, width]; this data has shape {list(shape)}. Use --model mlp."
            )
        channels = scaled(stages[0][1], width)
        self.conv = nn.Conv2d(shape[0], channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        blocks = []
        for stage, (count, units) in enumerate(stages):
            for k in range(count):
                outer = scaled(units, width)
                blocks.append(Block(channels, outer, 2 if stage and k == 0 else 1))
                channels = outer
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.blocks(F.relu_(self.norm(self.conv(x))))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


def resnet(shape: tuple[int, ...], classes: int, *, depth: int = 8, width: float = 1.0) -> nn.Module:
    if depth not in STAGES:
        raise ValueError(f"depth={depth} must be one of {', '.join(map(str, STAGES))}.")
    return ResNet(shape, classes, STAGES[depth], width)
