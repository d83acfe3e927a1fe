"""`har`: a small convolutional network for windows of sensor data [channels, time]."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.models.mlp import scaled


class Har(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, width: float) -> None:
        super().__init__()
        if len(shape) != 2 or shape[1] < 16:
            raise ValueError(f"har needs windows [channels, time of at least 16]; this data has shape {list(shape)}.")
        first, second, hidden = scaled(32, width), scaled(64, width), scaled(128, width)
        self.conv1 = nn.Conv1d(shape[0], first, 5)
        self.conv2 = nn.Conv1d(first, second, 5)
        self.fc1 = nn.Linear(second * (((shape[1] - 4) // 2 - 4) // 2), hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(F.max_pool1d(self.conv1(x), 2))
        x = F.relu_(F.max_pool1d(self.conv2(x), 2))
        return self.fc2(F.relu_(self.fc1(x.flatten(1))))  # type: ignore[no-any-return]


def har(shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> nn.Module:
    return Har(shape, classes, width)
