"""FedAH: Aggregated Head for Personalized Federated Learning.
Zhou, He, Zhai, Gao, Chen, Qin, Zhang, Guo. arXiv 2412.01295, 2024.

| here | meaning |
|---|---|
| state "model" | the global body and head, both averaged by n_i |
| client state "head" | h_loc, the head as the client last trained it |
| client state "weights" | W in [0, 1], one for each number of the head, starts at 1 |
| client state "mixed" | h = h_loc + (h_glob − h_loc) · W of the client's last round |
| weight_lr, head_epochs | η_w; epochs of learning W, and again of training the head |

In code: body from the server; W and so h learned with the body held; head trained from h; body trained with the head
held. Deviation: the official code lets every client do the mixing in every round; here those that take part do, and
the others when they are measured.
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
from fedkin.maths.mixing import average, shares
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
    """η_w: rate at which the weights W are learned; 0: they stay as they are."""
    head_epochs: Count = 1
    """Epochs of learning W, and then of training the head; the body is trained for the run's epochs."""
    mix: Literal["learned", "global", "local"] = "learned"
    """global: W is 1, the head starts at the global one. local: W is 0, the head is the client's own, as in FedRep."""

    matters = {"weight_lr": {"weight_lr": 50.0}}  # a head moves little in four rounds

    def init(self, fed: Server) -> State:
        return {"model": fed.initial(0), "share": fed.equal_shares()}

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
        return {
            "model": average(replies.body[0], replies.weights),
            "share": shares(len(state["share"]), replies.ids, replies.weights),
        }

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        """The received body with the mixed head, before training."""
        layout = client.net.layout
        parts = (layout.body, message.shared[0][layout.body]), (layout.head, trained().state["mixed"])
        return joined(layout.size, *parts)

    def mixing(self, state: State) -> Tensor:
        share: Tensor = state["share"]  # of what is sent; the head is then mixed with the client's own
        return share.expand(len(share), -1)

    def _mixed(self, client: Client, received: Tensor) -> tuple[Tensor, Tensor]:
        """The head to start from, and W."""
        net, positions = client.net, client.net.layout.head
        if bool((positions >= net.layout.parameters).any()):
            raise ValueError(
                "FedAH mixes a head of trained parameters alone; this head has buffers or frozen parameters: name "
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
        net.eval()  # the body is held, and so are its running means
        parameters = received[: net.layout.parameters].clone()
        for rows in stream(client, epochs=self.head_epochs, first_epoch=OTHER_EPOCHS):
            parameters[positions] = head
            gradient = slope(net, parameters, rows)[positions]
            weights = (weights - self.weight_lr * gradient * gap).clamp(0, 1)
            head = own + gap * weights
        return head, weights
