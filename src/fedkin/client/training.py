"""Local training at a client: batches, and training by the run's optimizer, as functions that methods share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, count, islice
from math import inf

import torch
from torch import Tensor
from torch.nn import Parameter

from fedkin.client.augment import augmented
from fedkin.client.evaluate import scores
from fedkin.client.optimizer import optimizer
from fedkin.models.network import Loss
from fedkin.protocol import Client, Examples
from fedkin.robust.privacy import PrivateData


def batches(client: Client, *, epoch: int, examples: Examples | None = None) -> Iterator[Examples]:
    """One epoch of shuffled batches, a pure function of (run seed, round, client, epoch)."""
    x, y = examples if examples is not None else Examples(client.data.x, client.data.y)
    generator = torch.Generator().manual_seed((client.seed + 0x9E3779B97F4A7C15 * (epoch + 1)) % (1 << 63))
    order = torch.randperm(len(y), generator=generator, device="cpu").to(y.device)
    size = client.training.batch_size
    # one gather for the epoch is cheaper than one for each batch
    x, y = _gathered(x, order), y.index_select(0, order)
    if client.training.augment != "none":
        x = augmented(x, client.training.augment, generator)
    for xs, ys in zip(x.split(size), y.split(size)):
        if ys.shape[0] == 1 and client.net.needs_pairs:
            # batch norm needs two examples; taken twice, the mean loss and the gradient stay the same
            xs, ys = xs.repeat(2, *[1] * (xs.dim() - 1)), ys.repeat(2)
        yield Examples(xs, ys)


def _gathered(x: Tensor, order: Tensor) -> Tensor:
    """`x[order]` in a fraction of the time. The layout in memory stays, by which convolutions choose their kernel."""
    if x.dim() == 4 and x.stride(1) == 1:  # the channels are innermost
        return x.permute(0, 2, 3, 1).index_select(0, order).permute(0, 3, 1, 2)
    return x.index_select(0, order)


def stream(
    client: Client,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    first_epoch: int = 0,
    examples: Examples | None = None,
) -> Iterator[Examples]:
    """The batches of `epochs` epochs (None: the run's), or `steps` batches, out of as many epochs as that takes."""
    if steps is not None:
        endless = chain.from_iterable(batches(client, epoch=epoch, examples=examples) for epoch in count(first_epoch))
        yield from islice(endless, steps)
        return
    for epoch in range(first_epoch, first_epoch + (client.training.epochs if epochs is None else epochs)):
        yield from batches(client, epoch=epoch, examples=examples)


def sgd(
    client: Client,
    start: Tensor,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    lr: float | None = None,
    regularizer_gradient: Callable[[Tensor], Tensor] | None = None,
    loss: Loss | None = None,
    first_epoch: int = 0,
) -> Tensor:
    """Train from the vector `start` by the run's optimizer, for `epochs` epochs or `steps` batches; return the trained
    vector.

    `regularizer_gradient(w)` is the gradient of a regularizer at the flat parameters w and is added to the gradient of
    the loss (a proximal term is `lambda w: mu * (w - center)`). `loss(net, x, y)` replaces cross entropy. Parameters
    frozen by a surrounding `net.frozen(...)` do not move, neither by momentum nor by weight decay.
    """
    net, training = client.net, client.training
    net.load(start)
    net.train()
    moving = [i for i, p in enumerate(net.parameters) if p.requires_grad]
    if not moving:
        raise ValueError("Every parameter is frozen: there is nothing to train.")
    parameters = [net.parameters[i] for i in moving]
    # one vector instead of a tensor for each parameter takes fewer calls; clipping adds up norms parameter by parameter
    whole = net.is_closed(loss, parameters) and not training.clip and not isinstance(client.data, PrivateData)
    values = [net.trainable] if whole else [net.views[i] for i in moving]
    step = optimizer(training, lr)

    def follow(gradients: Iterator[list[Tensor]]) -> None:
        for gradient in gradients:
            if regularizer_gradient is not None:  # before momentum, or the minimum would be another one
                extra = regularizer_gradient(net.trainable)
                parts = [extra] if whole else net.pieces(extra)
                gradient = list(torch._foreach_add(gradient, parts if whole else [parts[i] for i in moving]))
            step(values, gradient)

    if steps is None and training.stop_after and len(client.data.validation.y):
        last = first_epoch + (training.epochs if epochs is None else epochs)
        one_by_one = (_gradients(client, parameters, whole, loss, 1, None, epoch) for epoch in range(first_epoch, last))
        return _best_epoch(client, one_by_one, follow)
    follow(_gradients(client, parameters, whole, loss, epochs, steps, first_epoch))
    return net.vector()


def _best_epoch(
    client: Client, epochs: Iterator[Iterator[list[Tensor]]], follow: Callable[[Iterator[list[Tensor]]], None]
) -> Tensor:
    """Train epoch by epoch until the loss on validation examples has not fallen for `stop_after` epochs; return the
    model with the lowest. The model before training does not count: a client always trains."""
    net = client.net
    best, lowest, waited = net.vector(), inf, 0
    for epoch in epochs:
        follow(epoch)
        found = scores(lambda x: net(x), net, client.data.validation)["loss"]
        net.train()
        if found < lowest:
            best, lowest, waited = net.vector(), found, 0
        else:
            waited += 1
            if waited == client.training.stop_after:
                break
    net.load(best)
    return best


def _gradients(
    client: Client,
    parameters: list[Parameter],
    whole: bool,
    loss: Loss | None,
    epochs: int | None,
    steps: int | None,
    first_epoch: int,
) -> Iterator[list[Tensor]]:
    """Yield the gradient of each step at the current parameters: of a batch, or a noisy one if the run is private.
    `whole`: as one flat vector, if the network has a closed form for it."""
    net, data = client.net, client.data
    if whole:
        # to flatten images with the channels innermost is to copy them: once for all epochs
        early = net.flattens_inputs and client.training.augment == "none"
        flat = Examples(data.x.flatten(1), data.y) if early else None
        for x, y in stream(client, epochs=epochs, steps=steps, first_epoch=first_epoch, examples=flat):
            yield [net.closed_gradient(x, y)]
        return
    if not isinstance(data, PrivateData):
        for x, y in stream(client, epochs=epochs, steps=steps, first_epoch=first_epoch):
            yield net.gradients(x, y, loss, parameters)
        return
    if loss is not None:
        raise PermissionError(
            "--privacy example:… clips the gradient of the task's loss, and this method has its own loss: use "
            "fedavg, fedprox or fedcedar, or --privacy client:…"
        )
    if client.training.stop_after or client.training.augment != "none":
        raise PermissionError(
            "--privacy example:… accounts for one look at each training example: do not combine it with --stop-after, "
            "which looks at validation examples without noise, or with --augment."
        )
    epochs = client.training.epochs if epochs is None else epochs
    yield from data.gradients(lambda x, y: net.example_gradients(x, y, parameters), parameters, epochs, steps)
