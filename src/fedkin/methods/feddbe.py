"""FedDBE (FedAvg + DBE): Eliminating Domain Bias for Federated Learning in Representation Space.
Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan. NeurIPS 2023.

| symbol | here |
|---|---|
| θ = (θ^f, θ^g): feature extractor f, classifier g | state "model", trained by FedAvg |
| z̄_i^p, personalized representation bias memory (PRBM) | client state "memory": one trainable feature vector |
| (1) ℓ(g(f(x) + z̄_i^p), y) | the loss with PRBM |
| (2) z̄_i^g ← (1 − μ) z̄_i^g + μ · batch mean of f(x) | moving mean of the client's features; μ is mean_momentum |
| (3) κ · MSE(z̄_i^g, z̄^g) | mean regularization (MR); κ is kappa |
| (4) z̄^g = Σ_i n_i z̄_i^g / Σ_i n_i | state "consensus": computed once, before training, and then fixed |

The numbers are ours; they follow the order of the paper's method section. Before training, clients train once without
DBE to measure z̄_i^g; those models are discarded (paper: all clients; here: those of the first round). Deviations from
the authors' code: the moving mean starts at the first batch's mean, not at zero, which would bias it; MSE has no
factor 1/2, so their κ = 50 is kappa = 25 here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import NonNegative, PositiveFraction
from fedkin.client.parts import check_head, sgd_with
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.models.network import Network
from fedkin.protocol import Client, Clients, Message, Method, Model, Replies, Reply, Server, State, client_function

CITATION = r"""@inproceedings{zhang2023eliminating,
  title = {Eliminating Domain Bias for Federated Learning in Representation Space},
  author = {Zhang, Jianqing and Hua, Yang and Cao, Jian and Wang, Hao and Song, Tao and Xue, Zhengui and Ma, Ruhui
    and Guan, Haibing},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2023}
}"""


@dataclass(frozen=True)
class FedDBE(Method):
    paper = "Zhang et al., NeurIPS 2023"
    citation = CITATION
    travels = "model both ways; once the mean feature vector"
    stays = "representation bias memory (one feature vector)"

    kappa: NonNegative = 2.5
    """κ: strength of the mean regularization; 0: none. The authors' 50 (25 here) is for a learning rate of 0.005; at
    the default rate of 0.05 it makes the features collapse, and a tenth of it does not."""
    mean_momentum: PositiveFraction = 1.0
    """μ: weight of the newest batch in the moving mean of features. The authors use 1 for a CNN, 0.1 for ResNet-18."""
    memory: bool = True
    """Learn z̄_i^p. False: it stays zero; with kappa = 0 that is FedAvg."""

    # ---- server
    def init(self, fed: Server) -> State:
        check_head(fed.layout, fed.classes, "FedDBE")
        return {"model": fed.initial(0), "share": fed.equal_shares()}

    def send(self, state: State, ids: Tensor) -> Message:
        known = (state["consensus"],) if "consensus" in state else ()
        return Message(shared=(state["model"], *known))

    def round(self, state: State, clients: Clients) -> State:
        if "consensus" not in state:
            first = clients.run(self.measure, self.send(state, clients.ids))
            state = {**state, "consensus": torch.tensordot(first.weights, first.body[0], dims=1)}  # (4)
        sent = self.send(state, clients.ids)
        return self.merge(state, sent, clients.run(self.local, sent))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        return {**state, **averaged(len(state["share"]), replies.ids, replies.weights, model=replies.body[0])}

    # ---- client
    @client_function
    def measure(self, client: Client, message: Message) -> Reply:
        """One local training without DBE; send the mean of the features."""
        return Reply(client.state, (self._train(client, message, self._zero(client), dbe=False)[1],))

    def local(self, client: Client, message: Message) -> Reply:
        memory = client.state.get("memory", self._zero(client))
        model, _, memory = self._train(client, message, memory, dbe=len(message.shared) > 1)
        return Reply({"memory": memory}, (model,))

    def _train(self, client: Client, message: Message, memory: Tensor, *, dbe: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The trained model, the moving mean of its features, and the trained memory."""
        moving: list[Tensor] = []  # z̄_i^g

        def loss(net: Network, extra: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
            z = net.features(x)
            mean = z.mean(0)
            if moving:
                mean = (1 - self.mean_momentum) * moving.pop() + self.mean_momentum * mean  # (2)
            moving.append(mean.detach())
            if not dbe:
                return net.task.loss(net.head(z), y)
            value = net.task.loss(net.head(z + extra[0] if self.memory else z), y)  # (1)
            return value + self.kappa * F.mse_loss(mean, message.shared[1]) if self.kappa else value  # (3)

        model, (memory,) = sgd_with(client, message.shared[0], [memory], loss)
        return model, moving[0], memory

    def _zero(self, client: Client) -> Tensor:
        with torch.no_grad():
            client.net.eval()
            return torch.zeros_like(client.net.features(client.data.x[:1])[0])

    # ---- use
    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return {"model": message.shared[0], "memory": client.state.get("memory", self._zero(client))}

    def received(self, client: Client, message: Message) -> Model:
        return {"model": message.shared[0], "memory": self._zero(client)}  # the generic model

    def predict(self, client: Client, personal: Model, x: Tensor) -> Tensor:
        assert isinstance(personal, dict)
        client.net.load(personal["model"])
        return client.net.head(client.net.features(x) + personal["memory"])

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])
