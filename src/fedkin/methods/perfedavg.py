"""Per-FedAvg: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach.
Fallah, Mokhtari, Ozdaglar. NeurIPS 2020.

| symbol | here |
|---|---|
| F(w) = 1/N Σ f_i(w − α∇f_i(w)) | the objective: one gradient step from w must do well |
| w_k | state "model" |
| α | alpha |
| β | the run's lr |
| τ | steps |
| D, D', D'' | `inner`, `outer`, `curve`: independent batches |
| δ | delta |

Deviations: clients adapt on training examples (the paper is reported to adapt on test examples); δ is measured along
the unit vector, because float32 loses a small δ·v. D' is the run's own sequence of batches, so α = 0 is FedAvg bit
for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedkin.bounds import NonNegative, Positive, Whole
from fedkin.client.steps import OTHER_EPOCHS, descent, slope, without_extras
from fedkin.client.training import sgd, stream
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.protocol import Client, Examples, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{fallah2020personalized,
  title = {Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach},
  author = {Fallah, Alireza and Mokhtari, Aryan and Ozdaglar, Asuman},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2020}
}"""


@dataclass(frozen=True)
class PerFedAvg(Method):
    paper = "Fallah et al., NeurIPS 2020"
    citation = CITATION
    travels = "model both ways"
    stays = "nothing"
    needs_sgd = "the meta-gradient is that of one plain gradient step of length alpha."

    variant: Literal["fo", "hf"] = "fo"
    """fo: the Hessian is left out. hf: it is approximated by a difference of two gradients."""
    alpha: NonNegative = 0.01
    """α: rate of the step by which a client adapts the model; 0 is FedAvg."""
    steps: Whole = 0
    """τ: local steps in a round; 0: as many batches as the run's epochs have. The paper uses 10."""
    adapt_steps: Whole = 1
    """Steps of rate α, on one batch each, before a client uses the model."""
    delta: Positive = 0.001
    """δ: half the distance between the two gradients of hf."""
    relative: bool = True
    """δ along the unit vector v / ‖v‖. False: along v itself, as printed."""
    weighting: Literal["equal", "size"] = "equal"
    """Weights in the mean. equal: all replies alike, as in the paper. size: by n_k."""

    matters = {"delta": {"variant": "hf", "alpha": 0.1}, "relative": {"variant": "hf", "alpha": 0.1}}

    def init(self, fed: Server) -> State:
        return {"model": fed.initial(0), "share": fed.equal_shares()}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def local(self, client: Client, message: Message) -> Reply:
        net = client.net
        net.load(message.shared[0])
        net.train()
        step = descent(client)
        for inner, outer, curve in zip(*(self._batches(client, number) for number in (1, 0, 2))):
            w = net.trainable.clone()
            u = w - self.alpha * slope(net, w, inner)  # the adapted model
            direction = slope(net, u, outer)  # v = ∇f_i(u; D')
            if self.variant == "hf":
                direction = direction - self.alpha * self._curvature(client, w, direction, curve)
            net.trainable.copy_(w)  # the step is taken from w, not from u
            step(net.views, net.pieces(direction))
        return Reply({}, (net.vector(),))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        weights = replies.weights_by(self.weighting)
        return averaged(len(state["share"]), replies.ids, weights, model=replies.body[0])

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        if not self.adapt_steps:
            return message.shared[0]
        plain = without_extras(client)
        return sgd(plain, message.shared[0], steps=self.adapt_steps, lr=self.alpha, first_epoch=OTHER_EPOCHS)

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])

    def _batches(self, client: Client, number: int) -> Iterator[Examples]:
        return stream(client, steps=self.steps or None, first_epoch=number * OTHER_EPOCHS)

    def _curvature(self, client: Client, w: Tensor, v: Tensor, batch: Examples) -> Tensor:
        """∇²f_i(w; D'') v, as a difference of gradients at w ± δv."""
        delta = self.delta / max(float(v.norm()), 1e-12) if self.relative else self.delta
        return (slope(client.net, w + delta * v, batch) - slope(client.net, w - delta * v, batch)) / (2 * delta)
