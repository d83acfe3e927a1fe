"""FedPer: Federated Learning with Personalization Layers.
Arivazhagan, Aggarwal, Singh, Choudhary. arXiv 1912.00818, 2019.

| symbol | here |
|---|---|
| W_B | base layers: state "base" |
| W_{P_j} | personalization layers: client state "layers" |
| K_P | personal_layers |
| γ_j = n_j / n | replies.weights |

Base and personalization layers are trained together. Deviation: the personalization layers start from the common
initial model; in the paper each client draws its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkin.bounds import Whole
from fedkin.client.steps import joined, last_layers
from fedkin.client.training import sgd
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@misc{arivazhagan2019federated,
  title = {Federated Learning with Personalization Layers},
  author = {Arivazhagan, Manoj Ghuhan and Aggarwal, Vinay and Singh, Aaditya Kumar and Choudhary, Sunav},
  note = {arXiv:1912.00818},
  year = {2019}
}"""


@dataclass(frozen=True)
class FedPer(Method):
    paper = "Arivazhagan et al., arXiv 1912.00818, 2019"
    citation = CITATION
    travels = "base layers both ways"
    stays = "last layers"

    personal_layers: Whole = 1
    """K_P: number of layers, counted back from the head, that stay at the client; 0 is FedAvg, all of them is Local."""
    use: Literal["received", "trained"] = "received"
    """The base that a client uses with its own layers: as received, or after its training in the round."""

    averages = "size"

    def init(self, fed: Server) -> State:
        base, _ = last_layers(fed.layout, self.personal_layers)
        return {"base": fed.initial(0)[base], "share": fed.equal_shares()}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["base"],))

    def local(self, client: Client, message: Message) -> Reply:
        base, own = last_layers(client.net.layout, self.personal_layers)
        trained = sgd(client, self._vector(client, message.shared[0]))
        return Reply({"layers": trained[own]}, (trained[base],))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        return averaged(len(state["share"]), replies.ids, replies.weights, base=replies.body[0])

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        if self.use == "received":
            return self._vector(client, message.shared[0])
        done = trained()
        return self._vector(client._replace(state=done.state), done.body[0])

    def received(self, client: Client, message: Message) -> Model:
        return self._vector(client, message.shared[0])

    def mixing(self, state: State) -> dict[str, Tensor]:
        return {"base": same_for_all(state["share"]), "personal layers": torch.eye(len(state["share"]))}

    def _vector(self, client: Client, values: Tensor) -> Tensor:
        """These base layers with the client's own."""
        base, own = last_layers(client.net.layout, self.personal_layers)
        return joined(
            client.net.layout.size, (base, values), (own, client.state.get("layers", client.net.initial[own]))
        )
