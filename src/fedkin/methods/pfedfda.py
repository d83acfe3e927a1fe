"""pFedFDA: Personalized Federated Learning via Feature Distribution Adaptation.
McLaughlin, Su. NeurIPS 2024.

| symbol | here |
|---|---|
| φ | the representation: state "body" |
| μ_g, Σ_g | state "means" [classes, D], "covariance" [D, D]: features of a class are N(μ_c, Σ) |
| π_i | class shares of the client, raised by EPSILON; `Gaussian` holds μ, Σ and makes (1) |
| (1) w_c = Σ⁻¹μ_c, b_c = −½ μ_cᵀΣ⁻¹μ_c + log π_c | the generative classifier: it takes the place of the head |
| (2) min over φ of the cross entropy under (1) with μ_g, Σ_g | local training, head held |
| (3) μ̂_i, Σ̂_i: class means, pooled covariance + ridge · I | local estimates on the features |
| (4) μ_i = β_μ μ̂_i + (1 − β_μ) μ_g, Σ_i = β_Σ Σ̂_i + (1 − β_Σ) Σ_g | interpolation |
| (5) β = arg min of the held-out cross entropy over FOLDS folds | by bounded L-BFGS from 0.5, within [0, 1] |
| (6) φ, μ_g, Σ_g = Σ_i n_i (·)_i / Σ_i n_i | server |

The numbers are ours. A client uses the received body with the classifier of its own (4) on that body. Deviations from
the authors' code: features are those of the trained body, not those seen while it was trained; the ridge is a field
(they add 1); β is bounded in the search (they clip it afterward); a class with fewer than FOLDS examples takes the
global mean. As theirs, the start is random: means uniform in [0, 1), Σ_g = I; and a client whose classes are all too
small for folds takes β = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import Positive
from fedkin.client.parts import check_head, features, linear_head, sgd_except
from fedkin.client.steps import joined
from fedkin.maths.gaussian import EPSILON, Gaussian, fitted, stratified
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

FOLDS = 2

CITATION = r"""@inproceedings{mclaughlin2024personalized,
  title = {Personalized Federated Learning via Feature Distribution Adaptation},
  author = {McLaughlin, Connor and Su, Lili},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2024}
}"""


@dataclass(frozen=True)
class PFedFDA(Method):
    paper = "McLaughlin and Su, NeurIPS 2024"
    citation = CITATION
    travels = "body, class means and a covariance both ways"
    stays = "nothing"
    needs_classes = True

    interpolation: Literal["two", "one", "local"] = "two"
    """two: β of its own for means and covariance. one: the same for both. local: β = 1, local estimates alone."""
    ridge: Positive = 1.0
    """Added to the diagonal of local covariances; 1 as in the authors' code."""

    averages = "size"

    # ---- server
    def init(self, fed: Server) -> State:
        check_head(fed.layout, fed.classes, "pFedFDA")
        weight, _ = linear_head(fed.layout, fed.initial(0)[fed.layout.head], "pFedFDA")
        return {
            "body": fed.initial(0)[fed.layout.body],
            "means": torch.from_numpy(fed.rng(0, 0xFDA).random(tuple(weight.shape))).float(),
            "covariance": torch.eye(weight.shape[1]),
            "share": fed.equal_shares(),
        }

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["body"], state["means"], state["covariance"]))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        parts = dict(zip(("body", "means", "covariance"), (part.flatten(1) for part in replies.body)))
        new = averaged(len(state["share"]), replies.ids, replies.weights, **parts)  # (6)
        return {**new, **{name: new[name].view_as(state[name]) for name in ("means", "covariance")}}

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start = self.received(client, message)
        model = sgd_except(client, start, client.net.layout.head)  # (2)
        own = self._adapted(client, model, message)
        return Reply({}, (model[client.net.layout.body], own.means.float(), own.covariance.float()))

    def received(self, client: Client, message: Message) -> Tensor:
        return self._model(client, message.shared[0], _global(message))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        start = self.received(client, message)
        return self._model(client, message.shared[0], self._adapted(client, start, message))

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])

    def _model(self, client: Client, body: Tensor, gaussian: Gaussian) -> Tensor:
        """The body under the classifier (1)."""
        layout = client.net.layout
        weight, bias = gaussian.classifier(prior(client))
        return joined(layout.size, (layout.body, body), (layout.head, torch.cat([weight.flatten(), bias]).float()))

    def _adapted(self, client: Client, model: Tensor, message: Message) -> Gaussian:
        """(3), (5) and (4) on the features under this model."""
        y, everyone = client.data.y, _global(message)
        z = features(client, model, client.data.x).double()
        local = fitted(z, y, everyone, FOLDS, self.ridge)  # (3)
        if self.interpolation == "local":
            return local
        fold = stratified(y, FOLDS, torch.Generator().manual_seed(client.seed))
        if not bool((fold >= 0).any()):
            return everyone
        parts = []
        for k in range(FOLDS):
            inside = (fold >= 0) & (fold != k)
            parts.append((fitted(z[inside], y[inside], everyone, FOLDS, self.ridge), fold == k))
        own_prior = prior(client)

        def held_out(at: np.ndarray) -> tuple[float, np.ndarray]:  # (5), and its gradient
            beta = torch.from_numpy(at).requires_grad_()
            value = torch.zeros((), dtype=torch.double)
            for estimate, out in parts:
                weight, bias = estimate.mixed(everyone, beta).classifier(own_prior)
                value = value + F.cross_entropy(z[out] @ weight.t() + bias, y[out])
            (slope,) = torch.autograd.grad(value, [beta])
            return float(value.detach()), slope.numpy()

        count = 2 if self.interpolation == "two" else 1
        search = {"method": "L-BFGS-B", "bounds": [(0, 1)] * count, "options": {"maxiter": 10}}
        with torch.enable_grad():
            best = minimize(held_out, np.full(count, 0.5), jac=True, **search).x
        return local.mixed(everyone, torch.from_numpy(best))


def _global(message: Message) -> Gaussian:
    return Gaussian(message.shared[1].double(), message.shared[2].double())


def prior(client: Client) -> Tensor:
    """π_i"""
    share = torch.bincount(client.data.y, minlength=client.data.classes).double() / len(client.data.y) + EPSILON
    return share / share.sum()
