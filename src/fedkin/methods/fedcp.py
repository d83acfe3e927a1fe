"""FedCP: Separating Feature Information for Personalized Federated Learning via Conditional Policy.
Zhang, Hua, Wang, Song, Xue, Ma, Guan. KDD 2023.

| symbol | here |
|---|---|
| W^fe, W^hd | body and global head: state "model" |
| Θ | the conditional policy network (CPN): state "policy", flat |
| W_i^hd | personal head: client state "head" |
| h = f(x; W^fe_i) | features; the body is trained at the client |
| (1) v_i = Σ_k w_k / ‖Σ_k w_k‖, w_k the rows of W_i^hd | client vector, from the head at the start of the round |
| (2) a = ReLU(LayerNorm(Θ (v_i ⊙ h) + b)), two numbers a feature | the CPN |
| (3) (r, s) = softmax over the two numbers | policy: r + s = 1 |
| (4) logits = W_i^hd (r ⊙ h) + W^hd (s ⊙ h) | the global head is held |
| (5) cross entropy + λ MMD(h, f(x; W^fe)) | features stay near those of the received body; λ is lam |
| (6) head sent up: mix · W_i^hd + (1 − mix) W^hd | averaged with body and CPN by n_i |

The numbers are ours. MMD has the authors' Gaussian kernels. Deviations from their code: (3) is a plain softmax; theirs
draws Gumbel noise, also when it predicts (`gumbel=True` draws it in training alone). v_i comes from the common initial
head at first (theirs: random), and features of the received body are computed in evaluation mode. mix = 1/2 is theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import Fraction, NonNegative
from fedkin.client.parts import check_head, features, linear_head, sgd_with
from fedkin.client.steps import joined
from fedkin.maths.discrepancy import discrepancy
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{zhang2023fedcp,
  title = {{FedCP}: Separating Feature Information for Personalized Federated Learning via Conditional Policy},
  author = {Zhang, Jianqing and Hua, Yang and Wang, Hao and Song, Tao and Xue, Zhengui and Ma, Ruhui and Guan, Haibing},
  booktitle = {ACM SIGKDD Conference on Knowledge Discovery and Data Mining (KDD)},
  year = {2023}
}"""


@dataclass(frozen=True)
class FedCP(Method):
    paper = "Zhang et al., KDD 2023"
    citation = CITATION
    travels = "model and policy network both ways"
    stays = "personal head"

    lam: NonNegative = 0.1
    """λ: how near features are held to those of the received body; 0: free. The authors use 5 with a learning rate of
    0.005; at the default rate of 0.05 that makes the features collapse."""
    mix: Fraction = 0.5
    """Share of the personal head in the head that is sent up; 0: the global head never moves."""
    gumbel: bool = False
    """Draw Gumbel noise in the policy while training, as in the authors' code."""

    averages = "size"

    # ---- server
    def init(self, fed: Server) -> State:
        check_head(fed.layout, fed.classes, "FedCP")
        weight, _ = linear_head(fed.layout, fed.initial(0)[fed.layout.head], "FedCP")
        size = weight.shape[1]
        first = fed.rng(0, 0xC9).uniform(-1, 1, 2 * size * (size + 1)) / size**0.5  # as nn.Linear starts
        norm = torch.cat([torch.ones(2 * size), torch.zeros(2 * size)])
        return {
            "model": fed.initial(0),
            "policy": torch.cat([torch.from_numpy(first).float(), norm]),
            "share": fed.equal_shares(),
        }

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"], state["policy"]))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        models, policies = replies.body
        return averaged(len(state["share"]), replies.ids, replies.weights, model=models, policy=policies)

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        layout = client.net.layout
        received, policy = message.shared
        head, shared = self._head(client), received[layout.head]
        target = features(client, received, client.data.x)
        vector = client_vector(linear_head(layout, head, "FedCP")[0])

        def loss(net: Network, extra: list[Tensor], x: Tensor, index: Tensor) -> Tensor:
            h = net.features(x)
            logits = self._logits(client, h, vector, extra[0], extra[1], shared, noise=self.gumbel)
            value = net.task.loss(logits, client.data.y[index])
            return value + self.lam * discrepancy(h, target[index]) if self.lam else value  # (5)

        indices = torch.arange(len(target))
        model, (head, policy) = sgd_with(client, received, [head, policy], loss, labels=indices)
        up = self.mix * head + (1 - self.mix) * shared  # (6)
        body = joined(layout.size, (layout.body, model[layout.body]), (layout.head, up))
        return Reply({"head": head}, (body, policy))

    def _head(self, client: Client) -> Tensor:
        head: Tensor = client.state.get("head", client.net.initial[client.net.layout.head])
        return head

    def _logits(
        self, client: Client, h: Tensor, vector: Tensor, head: Tensor, policy: Tensor, shared: Tensor, *, noise: bool
    ) -> Tensor:
        r, s = separate(policy, vector * h, noise=noise)
        layout = client.net.layout
        own, common = linear_head(layout, head, "FedCP"), linear_head(layout, shared, "FedCP")
        return F.linear(r * h, *own) + F.linear(s * h, *common)  # (4)

    # ---- use
    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        head = client.state["head"] if "head" in client.state else trained().state["head"]
        return {"model": message.shared[0], "policy": message.shared[1], "head": head}

    def received(self, client: Client, message: Message) -> Model:
        return {"model": message.shared[0], "policy": message.shared[1], "head": self._head(client)}

    def predict(self, client: Client, personal: Model, x: Tensor) -> Tensor:
        assert isinstance(personal, dict)
        client.net.load(personal["model"])
        layout, head = client.net.layout, personal["head"]
        vector = client_vector(linear_head(layout, head, "FedCP")[0])
        shared = personal["model"][layout.head]
        return self._logits(client, client.net.features(x), vector, head, personal["policy"], shared, noise=False)

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])


def client_vector(weight: Tensor) -> Tensor:
    return F.normalize(weight.sum(0), dim=0)  # (1)


def separate(policy: Tensor, condition: Tensor, *, noise: bool) -> tuple[Tensor, Tensor]:
    """(2) and (3): r and s [examples, features]."""
    size = condition.shape[1]
    weight, bias, scale, shift = policy.split([2 * size * size, 2 * size, 2 * size, 2 * size])
    a = F.linear(condition, weight.view(2 * size, size), bias)
    a = F.relu(F.layer_norm(a, (2 * size,), scale, shift)).view(-1, 2, size)
    both = F.gumbel_softmax(a, dim=1) if noise else F.softmax(a, 1)
    return both[:, 0], both[:, 1]
