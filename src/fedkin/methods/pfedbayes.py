"""pFedBayes: Personalized Federated Learning via Variational Bayesian Inference.
Zhang, Li, Li, Guo, Shao. ICML 2022.

| symbol | here |
|---|---|
| w(θ) | the global Gaussian: state "model" (means and buffers) and "rho" |
| q_i(θ) | the client's Gaussian: client state "model" and "rho" |
| F_i(w) = min_q E_q[−log p(D_i | θ)] + ζ KL(q ‖ w) | the client's objective |
| ζ | zeta |
| η₁, η₂ | adam_lr |
| R | the run's epochs, in batches |
| β | beta |

On each batch q_i takes `updates` Adam steps with the local copy of w held, then that copy takes one with q_i held. The
KL term is spread over the batches of one epoch. Clients keep Adam's moments between rounds.

ζ and ρ belong together: KL pulls the means with strength ζ/σ². The public code (not the authors') has ζ = 10 and
ρ = -2.5, that is σ = 0.08, but draws noise of standard deviation 0.001 instead of 1, so that its networks are nearly
deterministic. With the noise of the paper, σ = 0.08 is more than the weights of a convolutional network, and nothing
is learned. Here ρ = -5, σ = 0.007, and ζ = 0.1, which is about the same pull. Means start as the network usually does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import Count, NonNegative, Whole
from fedkin.client.optimizer import BETA1, BETA2, EPSILON
from fedkin.client.steps import slope
from fedkin.client.training import stream
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{zhang2022personalized,
  title = {Personalized Federated Learning via Variational {B}ayesian Inference},
  author = {Zhang, Xu and Li, Yinchuan and Li, Wenpeng and Guo, Kaiyang and Shao, Yunfeng},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2022}
}"""


@dataclass(frozen=True)
class PFedBayes(Method):
    paper = "Zhang et al., ICML 2022"
    citation = CITATION
    travels = "means and spreads both ways"
    stays = "own means and spreads"
    needs_sgd = "it takes steps of its own on means and variances, which optimizer and clip do not enter."
    needs_classes = True

    zeta: NonNegative = 0.1
    """ζ: weight of the divergence between a client's Gaussian and the global one; 0: no exchange at all."""
    rho: float = -5.0
    """ρ of every weight at the start; the standard deviation is softplus(ρ)."""
    adam_lr: NonNegative = 0.002
    """η₁ = η₂: Adam's rate for both Gaussians; 0.001 in the paper, for 800 rounds. The run's lr is not used."""
    updates: Count = 5
    """Adam steps of q_i on each batch, as in the public code."""
    keep_adam: bool = True
    """Clients keep Adam's moments between rounds. False: Adam starts afresh in each round."""
    noise: NonNegative = 1.0
    """Standard deviation of the noise that is multiplied by σ when weights are drawn; 0: the means alone."""
    beta: NonNegative = 1.0
    """β: step of the server toward the mean of the replies; 1: all the way."""
    samples: Whole = 0
    """Number of networks drawn from q_i for a prediction, whose probabilities are averaged; 0: the means alone."""
    weighting: Literal["equal", "size"] = "equal"
    """Weights in the mean. equal: all replies alike, as in the paper. size: by n_k."""

    @property
    def averages(self) -> str:
        return self.weighting

    # ---- server
    def init(self, fed: Server) -> State:
        return {
            "model": fed.initial(0),
            "rho": torch.full((fed.layout.parameters,), float(self.rho)),
            "share": fed.equal_shares(),
        }

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"], state["rho"]))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        weights = replies.weights_by(self.weighting)
        mean, rho = replies.body  # the mean of ρ is not the ρ of the mean σ
        new = averaged(len(state["share"]), replies.ids, weights, model=mean, rho=rho)
        return {name: (1 - self.beta) * state[name] + self.beta * value for name, value in new.items()}

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        net, count = client.net, client.net.layout.parameters
        net.load(message.shared[0])
        net.train()
        mine = self._own(client, message)
        mean, rho = mine[0][:count].clone(), mine[1].clone()
        their_mean, their_rho = message.shared[0][:count].clone(), message.shared[1].clone()
        own = _moments([mean, rho], client.state.get("own_adam"))
        theirs = _moments([their_mean, their_rho], client.state.get("their_adam"))
        zeta = self.zeta / ceil(len(client.data.y) / client.training.batch_size)
        generator = torch.Generator().manual_seed(client.seed)
        for batch in stream(client):
            t = F.softplus(their_rho)  # σ of w, which is held during the updates of q_i
            for _ in range(self.updates):
                noise = torch.randn(count, generator=generator).mul_(self.noise)
                s, through = F.softplus(rho), torch.sigmoid(rho)  # σ and dσ/dρ
                likelihood = slope(net, torch.addcmul(mean, s, noise), batch).mul_(len(batch.y))  # a sum over the batch
                pull = kl_gradient(mean, s, their_mean, t)
                # in place, because new arrays cost more than the arithmetic
                by_rho = noise.mul_(likelihood).add_(pull[1], alpha=zeta).mul_(through)
                by_mean = likelihood.add_(pull[0], alpha=zeta)
                self._adam_step([mean, rho], [by_mean, by_rho], own)
            push = kl_gradient_other(mean, F.softplus(rho), their_mean, t)
            gradient = [zeta * push[0], zeta * push[1] * torch.sigmoid(their_rho)]
            self._adam_step([their_mean, their_rho], gradient, theirs)
        buffers = net.flat[count:]
        state: State = {"model": torch.cat([mean, buffers]), "rho": rho}
        if self.keep_adam:
            state |= {"own_adam": own, "their_adam": theirs}
        return Reply(state, (torch.cat([their_mean, buffers]), their_rho))

    def _adam_step(self, values: list[Tensor], gradient: list[Tensor], moments: dict[str, list[Tensor]]) -> None:
        """Adam in one pass over the arrays, in place: what `torch.optim.Adam(fused=True)` calls."""
        mean, square, count = moments["exp_avg"], moments["exp_avg_sq"], moments["step"]
        torch._foreach_add_(count, 1.0)
        torch._fused_adam_(
            values, gradient, mean, square, [], count, lr=self.adam_lr, beta1=BETA1, beta2=BETA2, eps=EPSILON,
            weight_decay=0.0, amsgrad=False, maximize=False,
        )  # fmt: skip

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        mean, rho = self._own(client, message)
        if not self.samples:
            return mean
        generator = torch.Generator().manual_seed(client.seed)
        drawn = mean.repeat(self.samples, 1)
        drawn[:, : len(rho)] += self.noise * F.softplus(rho) * torch.randn(self.samples, len(rho), generator=generator)
        return {"models": drawn}

    def predict(self, client: Client, personal: Model, x: Tensor) -> Tensor:
        total: Tensor | None = None
        for vector in [personal] if isinstance(personal, Tensor) else personal["models"]:
            client.net.load(vector)
            scores = F.log_softmax(client.net(x), 1)
            total = scores if total is None else torch.logaddexp(total, scores)
        assert total is not None
        return total  # the mean of the probabilities up to a constant

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])

    def _own(self, client: Client, message: Message) -> tuple[Tensor, Tensor]:
        """q_i; a newcomer's is the received w."""
        return client.state.get("model", message.shared[0]), client.state.get("rho", message.shared[1])


def _moments(values: list[Tensor], kept: dict[str, list[Tensor]] | None) -> dict[str, list[Tensor]]:
    """Adam's moments and step counts: those of earlier rounds, or zeros."""
    if kept is not None:
        return {name: [part.clone() for part in parts] for name, parts in kept.items()}
    zeros = {name: [torch.zeros_like(value) for value in values] for name in ("exp_avg", "exp_avg_sq")}
    return {"step": [value.new_zeros(()) for value in values], **zeros}


def kl_gradient(mean: Tensor, s: Tensor, other_mean: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of KL(N(mean, s²) ‖ N(other_mean, t²)) with respect to mean and s; exactly zero where both are the
    same."""
    square = t**2
    return (mean - other_mean) / square, (s**2 - square) / (s * square)


def kl_gradient_other(mean: Tensor, s: Tensor, other_mean: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the same with respect to other_mean and t; exactly zero where the two are the same."""
    spread = (t**2 - s**2) - (mean - other_mean) ** 2
    return (other_mean - mean) / t**2, spread / t**3
