"""LG-FedAvg: Think Locally, Act Globally: Federated Learning with Local and Global Representations.
Liang, Liu, Liu, Allen, Auerbach, Brent, Salakhutdinov, Morency. arXiv 2001.01523, 2020.

| here | meaning |
|---|---|
| state "model" | its last layers are the global ones; its lower layers are those of the warm start |
| client state "layers" | the client's own lower layers (the local representation) |
| global_layers | number of global layers |
| warm_rounds | initial rounds of FedAvg on all layers |

The mirror image of FedPer: lower layers stay at the client, the last ones travel. Deviations: the authors start from a
model that FedAvg has trained, here `warm_rounds` does that; they report each client's best model by test accuracy, here
it is the model of the last round.
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
from fedkin.maths.mixing import average, shares
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@misc{liang2020think,
  title = {Think Locally, Act Globally: Federated Learning with Local and Global Representations},
  author = {Liang, Paul Pu and Liu, Terrance and Liu, Ziyin and Allen, Nicholas B. and
            Auerbach, Randy P. and Brent, David and Salakhutdinov, Ruslan and Morency, Louis-Philippe},
  note = {arXiv:2001.01523},
  year = {2020}
}"""


@dataclass(frozen=True)
class LGFedAvg(Method):
    paper = "Liang et al., arXiv 2001.01523, 2020"
    citation = CITATION
    travels = "last layers both ways; all layers in warm rounds"
    stays = "lower layers"

    global_layers: Whole = 1
    """Number of layers, counted back from the head, that are averaged; 0 is Local."""
    warm_rounds: Whole = 0
    """Rounds of FedAvg on all layers at the start. The authors start from a model that FedAvg has trained."""
    weighting: Literal["equal", "size"] = "equal"
    """Weights in the mean. equal: all replies alike, as in the authors' code. size: by n_k."""

    @property
    def averages(self) -> str:
        return self.weighting

    # ---- server
    def init(self, fed: Server) -> State:
        _, top = last_layers(fed.layout, self.global_layers)
        return {
            "model": fed.initial(0),
            "global": top,
            "round": 0,
            # who has lower layers to continue from; every client has the common initial model
            "has": torch.full((fed.size,), self.warm_rounds == 0),
            "share": fed.equal_shares(),
        }

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        if rounds > self.warm_rounds:
            return []
        return [f"All {rounds} rounds are LG-FedAvg's warm rounds of FedAvg. Use more than {self.warm_rounds} rounds."]

    def send(self, state: State, ids: Tensor) -> Message:
        warm = torch.tensor(state["round"] < self.warm_rounds)
        model, top = state["model"], state["model"][state["global"]]
        return Message(shared=(warm,), own=([top if state["has"][i] else model for i in ids.tolist()],))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        weights = replies.weights_by(self.weighting)
        mean, has = average(replies.body[0], weights), state["has"].clone()
        if state["round"] < self.warm_rounds:
            model = mean
        else:
            model = state["model"].clone()
            model[state["global"]] = mean
            has[replies.ids] = True
        share = shares(len(state["share"]), replies.ids, weights)
        return {**state, "model": model, "round": state["round"] + 1, "has": has, "share": share}

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        below, top = last_layers(client.net.layout, self.global_layers)
        trained = sgd(client, self._vector(client, message))
        if message.shared[0]:  # warm: FedAvg, nothing stays
            return Reply({}, (trained,))
        return Reply({"layers": trained[below]}, (trained[top],))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return self._vector(client, message)

    def received(self, client: Client, message: Message) -> Model:
        return self._vector(client, message)

    def mixing(self, state: State) -> dict[str, Tensor]:
        share: Tensor = state["share"]
        everyone = share.expand(len(share), -1)
        warm = state["round"] <= self.warm_rounds and self.warm_rounds > 0
        return {"local layers": everyone if warm else torch.eye(len(share)), "global layers": everyone}

    def _vector(self, client: Client, message: Message) -> Tensor:
        """The received global layers on the client's own lower layers, or on the received ones if it has none yet."""
        below, top = last_layers(client.net.layout, self.global_layers)
        values = message.own[0]
        assert isinstance(values, Tensor)
        whole = len(values) == client.net.layout.size
        own = client.state.get("layers", values[below] if whole else client.net.initial[below])
        return joined(client.net.layout.size, (below, own), (top, values[top] if whole else values))
