"""Random crops and flips of training images."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

PADDING = 4  # pixels on each side before a crop


def augmented(images: Tensor, kind: str, generator: Generator) -> Tensor:
    """Images [examples, channels, height, width], each cropped and flipped at random as `kind` says ("crop", "flip" or
    "crop+flip"). A crop keeps the size: it is cut from the image with zeros around it, which are the mean color of
    images that fedkin has normalized."""
    if images.dim() != 4:
        raise ValueError(
            f"augment={kind} is for images [channels, height, width]; examples here have shape "
            f"{list(images.shape[1:])}. Leave augment out."
        )
    count, height, width = len(images), images.shape[2], images.shape[3]
    rows = torch.arange(height, device="cpu").expand(count, height)
    columns = torch.arange(width, device="cpu").expand(count, width)
    padding = 0
    if "crop" in kind:
        padding = PADDING
        shift = torch.randint(0, 2 * padding + 1, (2, count, 1), generator=generator, device="cpu")
        rows, columns = rows + shift[0], columns + shift[1]
        images = F.pad(images, (padding,) * 4)
    if "flip" in kind:
        turned = torch.rand(count, 1, generator=generator, device="cpu") < 0.5
        columns = torch.where(turned, columns.flip(1), columns)
    first = torch.arange(count, device="cpu")
    # channels last, then back: indices beside the slice would put the channels there anyway
    picked = images.permute(0, 2, 3, 1)[
        first[:, None, None].to(images.device),
        rows[:, :, None].to(images.device),
        columns[:, None, :].to(images.device),
    ]
    return picked.permute(0, 3, 1, 2)
