"""FedAH: Aggregated Head for Personalized Federated Learning.
Zhou, He, Zhai, Gao, Chen, Qin, Zhang, Guo. arXiv 2412.01295, 2024.

| here | meaning |
|---|---|
| state "model" | the global body and head, both averaged by n_i |
| client state "head" | h_loc, the head as the client last trained it |
| client state "weights" | W in [0, 1], one for each number of the head, initially 1 |
| client state "mixed" | h = h_loc + (h_glob − h_loc) · W of the client's last round |
| weight_lr, head_epochs | η_w; epochs of learning W, and again of training the head |

A client takes the body from the server, learns W (and so h) with the body fixed, trains the head from h, then trains
the body with the head fixed. Deviation: in the authors' code every client mixes in every round; here participants do,
and the others when they are evaluated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkin.bounds import Count, NonNegative
from fedkin.client.steps import OTHER_EPOCHS, joined, slope
from fedkin.client.training import sgd, stream
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@misc{zhou2024fedah,
  title = {{FedAH}: Aggregated Head for Personalized Federated Learning},
  author = {Zhou, Pengzhan and He, Yuepeng and Zhai, Yijun and Gao, Kaixin and Chen, Chao and
            Qin, Zhida and Zhang, Chong and Guo, Songtao},
  note = {arXiv:2412.01295},
  year = {2024}
}"""


@dataclass(frozen=True)
class FedAH(Method):
    paper = "Zhou et al., arXiv 2412.01295, 2024"
    citation = CITATION
    travels = "model both ways"
    stays = "head and its weights"

    weight_lr: NonNegative = 1.0
    """η_w: learning rate of the weights W; 0: they are fixed."""
    head_epochs: Count = 1
    """Epochs of learning W, and again of training the head. The body is trained for the run's epochs."""
    mix: Literal["learned", "global", "local"] = "learned"
    """learned: W is learned. global: W is 1, the global head. local: W is 0, the client's own head, as in FedRep."""

    matters = {"weight_lr": {"weight_lr": 50.0}}  # a head changes little in four rounds

    averages = "size"

    def init(self, fed: Server) -> State:
        return {"model": fed.initial(0), "share": fed.equal_shares()}

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        return (
            ["In FedAH a client mixes heads only from its second round on. Use at least 2 rounds."]
            if rounds < 2
            else []
        )

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def local(self, client: Client, message: Message) -> Reply:
        net, layout = client.net, client.net.layout
        mixed, weights = self._mixed(client, message.shared[0])
        start = joined(layout.size, (layout.body, message.shared[0][layout.body]), (layout.head, mixed))
        with net.frozen(layout.body):
            trained = sgd(client, start, epochs=self.head_epochs)
        if net.trains(layout.body):  # not so where a pretrained body is frozen
            with net.frozen(layout.head):
                trained = sgd(client, trained, first_epoch=self.head_epochs)
        return Reply({"head": trained[layout.head], "weights": weights, "mixed": mixed}, (trained,))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        return averaged(len(state["share"]), replies.ids, replies.weights, model=replies.body[0])

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        """The received body with the mixed head, before training."""
        layout = client.net.layout
        parts = (layout.body, message.shared[0][layout.body]), (layout.head, trained().state["mixed"])
        return joined(layout.size, *parts)

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])  # of what is sent; a client then mixes the head with its own

    def _mixed(self, client: Client, received: Tensor) -> tuple[Tensor, Tensor]:
        """The head to start from, and W."""
        net, positions = client.net, client.net.layout.head
        if bool((positions >= net.layout.parameters).any()):
            raise ValueError(
                "FedAH mixes heads of trained parameters only; this head has buffers or frozen parameters: name "
                "another with --head."
            )
        theirs = received[positions]
        own: Tensor = client.state.get("head", net.initial[positions])
        weights: Tensor = client.state.get("weights", torch.ones_like(theirs))
        if self.mix != "learned":
            return (theirs, weights) if self.mix == "global" else (own, weights)
        gap = theirs - own
        head = own + gap * weights
        net.load(received)
        net.eval()  # the body is fixed, and so are its running means
        parameters = received[: net.layout.parameters].clone()
        for batch in stream(client, epochs=self.head_epochs, first_epoch=OTHER_EPOCHS):
            parameters[positions] = head
            gradient = slope(net, parameters, batch)[positions]
            weights = (weights - self.weight_lr * gradient * gap).clamp(0, 1)
            head = own + gap * weights
        return head, weights
