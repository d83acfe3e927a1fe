"""GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized Federated Learning.
Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan. ICCV 2023.

| symbol | here |
|---|---|
| W^fe | state "body" |
| C | global category embeddings (GCE): state "embeddings" [classes, D] |
| V | conditional valve (CoV): state "valve", flat |
| W_i^hd | personal head: client state "head" |
| (1) g = Σ_u Ĉ_u / U, p_i = Σ_u α_i^u Ĉ_u / U | conditions; Ĉ: C as received; α_i^u: class shares |
| (2) f^G = ReLU((γ + 1) ⊙ f + β), γ and β from g; f^P likewise from p_i | the valve |
| (3) cross entropy of W_i^hd f^P | personal task |
| (4) −log softmax over u of cos(f^G, C_u), at y | angle-level guidance |
| (5) λ ‖f^G − Ĉ_y‖ | magnitude-level guidance; λ is lam |
| (6) μ/2 (‖V‖² + ‖C‖²) | regularization; μ is mu |

U is the number of classes; γ and β are each LayerNorm(ReLU(linear)) of the condition. The numbers are ours. Deviations
from the authors' code: g and p_i come from the received Ĉ from the first round on (theirs: the client's own, zero at
first), p_i is divided by U, and (5) is a mean over examples (theirs: one norm of the batch). (6) is their weight decay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import NonNegative
from fedkin.client.parts import check_head, linear_head, sgd_with
from fedkin.client.steps import joined
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{zhang2023gpfl,
  title = {{GPFL}: Simultaneously Learning Global and Personalized Feature Information for Personalized Federated
    Learning},
  author = {Zhang, Jianqing and Hua, Yang and Wang, Hao and Song, Tao and Xue, Zhengui and Ma, Ruhui and Cao, Jian
    and Guan, Haibing},
  booktitle = {IEEE/CVF International Conference on Computer Vision (ICCV)},
  year = {2023}
}"""


@dataclass(frozen=True)
class GPFL(Method):
    paper = "Zhang et al., ICCV 2023"
    citation = CITATION
    travels = "body, category embeddings and conditional valve both ways"
    stays = "head"
    needs_classes = True

    lam: NonNegative = 0.01
    """λ: weight of the magnitude-level guidance."""
    mu: NonNegative = 0.1
    """μ: regularization of valve and embeddings. The authors use 0.1 for a CNN, 0 for ResNet-18, 1 for HAR."""
    guidance: bool = True
    """Guide the features by the embeddings, (4) and (5). False: the personal task alone trains the body."""

    matters = {"lam": {"lam": 1.0}}

    averages = "size"

    # ---- server
    def init(self, fed: Server) -> State:
        check_head(fed.layout, fed.classes, "GPFL")
        weight, _ = linear_head(fed.layout, fed.initial(0)[fed.layout.head], "GPFL")
        size, rng = weight.shape[1], fed.rng(0, 0x6F)
        valve = []
        for _ in range(2):  # a linear layer and a layer norm, as PyTorch starts them
            valve += [rng.uniform(-1, 1, size * (size + 1)) / size**0.5, np.ones(size), np.zeros(size)]
        return {
            "body": fed.initial(0)[fed.layout.body],
            "embeddings": torch.from_numpy(rng.normal(size=tuple(weight.shape))).float(),
            "valve": torch.from_numpy(np.concatenate(valve)).float(),
            "share": fed.equal_shares(),
        }

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["body"], state["embeddings"], state["valve"]))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        parts = dict(zip(("body", "embeddings", "valve"), (part.flatten(1) for part in replies.body)))
        means = averaged(len(state["share"]), replies.ids, replies.weights, **parts)
        return {**means, "embeddings": means["embeddings"].view_as(state["embeddings"])}

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        layout = client.net.layout
        _, frozen, valve = message.shared
        common, personal = frozen.mean(0), condition(client, frozen)  # (1)

        def loss(net: Network, extra: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
            embeddings, valve = extra
            f = net.features(x)
            value = F.cross_entropy(net.head(opened(valve, f, personal)), y)  # (3)
            if self.guidance:
                guided = opened(valve, f, common)
                cosines = F.linear(F.normalize(guided), F.normalize(embeddings))
                value = value + F.cross_entropy(cosines, y)  # (4)
                apart = (guided - frozen[y]).square().sum(1)
                value = value + self.lam * (apart + 1e-12).sqrt().mean()  # (5)
            return value + self.mu / 2 * (embeddings.square().sum() + valve.square().sum())  # (6)

        model, (embeddings, valve) = sgd_with(client, self._start(client, message), [frozen, valve], loss)
        return Reply({"head": model[layout.head]}, (model[layout.body], embeddings, valve))

    def _start(self, client: Client, message: Message) -> Tensor:
        layout = client.net.layout
        head = client.state.get("head", client.net.initial[layout.head])
        return joined(layout.size, (layout.body, message.shared[0]), (layout.head, head))

    # ---- use
    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        if "head" not in client.state:
            client = client._replace(state=trained().state)
        return self.received(client, message)

    def received(self, client: Client, message: Message) -> Model:
        start, (_, frozen, valve) = self._start(client, message), message.shared
        return {"model": start, "valve": valve, "condition": condition(client, frozen)}

    def predict(self, client: Client, personal: Model, x: Tensor) -> Tensor:
        assert isinstance(personal, dict)
        client.net.load(personal["model"])
        return client.net.head(opened(personal["valve"], client.net.features(x), personal["condition"]))

    def mixing(self, state: State) -> dict[str, Tensor]:
        return {"body": same_for_all(state["share"]), "head": torch.eye(len(state["share"]))}


def condition(client: Client, embeddings: Tensor) -> Tensor:
    """p_i of (1)."""
    share = torch.bincount(client.data.y, minlength=len(embeddings)).float() / len(client.data.y)
    return share @ embeddings / len(embeddings)


def opened(valve: Tensor, f: Tensor, condition: Tensor) -> Tensor:
    """(2): the features behind the valve under this condition."""
    size = len(condition)
    parts = [half.split([size * size, size, size, size]) for half in valve.chunk(2)]
    hidden = [F.relu(F.linear(condition, weight.view(size, size), bias)) for weight, bias, *_ in parts]
    gamma, beta = (F.layer_norm(h, (size,), scale, shift) for h, (*_, scale, shift) in zip(hidden, parts))
    return F.relu((gamma + 1) * f + beta)
