"""FedALA: Adaptive Local Aggregation for Personalized Federated Learning.
Zhang, Hua, Wang, Song, Xue, Ma, Guan. AAAI 2023.

| symbol | here |
|---|---|
| Θ^{t−1}, Θ_i^{t−1} | state "model" of the server, of the client |
| Θ̂_i = Θ_i + (Θ − Θ_i) ⊙ [1; W_i] | `mixed`: lower layers global, the last `tensors` mixed by W_i |
| W_i, η | the client's state "weights", rate |
| s, p | sample; `tensors`, which counts parameter tensors (2: weight and bias of the last layer) |

The first time, a client learns W until the loss of its last epochs hardly varies (at most MOST epochs); later for one
epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.bounds import NonNegative, PositiveFraction, Whole
from fedkin.client.training import batches, sgd
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.protocol import Client, Examples, Message, Method, Model, Replies, Reply, Server, State

RECENT, STEADY, MOST = (
    10,
    0.1,
    50,
)  # learning stops when the loss of the last RECENT epochs has a std below STEADY, or after MOST
APART = 1 << 16  # epoch numbers of mixing start here, so that the batches of local training are FedAvg's


CITATION = r"""@inproceedings{zhang2023fedala,
  title = {{FedALA}: Adaptive Local Aggregation for Personalized Federated Learning},
  author = {Zhang, Jianqing and Hua, Yang and Wang, Hao and Song, Tao and Xue, Zhengui and Ma, Ruhui and Guan, Haibing},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year = {2023}
}"""


@dataclass(frozen=True)
class FedALA(Method):
    paper = "Zhang et al., AAAI 2023"
    citation = CITATION
    travels = "model both ways"
    stays = "model, mixing weights"

    rate: NonNegative = 1.0
    """η: learning rate of the weights; 0: they stay 1, which is FedAvg."""
    sample: PositiveFraction = 0.8
    """s: fraction of the training examples from which the weights are learned, drawn anew in each round."""
    tensors: Whole = 2
    """p: number of parameter tensors, counted from the end, that are mixed by weights; 0: all."""

    matters = {"tensors": {"tensors": 0}}

    # ---- server: FedAvg
    averages = "size"

    def init(self, fed: Server) -> State:
        return {"model": fed.initial(0), "share": fed.equal_shares()}

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        return ["In FedALA a client mixes only from its second round on. Use at least 2 rounds."] if rounds < 2 else []

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        weights = replies.weights
        return averaged(len(state["share"]), replies.ids, weights, model=replies.body[0])

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start, weights = self._initialized(client, message.shared[0])
        trained = sgd(client, start)
        return Reply({"model": trained, "mixed": start} | ({} if weights is None else {"weights": weights}), (trained,))

    def _initialized(self, client: Client, received: Tensor) -> tuple[Tensor, Tensor | None]:
        """The start of local training, and the weights that made it; None before there is anything to mix."""
        own = client.state.get("model")
        weights: Tensor | None = client.state.get("weights")
        pieces = client.net.layout.pieces[: len(client.net.parameters)]
        upper = slice(
            pieces[-self.tensors].start if 0 < self.tensors < len(pieces) else 0, client.net.layout.parameters
        )
        if own is None or torch.equal(own[upper], received[upper]):
            return received, weights
        first = weights is None
        learned = torch.ones(upper.stop - upper.start) if weights is None else weights.clone()
        gap = received[upper] - own[upper]
        examples = self._sampled(client)
        vector = mixed(received, own, learned, upper)
        losses: list[float] = []
        for epoch in range(MOST if first and self.rate else 1):
            total = 0.0
            for x, y in batches(client, epoch=APART + epoch, examples=examples):
                slope, loss = _slope(client, vector, Examples(x, y))
                learned = (learned - self.rate * slope[upper] * gap).clamp(0, 1)
                vector = mixed(received, own, learned, upper)
                total += loss * len(y)
            losses.append(total / len(examples.y))
            if len(losses) > RECENT and float(torch.tensor(losses[-RECENT:]).std()) < STEADY:
                break
        return vector, learned

    def _sampled(self, client: Client) -> Examples:
        generator = torch.Generator().manual_seed((client.seed + 0xA1A) % (1 << 63))
        order = torch.randperm(len(client.data.y), generator=generator)[: max(1, int(self.sample * len(client.data.y)))]
        return Examples(client.data.x[order], client.data.y[order])

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model: Tensor = trained().state["mixed"]
        return model

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        """Shares in the global model. How much of it a client takes is known only to the client."""
        return same_for_all(state["share"])


def mixed(received: Tensor, own: Tensor, weights: Tensor, upper: slice) -> Tensor:
    """Θ̂_i: global in the lower layers, mixed by weights in the upper ones."""
    out = received.clone()
    out[upper] = own[upper] + (received[upper] - own[upper]) * weights
    return out


def _slope(client: Client, vector: Tensor, batch: Examples) -> tuple[Tensor, float]:
    """Gradient and loss on one batch, in evaluation mode, so that mixing does not move batch norm's buffers."""
    client.net.load(vector)
    client.net.eval()
    loss = client.net.task.loss(client.net(batch.x), batch.y)
    slopes = torch.autograd.grad(loss, client.net.parameters, allow_unused=True)
    parts = [torch.zeros_like(p) if g is None else g for g, p in zip(slopes, client.net.parameters)]
    return torch.cat([part.flatten() for part in parts]), float(loss.detach())
