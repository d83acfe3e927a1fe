"""What clients do with their own data: building blocks that methods share as functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, count, islice

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.models.network import Loss, Network
from fedkin.protocol import Me, Rows

EVALUATION_BATCH = 128  # about the fastest on a CPU: larger batches leave the cache


def batches(me: Me, *, epoch: int, rows: Rows | None = None) -> Iterator[Rows]:
    """One epoch of shuffled batches, a pure function of (run seed, round, client, epoch)."""
    x, y = rows if rows is not None else Rows(me.data.x, me.data.y)
    generator = torch.Generator().manual_seed((me.seed + 0x9E3779B97F4A7C15 * (epoch + 1)) % (1 << 63))
    order = torch.randperm(len(y), generator=generator)
    size = me.training.batch_size
    # one gather for the epoch: cheaper than one for each batch, and views after that keep channels_last
    for xs, ys in zip(x[order].split(size), y[order].split(size)):
        if len(ys) == 1 and me.net.needs_pairs:
            # batch norm has no variance of one row; seen twice, its mean loss and gradient are the same
            xs, ys = xs.repeat(2, *[1] * (xs.dim() - 1)), ys.repeat(2)
        yield Rows(xs, ys)


def stream(me: Me, *, epochs: int | None = None, steps: int | None = None, first_epoch: int = 0) -> Iterator[Rows]:
    """Batches of so many epochs (where None: the run's), or so many batches out of as many epochs as that takes."""
    if steps is not None:
        endless = chain.from_iterable(batches(me, epoch=epoch) for epoch in count(first_epoch))
        yield from islice(endless, steps)
        return
    for epoch in range(first_epoch, first_epoch + (me.training.epochs if epochs is None else epochs)):
        yield from batches(me, epoch=epoch)


def sgd(
    me: Me,
    start: Tensor,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    lr: float | None = None,
    pull: Callable[[Tensor], Tensor] | None = None,
    loss: Loss | None = None,
    first_epoch: int = 0,
) -> Tensor:
    """Local SGD from the row `start`; returns the trained row. So many epochs, or so many steps (batches).

    `pull(w)` is the gradient of a regulariser at the flat parameters w, added to the loss gradient (a proximal term is
    `lambda w: mu * (w - centre)`). `loss(net, x, y)` stands in for cross entropy. Parameters that a surrounding
    `net.frozen(...)` holds do not move, neither by momentum nor by decay.
    """
    net, training = me.net, me.training
    net.load(start)
    net.train()
    step = training.lr if lr is None else lr
    moving = [i for i, p in enumerate(net.parameters) if p.requires_grad]
    if not moving:
        raise ValueError("Every parameter is frozen: there is nothing to train.")
    parameters, views = [net.parameters[i] for i in moving], [net.views[i] for i in moving]
    velocity = [torch.zeros_like(v) for v in views] if training.momentum else []
    for x, y in stream(me, epochs=epochs, steps=steps, first_epoch=first_epoch):
        gradient = net.gradients(x, y, loss, parameters)
        # Not in place: where a network adds two parameters, autograd gives both the same gradient tensor.
        if pull is not None:  # into the gradient before momentum, or the minimum would be another one
            extra = net.pieces(pull(net.trainable))
            gradient = list(torch._foreach_add(gradient, [extra[i] for i in moving]))
        if training.weight_decay:
            gradient = list(torch._foreach_add(gradient, views, alpha=training.weight_decay))
        if training.momentum:
            torch._foreach_mul_(velocity, training.momentum)
            torch._foreach_add_(velocity, gradient)
            gradient = velocity
        torch._foreach_add_(views, gradient, alpha=-step)
    return net.row()


@torch.no_grad()
def evaluate(net: Network, row: Tensor, rows: Rows) -> tuple[float, float]:
    """Accuracy and mean cross entropy of a flat row on these rows."""
    net.load(row)
    return score(lambda x: net(x), net, rows)


@torch.no_grad()
def score(predict: Callable[[Tensor], Tensor], net: Network, rows: Rows) -> tuple[float, float]:
    """Accuracy and mean cross entropy of any predictor."""
    net.eval()
    right, total = 0, 0.0
    for x, y in zip(rows.x.split(EVALUATION_BATCH), rows.y.split(EVALUATION_BATCH)):
        scores = predict(x)
        right += int((scores.argmax(1) == y).sum())
        total += float(F.cross_entropy(scores, y, reduction="sum"))
    return right / len(rows.y), total / len(rows.y)


def gradient(net: Network, row: Tensor, rows: Rows) -> tuple[Tensor, float]:
    """Gradient of the mean cross entropy over all these rows with respect to the flat parameters, and the loss."""
    net.load(row)
    net.eval()
    total = torch.zeros_like(net.trainable)
    parameters = [p for p in net.parameters if p.requires_grad]
    parts = [part for part, p in zip(net.pieces(total), net.parameters) if p.requires_grad]
    loss = 0.0
    for x, y in zip(rows.x.split(EVALUATION_BATCH), rows.y.split(EVALUATION_BATCH)):
        value = F.cross_entropy(net(x), y, reduction="sum")
        for part, slope in zip(parts, torch.autograd.grad(value, parameters, allow_unused=True)):
            if slope is not None:
                part += slope
        loss += float(value.detach())
    return total / len(rows.y), loss / len(rows.y)
