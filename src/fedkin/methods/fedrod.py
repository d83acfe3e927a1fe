"""FedRoD: On Bridging Generic and Personalized Federated Learning for Image Classification.
Chen, Chao. ICLR 2022.

| symbol | here |
|---|---|
| θ, ψ | body and generic head: state "model" |
| φ_i | personal head: client state "phi", or made by the hypernetwork |
| ν, a_i | state "hyper", class frequencies of the client's training examples |
| γ | gamma |
| L_BSM = CE(ψz + γ log n_c, y) | balanced softmax: trains θ and ψ |
| L_ER = CE(ψz + φ_i z, y) | empirical risk: trains φ_i (or ν) alone, on the same batches |

Both predictors share the body; the personal one adds to the generic one. Deviations: φ_i starts at zero, so that both
start alike; a class that a client does not have counts with a frequency of 1e-30, whose logarithm is finite. The
authors published no code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import Count, NonNegative
from fedkin.client.steps import descent
from fedkin.client.training import stream
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.models.network import Layout
from fedkin.protocol import Client, Data, Message, Method, Model, Replies, Reply, Server, State

ABSENT = 1e-30  # frequency of a class that a client does not have


CITATION = r"""@inproceedings{chen2022bridging,
  title = {On Bridging Generic and Personalized Federated Learning for Image Classification},
  author = {Chen, Hong-You and Chao, Wei-Lun},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2022}
}"""


@dataclass(frozen=True)
class FedRoD(Method):
    paper = "Chen and Chao, ICLR 2022"
    citation = CITATION
    travels = "model both ways, with hyper the hypernetwork too"
    stays = "personal head; nothing with hyper"
    needs_classes = True

    gamma: NonNegative = 1.0
    """γ: how much the generic loss compensates for unequal class counts; 0: plain cross entropy."""
    hyper: bool = False
    """Fed-RoD (hyper): a shared hypernetwork makes personal heads from class frequencies."""
    hidden: Count = 32
    """Hidden units of the hypernetwork. Our choice; the paper's depends on its networks."""
    start: Literal["zero", "generic"] = "zero"
    """Initial φ_i: zero (predicts as the generic head), or a copy of the received head."""

    matters = {"hidden": {"hyper": True}, "start": {"hyper": False}}

    averages = "size"

    # ---- server
    def init(self, fed: Server) -> State:
        linear_head(fed.layout, torch.zeros(fed.layout.size))  # raise now if there is no such head
        state = {"model": fed.initial(0), "share": fed.equal_shares()}
        if self.hyper:
            first = fed.rng(0, 0x40D).uniform(-1, 1, (self.hidden, fed.classes)) / sqrt(fed.classes)
            rest = self.hidden + len(fed.layout.head) * (self.hidden + 1)  # zero, so that φ starts at zero
            state["hyper"] = torch.cat([torch.from_numpy(first).float().flatten(), torch.zeros(rest)])
        return state

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"], state["hyper"]) if self.hyper else (state["model"],))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        parts = dict(zip(("model", "hyper"), replies.body))  # hyper only if there is one
        return averaged(len(state["share"]), replies.ids, replies.weights, **parts)

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        net = client.net
        net.load(message.shared[0])
        net.train()
        own = (message.shared[1] if self.hyper else self._phi(client, message)).clone().requires_grad_()
        generic_step, own_step = descent(client), descent(client)
        prior = self.gamma * frequencies(client.data).clamp(min=ABSENT).log()
        for x, y in stream(client):
            z, logits = net.split(x)
            gradient = torch.autograd.grad(F.cross_entropy(logits + prior, y), net.parameters)  # L_BSM
            phi = self._made(client, own) if self.hyper else own
            both = logits.detach() + F.linear(z.detach(), *linear_head(net.layout, phi))
            (own_gradient,) = torch.autograd.grad(F.cross_entropy(both, y), [own])  # L_ER
            generic_step(net.views, list(gradient))
            own_step([own.data], [own_gradient])
        own = own.detach()
        return Reply({}, (net.vector(), own)) if self.hyper else Reply({"phi": own}, (net.vector(),))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        phi = self._made(client, message.shared[1]) if self.hyper else self._phi(client, message)
        return {"model": message.shared[0], "phi": phi}

    def received(self, client: Client, message: Message) -> Model:
        return {"model": message.shared[0], "phi": torch.zeros(len(client.net.layout.head))}  # the generic model

    def predict(self, client: Client, personal: Model, x: Tensor) -> Tensor:
        assert isinstance(personal, dict)
        client.net.load(personal["model"])
        z, logits = client.net.split(x)
        return logits + F.linear(z, *linear_head(client.net.layout, personal["phi"]))

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])

    def _phi(self, client: Client, message: Message) -> Tensor:
        head = message.shared[0][client.net.layout.head]
        phi: Tensor = client.state.get("phi", torch.zeros_like(head) if self.start == "zero" else head)
        return phi

    def _made(self, client: Client, hyper: Tensor) -> Tensor:
        """φ = HN(a_i; ν), with one hidden layer."""
        classes, head = client.data.classes, len(client.net.layout.head)
        first, bias, second, last = hyper.split([self.hidden * classes, self.hidden, head * self.hidden, head])
        hidden = F.relu(first.view(self.hidden, classes) @ frequencies(client.data) + bias)
        phi: Tensor = second.view(head, self.hidden) @ hidden + last
        return phi


def frequencies(data: Data) -> Tensor:
    """Class frequencies of the training examples."""
    return torch.bincount(data.y, minlength=data.classes).float() / len(data.y)


def linear_head(layout: Layout, values: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weight and bias from the numbers of the head, or of a whole vector."""
    name = layout.layers[layout.head_layer].name
    pieces = [p for p in layout.pieces if p.name.rpartition(".")[0] == name]
    if [len(p.shape) for p in pieces] not in ([2], [2, 1]):
        raise ValueError(f"FedRoD needs a linear head; layer '{name}' has {[p.name for p in pieces]}. Name it: --head.")
    if len(values) == layout.size:
        values = values[layout.head]
    parts = values.split([p.stop - p.start for p in pieces])
    return parts[0].view(pieces[0].shape), parts[1] if len(parts) > 1 else None
