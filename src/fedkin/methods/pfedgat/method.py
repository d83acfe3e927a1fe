"""pFedGAT: Personalized Federated Learning via Learning Dynamic Graphs.
Zhou, Gao, Wu, Lyu. arXiv 2503.05474, 2025.

| symbol | here |
|---|---|
| θ_i^t, trained and uploaded | state "models", one row for each client in "nodes" |
| θ_i^{t+1} = Σ_j R_ij θ_j^t | state "mixed", the models to send |
| h_i, d | `features`; d is `projection_size` with projection="random" |
| W, a, d', K | state "gat", `hidden`, `heads` |
| R | state "R": the last row of every client, or with very many clients the rows among "nodes" |
| L_i, η | the feedback, `gat_lr` |

A round has one exchange. A client computes the feedback on the model it received in round t+1 before training it, and
sends it with the trained model. The server then takes the step of round t first (it kept that round's client models,
and W and a have not changed since) and mixes after that. The order of the steps is that of Algorithm 1.

Deviations: a scalar L_i has no gradient with respect to R, so the feedback has three modes; held-out examples are
validation examples unless `feedback_split="test"`; all clients start from one model; the graph covers the clients that
answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from fedkin.bounds import Bound, Count, FractionBelow1, NonNegative, Positive
from fedkin.client.evaluate import evaluate, gradient
from fedkin.client.training import sgd
from fedkin.maths.table import ClientTable
from fedkin.methods.pfedgat import attention as maths
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, ragged, require, with_rows

MEMORY_LIMIT = 1 << 30  # bytes of W, a and the optimizer's moments
WHOLE_R = 4000  # with more clients R is kept only among those of the last round
HEADS_SHOWN = 50  # with more clients the history holds only the mean over heads


CITATION = r"""@article{zhou2025personalized,
  title = {Personalized Federated Learning via Learning Dynamic Graphs},
  author = {Zhou, Ziran and Gao, Guanyu and Wu, Xiaohu and Lyu, Yan},
  journal = {arXiv preprint arXiv:2503.05474},
  year = {2025}
}"""


@dataclass(frozen=True)
class PFedGAT(Method):
    paper = "Zhou et al., arXiv 2503.05474, 2025"
    citation = CITATION
    travels = "model both ways, loss and its gradient up"
    stays = "nothing"

    attention: Literal["gat", "gatv2", "direct"] = "gat"
    """gat: eq. (5). gatv2: aᵀ LeakyReLU(W₁h_i + W₂h_j), which can tell receivers apart. direct: no network, R is the
    softmax of free logits (table 4's "without GAT"); the row of a client that joins late is not trained yet."""
    features: Literal["weights", "centered"] = "weights"
    """weights: LayerNorm of θ_i, eq. (3). centered: of θ_i minus the mean of the clients' models."""
    feedback: Literal["gradient", "delta", "scalar"] = "gradient"
    """gradient: L_i and ∇L_i, exact, one more model up. delta: the local update stands in for ∇L_i; no extra traffic.
    scalar: L_i alone (4 bytes); R is perturbed by an antithetic pair over two rounds."""
    feedback_split: Literal["validation", "test"] = "validation"
    """Examples on which the feedback is computed. test: as in the paper; it leaks, and the run says so."""
    heads: Count = 8
    """K, attention heads; R is their mean."""
    hidden: Count = 8
    """d', outputs of W in each head."""
    start: Literal["glorot", "uniform"] = "glorot"
    """Start of a: Glorot's, or uniform: 0, so that R is uniform until feedback changes it. W is Glorot's in both."""
    slope: FractionBelow1 = 0.2
    """Slope of LeakyReLU below 0."""
    gat_optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimizer of W and a (of the logits with attention="direct")."""
    gat_lr: Positive = 0.01
    """η, learning rate of that optimizer."""
    prior: NonNegative = 0.0
    """Weight of KL(uniform ‖ R_i), added to each L_i: a row leaves the uniform one only if that saves enough loss, so
    that noise does not grow into attention. 0: as in the paper."""
    projection: Literal["none", "random"] = "none"
    """random: features pass through a fixed count sketch before W, so that W does not grow with the model."""
    projection_size: Annotated[int, Bound(least=1, most=4096)] = 4096
    """Size of that sketch."""
    perturbation: Positive = 0.5
    """Size of the perturbation of log R with feedback="scalar"."""
    use: Literal["received", "trained"] = "trained"
    """The model a client uses: θ_i^{t+1} after local training (algorithm 1 trains, then measures), or as received."""

    matters = {
        **{name: {"attention": "gatv2"} for name in ("features", "heads", "hidden", "slope", "start")},
        "projection": {"attention": "gatv2", "projection_size": 64},
        "projection_size": {"attention": "gatv2", "projection": "random", "projection_size": 64},
        "perturbation": {"feedback": "scalar"},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feedback == "delta" and self.feedback_split == "test":
            raise ValueError("feedback='delta' uses no held-out examples: leave feedback_split='validation'.")

    @property
    def sees_test(self) -> bool:
        return self.feedback_split == "test"

    from_zero = (2,)

    # ---- server
    def init(self, fed: Server) -> State:
        seed = int(fed.rng(0, 0x6A7).integers(1 << 62))
        gat = self._start(fed, torch.Generator().manual_seed(seed))
        return {
            "mixed": ClientTable(fed.initial(0), fed.size),
            "R": torch.eye(fed.size) if fed.size <= WHOLE_R else torch.empty(0, 0),
            "nodes": torch.empty(0, dtype=torch.long),
            "models": torch.empty(0, fed.layout.size),
            "inputs": torch.empty(0),
            "per_head": torch.empty(0),
            "parameters": fed.layout.parameters,
            "seed": seed,
            "gat": gat,
            "moments": {k: [torch.zeros_like(v)] * 2 for k, v in gat.items()} if self.gat_optimizer == "adam" else {},
            "steps": 0,
            "loss": torch.zeros(fed.size),
            "gave": torch.zeros(fed.size, dtype=torch.bool),
            "feedbacks": [0, 0],  # asked for, answered
            "sign": 0,
            "tilt": torch.zeros([fed.size if self.feedback == "scalar" else 0] * 2, dtype=torch.int8),
        }

    def _start(self, fed: Server, generator: torch.Generator) -> maths.Parameters:
        if self.attention == "direct":
            return {"logits": torch.zeros(fed.size, fed.size)}  # uniform R
        size = self.projection_size if self.projection == "random" else fed.layout.parameters
        copies = (1 if self.attention == "gat" else 2) * (3 if self.gat_optimizer == "adam" else 1)
        needed = 4 * copies * self.heads * self.hidden * size
        if needed > MEMORY_LIMIT:
            raise ValueError(
                f"W for a model of {size} parameters (heads={self.heads}, hidden={self.hidden}, {self.gat_optimizer}) "
                f"takes {needed / 2**20:.0f} MiB; the limit is {MEMORY_LIMIT / 2**20:.0f} MiB: "
                "use projection='random'."
            )
        drawn = maths.glorot(self.attention, self.heads, self.hidden, size, generator)
        return drawn if self.start == "glorot" else {**drawn, "a": torch.zeros_like(drawn["a"])}

    def send(self, state: State, ids: Tensor) -> Message:
        if self.feedback == "delta":
            return Message(own=(state["mixed"][ids],))
        # one byte asks for feedback: feedback on a model of an older graph could not be used
        return Message(own=(state["mixed"][ids], torch.isin(ids, state["nodes"])))

    def reply_bounds(self, fed: Server, client: int) -> Mapping[int, Bound]:
        return {1: fed.loss_bound}

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        asked = torch.isin(replies.ids, state["nodes"]).tolist()
        fits = (self._fits(state, a, *map(len, parts)) for a, parts in zip(asked, zip(*replies.body)))
        require(replies, fits, "replied with other than a model and the feedback that it was asked for")
        return self._mix(self._learn(state, sent, replies), replies)

    def _fits(self, state: State, asked: bool, model: int, loss: int = 0, slope: int = 0) -> bool:
        """Check the lengths of a reply's arrays: the engine does not, because feedback may be missing."""
        expected = state["parameters"] * loss if self.feedback == "gradient" else 0
        return model == state["mixed"].shape[1] and loss in ((0, 1) if asked else (0,)) and slope == expected

    def _mix(self, state: State, replies: Replies) -> State:
        nodes, models = replies.ids, replies.body[0]
        h = self._inputs(state, models)
        per_head = self._heads(state["gat"], nodes, h)
        h = h if self.projection == "random" else torch.empty(0)  # not kept: it is as large as the models
        R = per_head.mean(0)  # eq. (7)
        sign, tilt = state["sign"], state["tilt"]
        if self.feedback == "scalar":
            sign = -1 if sign == 1 else 1  # an antithetic pair: + in one round, − in the next
            if sign == 1:
                tilt = torch.randint(0, 2, tilt.shape, generator=torch.Generator().manual_seed(replies.seed))
                tilt = (2 * tilt - 1).to(torch.int8)
            R = maths.tilted(R, sign * self.perturbation * tilt[nodes][:, nodes])
        return {
            **state,
            "mixed": maths.mixed_into(state["mixed"], nodes, R, models),  # eq. (8)
            "R": _among_all(state, nodes, R),
            "nodes": nodes,
            "models": models,
            "inputs": h,
            "per_head": per_head if len(nodes) <= HEADS_SHOWN else torch.empty(0),
            "sign": sign,
            "tilt": tilt,
        }

    def _inputs(self, state: State, models: Tensor) -> Tensor:
        vectors, centered = models[:, : state["parameters"]], self.features == "centered"
        if self.attention == "direct":
            return torch.empty(0)
        if self.projection == "random":
            return maths.sketched_features(vectors, self.projection_size, state["seed"], centered=centered)
        return maths.features(vectors, centered=centered)  # eq. (3)

    def _heads(self, gat: maths.Parameters, nodes: Tensor, h: Tensor) -> Tensor:
        if self.attention == "direct":
            return gat["logits"][nodes][:, nodes].softmax(1)[None]
        return maths.attention(gat, h, self.slope)  # eq. (4) to (6)

    def _learn(self, state: State, sent: Message, replies: Replies) -> State:
        """The gradient step on L = Σ_i L_i, eq. (9), with feedback on the models that the last graph made."""
        heard, given = self._heard(state, replies)
        if self.feedback == "scalar":  # this round's − needs the + of the round before
            given = given & state["gave"][replies.ids] & (state["sign"] == -1)
        if not bool(given.any()):
            return heard
        nodes, models = state["nodes"], state["models"][:, : state["parameters"]]
        R, rows = _among_nodes(state), torch.zeros(len(nodes), len(nodes))  # rows: ∂L/∂R
        ids = replies.ids[given]
        position = torch.full((len(state["loss"]),), -1).index_copy_(0, nodes, torch.arange(len(nodes)))[ids]
        if self.feedback == "gradient":
            slopes = replies.body[2] if bool(given.all()) else torch.stack([g for g in replies.body[2] if len(g)])
            rows[position] = maths.allocation_gradient(slopes, models)
        elif self.feedback == "delta":
            found = []
            for part in maths.parts(replies.body[0]):
                update = sent.own[0][replies.position[part]].sub_(replies.body[0][part])
                found.append(maths.allocation_gradient(update[:, : models.shape[1]], models))
            rows[position] = torch.cat(found)[given]
        else:
            tilt = state["tilt"][nodes][:, nodes].float()
            R = maths.tilted(R, self.perturbation * tilt)  # removes the −
            drop = (state["loss"] - heard["loss"])[ids, None]
            rows[position] = maths.paired_gradient(R, tilt, self.perturbation)[position] * drop
        rows[position] += self.prior * maths.uniform_gradient(R)[position]
        return self._step(heard, rows)

    def _heard(self, state: State, replies: Replies) -> tuple[State, Tensor]:
        """Note the losses L_i. True for the replies with feedback on a model that the last graph made."""
        count, asked = len(state["loss"]), torch.isin(replies.ids, state["nodes"])
        given, loss, gave = asked, torch.zeros(count), torch.zeros(count, dtype=torch.bool)
        if self.feedback != "delta":
            given = torch.tensor([len(value) > 0 for value in replies.body[1]])
            loss[replies.ids[given]] = torch.cat([*replies.body[1], torch.empty(0)])
        gave[replies.ids[given]] = True
        times, answers = state["feedbacks"][0] + int(asked.sum()), state["feedbacks"][1] + int(given.sum())
        if times >= count and not answers:
            raise ValueError(
                f"{times} times a client was asked for feedback and had no validation examples, so the attention "
                "learns nothing: federate with validation=0.1, or use feedback='delta'."
            )
        return {**state, "loss": loss, "gave": gave, "feedbacks": [times, answers]}, given

    def _step(self, state: State, rows: Tensor) -> State:
        gat, nodes, steps = state["gat"], state["nodes"], state["steps"] + 1
        h = state["inputs"] if len(state["inputs"]) else self._inputs(state, state["models"])
        found = maths.slopes(lambda gat: self._heads(gat, nodes, h), gat, rows)
        if self.gat_optimizer == "sgd":
            return {**state, "gat": {k: v - self.gat_lr * found[k] for k, v in gat.items()}, "steps": steps}  # eq. (10)
        new = {k: maths.adam(v, found[k], state["moments"][k], steps, self.gat_lr) for k, v in gat.items()}
        moments = {k: v[1] for k, v in new.items()}
        return {**state, "gat": {k: v[0] for k, v in new.items()}, "moments": moments, "steps": steps}

    # ---- client
    @ragged
    def local(self, client: Client, message: Message) -> Reply:
        received = torch.as_tensor(message.own[0])
        if self.feedback == "delta":
            return Reply({}, (sgd(client, received),))
        loss, slope = torch.empty(0), torch.empty(0)
        held_out = client.data.test if self.feedback_split == "test" else client.data.validation
        if bool(message.own[1]) and len(held_out.y):
            if self.feedback == "gradient":
                slope, value = gradient(client.net, received, held_out)
            else:
                value = evaluate(client.net, received, held_out)[1]
            loss = torch.tensor([value])
        feedback = (loss, slope) if self.feedback == "gradient" else (loss,)
        return Reply({}, (sgd(client, received), *feedback))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return torch.as_tensor(message.own[0]) if self.use == "received" else trained().body[0]

    # ---- newcomers
    def join(self, state: State, client: Client, id: int) -> Message:
        """The newcomer is one more node: its attention row mixes the models of the last round and its own, which it
        trains from their mean."""
        if not len(state["nodes"]):
            return super().join(state, client, id)
        own = sgd(client, state["models"].mean(0))
        models = torch.cat([state["models"], own[None]])
        nodes = torch.cat([state["nodes"], torch.tensor([id])])
        row = self._heads(state["gat"], nodes, self._inputs(state, models)).mean(0)[-1]
        asked = () if self.feedback == "delta" else (torch.tensor(False),)
        return Message(own=(row @ models, *asked))

    # ---- to look at
    def mixing(self, state: State) -> Tensor | None:
        """R; None with so many clients that only the part among this round's clients is kept."""
        R: Tensor = state["R"]
        return R if len(R) == len(state["loss"]) else None

    def describe(self, state: State) -> dict[str, Any]:
        out: dict[str, Any] = {"feedback_clients": int(state["gave"].sum())}
        if self.feedback != "delta" and bool(state["gave"].any()):
            out["feedback_loss"] = float(state["loss"][state["gave"]].mean())
        if len(state["per_head"]):
            out |= {"attention_heads": state["per_head"].round(decimals=5), "attention_nodes": state["nodes"]}
        return out


def _among_all(state: State, nodes: Tensor, R: Tensor) -> Tensor:
    """The next state "R", from R among the nodes."""
    count = len(state["loss"])
    if count > WHOLE_R:
        return R
    before: Tensor = state["R"]
    return with_rows(before, nodes, torch.zeros(len(nodes), count).index_copy_(1, nodes, R))


def _among_nodes(state: State) -> Tensor:
    """R among the nodes, from the state "R"."""
    R: Tensor = state["R"]
    nodes = state["nodes"]
    return R if len(state["loss"]) > WHOLE_R else R[nodes][:, nodes]
