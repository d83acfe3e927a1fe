"""APFL: Adaptive Personalized Federated Learning.
Deng, Kamani, Mahdavi. arXiv 2003.13461, 2020.

| symbol | here |
|---|---|
| w | state "model", trained by FedAvg |
| v_i | client state "model" |
| v̄_i = α_i v_i + (1 − α_i) w_i | the personal model, `mixed` |
| α_i | client state "alpha", starts at `alpha` |

On each batch w_i and v_i take a step from their current values: w_i by ∇f(w_i), v_i by ∇_v f(v̄_i) = α_i ∇f(v̄_i).
α_i takes one step per round, on the first batch: α_i ← α_i − η⟨v_i − w_i, ∇f(v̄_i)⟩, clipped to [0, 1]. Deviation: the
personal model mixes v_i with the received w, which a client always has, instead of with its own trained w_i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.bounds import Fraction
from fedkin.client.steps import descent, slope
from fedkin.client.training import stream
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@misc{deng2020adaptive,
  title = {Adaptive Personalized Federated Learning},
  author = {Deng, Yuyang and Kamani, Mohammad Mahdi and Mahdavi, Mehrdad},
  note = {arXiv:2003.13461},
  year = {2020}
}"""


@dataclass(frozen=True)
class APFL(Method):
    paper = "Deng et al., arXiv 2003.13461, 2020"
    citation = CITATION
    travels = "model both ways"
    stays = "own model and its weight"
    needs_sgd = "alpha moves by the gradient step that the two models take."

    alpha: Fraction = 0.5
    """α: weight of the client's own model in the mixture (its initial value if adaptive); 0 is FedAvg, 1 is Local."""
    adaptive: bool = True
    """Each client learns its α, one step per round. False: α is fixed."""

    averages = "size"

    def init(self, fed: Server) -> State:
        return {"model": fed.initial(0), "share": fed.equal_shares()}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def local(self, client: Client, message: Message) -> Reply:
        net, count = client.net, client.net.layout.parameters
        net.load(message.shared[0])
        net.train()
        own, alpha = self._own(client)
        w, v = message.shared[0][:count].clone(), own[:count].clone()
        shared_step, own_step = descent(client), descent(client)
        for number, batch in enumerate(stream(client)):
            through = slope(net, mixed(alpha, v, w), batch)  # ∇f(v̄)
            down = slope(net, w, batch)
            if number == 0 and self.adaptive:
                step = client.training.lr * float((v - w).double() @ through.double())
                after = min(max(alpha - step, 0.0), 1.0)
            elif number == 0:
                after = alpha
            own_step(net.pieces(v), net.pieces(alpha * through))
            shared_step(net.pieces(w), net.pieces(down))
            alpha = after
        buffers = net.flat[count:]
        return Reply({"model": torch.cat([v, buffers]), "alpha": alpha}, (torch.cat([w, buffers]),))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        return averaged(len(state["share"]), replies.ids, replies.weights, model=replies.body[0])

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        own, alpha = self._own(client)
        return mixed(alpha, own, message.shared[0])

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])  # of what is sent; a client then mixes it with its own

    def _own(self, client: Client) -> tuple[Tensor, float]:
        return client.state.get("model", client.net.initial), client.state.get("alpha", self.alpha)


def mixed(alpha: float, own: Tensor, shared: Tensor) -> Tensor:
    return alpha * own + (1 - alpha) * shared
