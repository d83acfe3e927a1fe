"""The experts with which a client of kin predicts, and EM for their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fedkin.maths.neighbors import neighbor_probabilities
from fedkin.protocol import Client

Expert = Literal["own", "received", "adjusted", "tuned", "neighbors"]
EXPERTS: tuple[Expert, ...] = ("own", "received", "adjusted", "tuned", "neighbors")
"""own: the private model. received: the model that came from the server. adjusted: the same, with its probabilities
multiplied by the client's class shares. tuned: the received model after training here. neighbors: the nearest training
examples in the tuned model's features."""
STEPS = 100  # of EM


def expert_probabilities(
    client: Client, model: dict[str, Tensor], x: Tensor, experts: Sequence[Expert], *, k: int, scale: float
) -> Tensor:
    """p_e(y given x) [experts, examples, classes]. `model` is a client's personal model (`Kin.personal`)."""
    out: dict[str, Tensor] = {}
    for name in ("own", "received", "tuned"):
        if name in model:
            features, logits = outputs(client, model[name], x)
            out[name] = logits.softmax(1)
    if "adjusted" in experts:
        weighted = out["received"] * model["shares"]
        out["adjusted"] = weighted / weighted.sum(1, keepdim=True)
    if "neighbors" in experts:  # features are the tuned model's, which came last
        out["neighbors"] = neighbor_probabilities(
            features, model["features"], model["labels"],
            k=k, classes=client.data.classes, scale=scale, squared=False,
        )  # fmt: skip
    return torch.stack([out[name] for name in experts])


@torch.no_grad()
def outputs(client: Client, model: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Features and logits of a model."""
    client.net.load(model)
    client.net.eval()
    parts = [client.net.split(part) for part in x.split(256)]
    return torch.cat([part[0].flatten(1) for part in parts]), torch.cat([part[1] for part in parts])


def mixture_weights(right: Tensor, prior: float) -> Tensor:
    """π [experts] from what each expert gives to the true class [experts, examples].

    EM divides each example among the experts and adds a Dirichlet prior of `prior` counts in all.
    """
    count, examples = right.shape
    right = right.clamp(min=1e-6)
    weights = torch.full((count,), 1 / count)
    for _ in range(STEPS):
        parts = weights[:, None] * right
        weights = ((parts / parts.sum(0)).sum(1) + prior / count) / (examples + prior)
    return weights
