"""DC-PFL: Dynamic Clustering for Personalized Federated Learning on Heterogeneous Edge Devices.
Liu, Huang, He, Cao. arXiv 2508.01580, 2025.

| symbol | here |
|---|---|
| D_ij, S(·) | state "distance" (summed over rounds; "seen" counts them), scale |
| T_start | start_rounds |
| γ̃, λ_γ̃ | state "gamma", step |
| G⁰, G¹ | state "labels" and "groups", state "trial" |
| l(t), s | state "losses" (of this rapid decrease period), window |
| r(t), t_obv, t_sp | curvature.py, patience, hold |
| D_{g,l}, S(·) there, D_g | groups "spread" (layer_drift), layer_scale, layer_reference |
| τ_{g,l}, τ, α, 0.1 | `_due`, tau (tau_counts), alpha, low |

Deviations, each with its reason in docs/methods/dcpfl.md: S uses the smallest and largest value of all models together;
a layer's share of the sum over layers is compared with 0.1; γ̃ falls by λ (the text says "adding") and keeps falling
while the groups stay the same; l_w is a plain mean; r = +inf where l'' ≤ 0; a new period starts a new loss curve.
A layer that is not due stays in the client's private state. A client is sent exactly the layers that its group averaged
since the client last received them. A client that joins after the tree was built follows the client whose training
moves the model most similarly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any, Literal

import torch
from torch import Tensor

from fedkin.bounds import Count, Fraction, NonNegative, PositiveFraction, Whole
from fedkin.client.evaluate import evaluate
from fedkin.client.training import sgd
from fedkin.methods.dcpfl.curvature import radius, rapid_decrease_end
from fedkin.methods.dcpfl.discrepancy import filled, first_seen, gamma_for, group_tree, labels_at, pairwise_discrepancy
from fedkin.methods.dcpfl.layerwise import Tables, averaged, overall, pick, put, stacked
from fedkin.models.network import Layout
from fedkin.protocol import (
    Client,
    Clients,
    Message,
    Method,
    Model,
    Replies,
    Reply,
    Server,
    State,
    UnusableReplies,
    ragged,
)

# Settings for `matters` under which trials, or layers of low discrepancy, occur within a few rounds.
SOON = {"start_rounds": 1, "window": 1, "patience": 1, "hold": 1, "settings": {"rounds": 12}}
LOW = {"start_rounds": 1, "low": 0.5, "settings": {"rounds": 8}}
FIXED = {"dynamic": False, "start_rounds": 1}


CITATION = r"""@article{liu2025dynamic,
  title = {Dynamic Clustering for Personalized Federated Learning on Heterogeneous Edge Devices},
  author = {Liu, Heting and Huang, Junzhe and He, Fang and Cao, Guohong},
  journal = {arXiv preprint arXiv:2508.01580},
  year = {2025}
}"""


@dataclass(frozen=True)
class DCPFL(Method):
    paper = "Liu et al., arXiv 2508.01580, 2025"
    citation = CITATION
    travels = "due layers both ways, loss up; both models down in a trial"
    stays = "layers not due"

    scale: Literal["common", "model", "layer"] = "common"
    """Range that S maps to [0, 1] in eq. (3): that of all models together, each model's own (as printed), or that of
    all models together within each layer."""
    start_rounds: Count = 5
    """T_start: communication rounds over which the discrepancy is averaged; all layers travel in them."""
    step: PositiveFraction = 0.2
    """λ: how much γ̃ falls at the end of a rapid decrease period."""
    window: Count = 5
    """s: communication rounds over which the loss is smoothed."""
    patience: Count = 3
    """t_obv: communication rounds without a smaller radius of curvature that end a rapid decrease period."""
    hold: Whole = 6
    """t_sp: communication rounds for which the old groups stay after a refused trial."""
    tau: Whole = 0
    """τ: local work between two aggregations of a high-discrepancy layer, in `tau_counts`; 0: one round."""
    tau_counts: Literal["epochs", "rounds"] = "epochs"
    """Unit of `tau`: local epochs (rounded up to whole rounds) or rounds."""
    alpha: Count = 3
    """α: low-discrepancy layers are aggregated α times less often."""
    low: NonNegative = 0.1
    """A layer has low discrepancy below this share of `layer_reference`."""
    layer_scale: Literal["model", "own", "layer", "layer_own"] = "model"
    """Range that S maps to [0, 1] in eq. (5): that of all members' models together, each model's own, or the same two
    within each layer."""
    layer_reference: Literal["sum", "mean"] = "sum"
    """D_g of eq. (6), over the layers' discrepancies."""
    layer_drift: Literal["per_interval", "raw"] = "per_interval"
    """per_interval: measure layers when all of them are uploaded, each divided by the number of intervals since it was
    averaged. raw: measure a layer whenever it is uploaded; a layer that waited α intervals then looks high."""
    layerwise: bool = True
    """False: aggregate all layers every τ (NoLA)."""
    dynamic: bool = True
    """False: split once, into fixed groups (NoDC)."""
    gamma: Fraction = 0.8
    """γ̃ of the fixed groups (dynamic=False)."""
    split_into: Whole = 0
    """Number of fixed groups (dynamic=False); 0: as many as the cut at `gamma` gives."""
    split_after: Whole = 0
    """Communication rounds before the fixed groups are made (dynamic=False); 0: as soon as the tree is built."""
    oracle: tuple[int, ...] = ()
    """Group of each client instead of the tree's (dynamic=False), as in fig. 2 and 3, which group by the KLD of the
    data. No real server knows it."""
    lone: Literal["silent", "sends"] = "silent"
    """A client alone in its group. silent: it has no one to average with, so only its loss travels (sec. V-D: local
    training without communication). sends: it sends and receives like any group; the models are the same."""
    use: Literal["group", "trained"] = "group"
    """The model a client uses: its group's (with its own layers that are not due), or that after local training."""

    matters = {
        "scale": {"start_rounds": 1},
        "start_rounds": {"start_rounds": 2},
        "step": {**SOON, "dynamic": True},
        "window": {**SOON, "dynamic": True, "window": 2},
        "patience": {**SOON, "dynamic": True, "patience": 2},
        "hold": {**SOON, "dynamic": True, "step": 0.1, "settings": {"rounds": 14, "lr": 0.3}},  # needs a refusal
        "tau": {"tau": 4},
        "tau_counts": {"tau": 4},
        "alpha": {**LOW, "layerwise": True},
        "low": {**LOW, "layerwise": True},
        "layer_scale": {**LOW, "layerwise": True},
        "layer_reference": {**LOW, "layerwise": True},
        "layer_drift": {**LOW, "layerwise": True},
        "layerwise": LOW,
        "dynamic": SOON,
        "gamma": FIXED,
        "split_into": {**FIXED, "split_into": 3},
        "split_after": {**FIXED, "split_after": 3},
        "oracle": {**FIXED, "oracle": (0, 0, 0, 0, 1, 1, 1, 1)},
        "lone": {**FIXED, "gamma": 0.5},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ("split_into", "split_after", "oracle") if getattr(self, name)]
        if self.dynamic and given:
            raise ValueError(f"{' and '.join(given)} set up fixed groups: give dynamic=False too.")
        if self.oracle and self.split_into:
            raise ValueError("oracle already names every client's group: leave split_into=0.")

    # ---- server
    def init(self, fed: Server) -> State:
        if self.oracle and len(self.oracle) != fed.size:
            raise ValueError(
                f"oracle names {len(self.oracle)} clients; the federation has {fed.size}: give one group each."
            )
        size, layers = fed.size, len(fed.layout.layers)
        labels = torch.zeros(size, dtype=torch.long)
        if self.oracle and not self.split_after:
            labels = first_seen(torch.tensor(self.oracle))
        count = int(labels.max()) + 1
        return {
            "clock": 0,
            "period": self._period(fed),
            "layers": [layer.name or "model" for layer in fed.layout.layers],
            "owner": _owner(fed.layout),
            "parameters": fed.layout.parameters,
            "n": fed.n,
            "groups": {
                "models": fed.initial(0).repeat(count, 1),
                "version": torch.zeros(count, layers, dtype=torch.long),
                "since": torch.zeros(count, layers, dtype=torch.long),
                "spread": torch.full((count, layers), torch.inf, dtype=torch.double),
                "shares": torch.full((count, layers, size), 1 / size),
            },
            "labels": labels,
            "held": torch.full((size, layers), -1),
            "distance": torch.zeros(size, size, dtype=torch.double),
            "seen": torch.zeros(size, size, dtype=torch.long),
            "tree": None,
            "leaves": torch.empty(0, dtype=torch.long),
            "leader": torch.full((size,), -1),
            "gamma": 1.0,
            "losses": [],
            "wait": 0,
            "trial": None,
            "event": {},
        }

    def _period(self, fed: Server) -> int:
        """Rounds in one communication round."""
        epochs = 1 if self.tau_counts == "rounds" else fed.training.epochs
        return max(1, ceil(self.tau / epochs))

    def _split_round(self) -> int:
        """Communication round after which fixed groups are made."""
        return self.split_after if self.oracle else max(self.start_rounds, self.split_after)

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        period, layers, out = self._period(fed), len(fed.layout.layers), []
        # r(t) exists from communication round max(3, window + 1) on, and its minimum must stand for `patience` more
        first = max(self.start_rounds, max(2, self.window) + 1 + self.patience) if self.dynamic else self._split_round()
        if rounds <= first * period:
            out.append(
                f"DC-PFL cannot split in {rounds} rounds: the first split comes in round {first * period + 1} at the "
                "earliest. Give more rounds, or lower "
                + ("start_rounds, window, patience or tau." if self.dynamic else "start_rounds, split_after or tau.")
            )
        if self.layerwise and self.layer_reference == "sum" and self.low * layers >= 1:
            out.append(
                f"low={self.low:g} of the sum over {layers} layers is at least what the average layer has, so DC-PFL "
                f"would keep most layers local: use low below {1 / layers:.2g}, or layer_reference='mean'."
            )
        return out

    def select(self, state: State, fed: Server, round: int) -> Tensor:
        return fed.sample(round - state["clock"] % state["period"])  # the same clients until they upload

    def send(self, state: State, ids: Tensor) -> Message:
        asks = self._asks(state, ids)
        old = _parts(state, state["labels"], state["groups"]["models"], ids, asks)
        report_loss = state["clock"] % state["period"] == 0
        if (trial := state["trial"]) is None:
            due = self._due(state)[state["labels"][ids]]
            return Message(own=(old, [_plan(a, d, report_loss) for a, d in zip(asks, due)]))
        new = _parts(state, trial["labels"], trial["groups"]["models"], ids, asks)
        plans = [_plan(a, torch.zeros_like(a), report_loss) for a in asks]  # the verdict says what to upload
        return Message((torch.ones(1, dtype=torch.uint8),), (old, plans, new))

    def round(self, state: State, clients: Clients) -> State:
        if state["trial"] is None:
            return super().round(state, clients)
        sent = self.send(state, clients.ids)
        state, accepted = self._judge(state, clients.run(self.local, sent))
        due = self._due(state)[state["labels"][clients.ids]]
        verdict = torch.tensor([int(accepted)], dtype=torch.uint8)
        plans: list[Tensor] = [_plan(torch.zeros_like(d), d, False) for d in due]
        return self._collect(state, clients.run(self.settle, Message((verdict,), (plans,))))

    def join(self, state: State, client: Client, id: int) -> Message:
        """The whole model of the nearest group: the one whose change from the mean of all groups is most similar to the
        newcomer's, as for a client that joins during training (`_follow`)."""
        models, labels = state["groups"]["models"], state["labels"].index_fill(0, torch.tensor([id]), -1)
        group = 0
        if len(models) > 1:
            mean = overall(models, labels, state["n"])
            moved = (torch.cat([sgd(client, mean)[None], models]) - mean)[:, : state["parameters"]]
            moved = moved / moved.abs().sum(1, keepdim=True).clamp(min=1e-30)
            group = int(torch.cdist(moved[:1], moved[1:], p=1).argmin())
        placed = {**state, "labels": labels.index_fill(0, torch.tensor([id]), group), "trial": None}
        return self.send(placed, torch.tensor([id])).for_position(0)

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        state = {**state, "event": {}}
        losses = [float(loss[0]) for loss in _grouped_losses(state, replies) if len(loss)]
        if losses:
            state["event"] = {"loss": sum(losses) / len(losses)}  # l(t)
            state["losses"] = [*state["losses"], state["event"]["loss"]]
        return self._collect(state, replies)

    def _judge(self, state: State, replies: Replies) -> tuple[State, bool]:
        """Compare old and new groups by the mean training loss after local training (sec. III-C)."""
        _check_lengths(replies, 1, [4] * len(replies.ids))
        losses = [loss.double() for loss in _grouped_losses(state, replies)]
        if not losses:  # only clients without a group answered: keep the groups
            return {**state, "trial": None, "event": {}, "wait": 1}, False
        before_old, before_new, old, new = torch.stack(losses).mean(0).tolist()
        trial, accepted = state["trial"], new < old
        outcome = {"outcome": "accepted" if accepted else "refused", "old": old, "new": new, "gamma": trial["gamma"]}
        state = {**state, "trial": None, "event": {"trial": outcome, "loss": before_new if accepted else before_old}}
        if accepted:  # a new rapid decrease period with its own loss curve
            return {**state, **trial, "losses": [before_new], "wait": 0}, True
        return {**state, "losses": [*state["losses"], before_old], "wait": self.hold + 1}, False

    def _collect(self, state: State, replies: Replies) -> State:
        """Record what clients hold now. If layers were uploaded, average them and decide whether to change groups."""
        ids, labels, due = replies.ids, state["labels"][replies.ids], self._due(state)
        held = state["held"].clone()
        held[ids] = torch.maximum(held[ids], _with_all(state["groups"]["version"])[labels])
        before = {**state, "held": held}
        state = {**before, "clock": state["clock"] + 1}
        if not bool(due.any()):
            return state
        _check_lengths(replies, 0, due[labels][:, state["owner"]].sum(1).tolist())
        uploads = stacked(replies.body[0], due[labels], state["owner"])
        state["groups"] = self._averaged(state, state["groups"], state["labels"], replies, uploads, due)
        if state["tree"] is None:
            state = self._compare(state, ids, uploads)
        elif not self.oracle:
            state = _follow(before, state, ids, uploads, due[labels])
        return self._consider(state, replies, uploads, due)

    def _averaged(
        self, state: State, groups: Tables, labels: Tensor, replies: Replies, uploads: Tensor, due: Tensor
    ) -> Tables:
        return averaged(
            groups,
            labels[replies.ids],
            uploads,
            due[: len(groups["models"])],
            ids=replies.ids,
            n=replies.n,
            now=state["clock"],
            owner=state["owner"],
            parameters=state["parameters"],
            scale=self.layer_scale,
            drift=self.layer_drift,
        )

    def _compare(self, state: State, ids: Tensor, uploads: Tensor) -> State:
        """Sum the discrepancy over the first T_start communication rounds, then build the tree."""
        trained = state["owner"][: state["parameters"]]
        layers = [(trained == layer).nonzero().flatten() for layer in range(len(state["layers"]))]
        pairs = torch.meshgrid(ids, ids, indexing="ij")
        distance, seen = state["distance"].clone(), state["seen"].clone()
        distance[pairs] += pairwise_discrepancy(uploads[:, : len(trained)], self.scale, layers)  # eq. (3)
        seen[pairs] += 1
        state = {**state, "distance": distance, "seen": seen}
        if state["clock"] < self.start_rounds * state["period"]:
            return state
        leaves = seen.diagonal().nonzero().flatten()
        leader = state["leader"].clone()
        leader[leaves] = leaves
        tree = group_tree(_discrepancy(state, leaves))
        return {**state, "tree": tree, "leaves": leaves, "leader": leader, "event": {**state["event"], "tree": True}}

    def _consider(self, state: State, replies: Replies, uploads: Tensor, due: Tensor) -> State:
        """If it is time for other groups, make them from the same uploads and try them in the next round."""
        if not self.dynamic:
            if state["clock"] // state["period"] != self._split_round():
                return state
            gamma = state["gamma"] if self.oracle else self.gamma
            if self.split_into:
                gamma = gamma_for(state["tree"], self.split_into)
            return {**state, **self._split(state, gamma, replies, uploads, due)}
        if state["tree"] is None:
            return state
        end = rapid_decrease_end(state["losses"], self.window, self.patience) if not state["wait"] else None
        ready = end is not None or state["wait"] == 1
        state = {**state, "wait": max(0, state["wait"] - 1)}
        gamma, placed, same = state["gamma"], state["leader"] >= 0, True
        while ready and same and gamma > 0:  # skip steps that change no group: both models of the trial would be equal
            gamma = max(0.0, round(gamma - self.step, 9))
            same = torch.equal(_labels(state, gamma)[placed], state["labels"][placed])
        if same:
            return state
        if end is not None:  # report it as a communication round since the start of the run
            end += state["clock"] // state["period"] - len(state["losses"])
            state["event"] = {**state["event"], "rdp_end": end}
        return {**state, "trial": self._split(state, gamma, replies, uploads, due)}

    def _split(self, state: State, gamma: float, replies: Replies, uploads: Tensor, due: Tensor) -> State:
        """The groups at γ̃: a new group starts with its parent's model and averages what its members just uploaded."""
        labels = first_seen(torch.tensor(self.oracle)) if self.oracle else _labels(state, gamma)
        parent = torch.stack([state["labels"][labels == g].amax() for g in range(int(labels.max()) + 1)])
        groups = {name: table[parent] for name, table in state["groups"].items()}
        groups = self._averaged(state, groups, labels, replies, uploads, due[parent])
        return {"labels": labels, "groups": groups, "gamma": gamma}

    def _asks(self, state: State, ids: Tensor) -> Tensor:
        """[C, L]: layers that a client lacks because its group averaged them since the client last received them."""
        return state["held"][ids] < _with_all(state["groups"]["version"])[state["labels"][ids]]  # type: ignore[no-any-return]

    def _due(self, state: State) -> Tensor:
        """[G + 1, L]: layers that a group's clients upload in this round; the last row is for those without a group."""
        low, period, now = self._low(state), state["period"], state["clock"] + 1
        if now % period:
            return torch.zeros_like(low)
        everything = not self.layerwise or state["tree"] is None or now % (self.alpha * period) == 0
        due = torch.ones_like(low) if everything else ~low
        if self.lone == "silent" and state["tree"] is not None:
            labels = state["labels"]
            due[:-1][labels[labels >= 0].bincount(minlength=len(low) - 1) == 1] = False
        return due

    def _low(self, state: State) -> Tensor:
        spread = state["groups"]["spread"]
        reference = spread.sum(1, keepdim=True) if self.layer_reference == "sum" else spread.mean(1, keepdim=True)
        low = spread < self.low * reference  # eq. (6); false before the first measurement
        return torch.cat([low, torch.zeros_like(low[:1])])

    # ---- client
    @ragged
    def local(self, client: Client, message: Message) -> Reply:
        part, plan, *trial = message.own
        # One model; in a trial the old and the new group's, unless neither has a layer that is new to this client.
        starts = [_start(client, p, plan) for p in ((part, *trial) if len(part) else (part,))]
        measured = starts if bool(_layers(client, plan, 4).any()) else []
        losses = [evaluate(client.net, model, client.data.train)[1] for model in measured]  # l_i(t)
        trained = []
        for model in starts:
            torch.default_generator.manual_seed(client.seed)  # the same dropout noise for both
            trained.append(sgd(client, model))
        if trial:
            after = [evaluate(client.net, model, client.data.train)[1] for model in trained]
            losses = [losses[0], losses[-1], after[0], after[-1]]
        state = {"models": trained, "received": starts[0], "made": client.seed}
        return Reply(
            state, (pick(trained[0], _layers(client, plan, 2), _owner(client.net.layout)), torch.tensor(losses))
        )

    @ragged
    def settle(self, client: Client, message: Message) -> Reply:
        """End of a trial: keep the model of the groups that stand and upload its layers that are due."""
        if client.state.get("made") != client.seed:
            raise RuntimeError("This client took no part in the trial: it has no models to choose from.")
        kept: Tensor = client.state["models"][-1 if bool(message.shared[0]) else 0]
        due = _layers(client, message.own[0], 2)
        return Reply({**client.state, "models": [kept]}, (pick(kept, due, _owner(client.net.layout)), torch.empty(0)))

    def received(self, client: Client, message: Message) -> Model:
        if client.state.get("made") == client.seed:  # after this round's training: the model it started from was kept
            start: Tensor = client.state["received"]
            return start
        return _start(client, message.own[0], message.own[1])

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        if self.use == "group":
            return self.received(client, message)
        model: Tensor = trained().state["models"][0]
        return model

    # ---- to look at
    def mixing(self, state: State) -> dict[str, Tensor]:
        """One matrix for all layers with equal mixing. A layer that would not be sent stays the client's own."""
        everybody = torch.arange(len(state["n"]))
        asks, labels, table = self._asks(state, everybody), state["labels"], state["groups"]["shares"]
        out: dict[str, Tensor] = {}
        for layer, name in enumerate(state["layers"]):
            shares = table[:, layer]
            shares = torch.cat([shares, overall(shares, labels, state["n"])[None]])[labels]
            matrix = torch.where(asks[:, layer, None], shares, torch.eye(len(labels)))
            alike = next((key for key, other in out.items() if torch.equal(other, matrix)), None)
            out[name if alike is None else f"{alike}, {name}"] = matrix if alike is None else out.pop(alike)
        return out

    def describe(self, state: State) -> dict[str, Any]:
        event, low = dict(state["event"]), self._low(state)
        out = {"clusters": state["labels"], "group_count": len(low) - 1, "gamma": state["gamma"]}
        if event.pop("tree", False):
            out["tree"], out["leaves"] = state["tree"], state["leaves"]
            out["discrepancy"] = _discrepancy(state, state["leaves"])
        if "loss" in event:
            r = float(radius(state["losses"], self.window)[-1])
            out["radius"] = r if isfinite(r) else None
        periods = torch.where(low & self.layerwise, self.alpha * state["period"], state["period"])
        for name, table in (("layer_discrepancy", state["groups"]["spread"]), ("layer_period", periods[:-1])):
            rows = [[value if isfinite(value) else None for value in row] for row in table.tolist()]
            out[name] = {str(group): dict(zip(state["layers"], row)) for group, row in enumerate(rows)}
        return out | event


def _owner(layout: Layout) -> Tensor:
    """The layer of each column. Buffers of a module without parameters belong to the last layer."""
    owner = torch.full((layout.size,), len(layout.layers) - 1, dtype=torch.int32)
    for index, layer in enumerate(layout.layers):
        owner[layer.positions] = index
    return owner


def _plan(sent: Tensor, due: Tensor, report_loss: bool) -> Tensor:
    """One byte per layer: 1 this message contains it, 2 upload it, 4 report the loss. Empty if all bytes are 0."""
    plan = sent.to(torch.uint8) + 2 * due.to(torch.uint8) + 4 * report_loss
    return plan if bool(plan.any()) else plan[:0]


def _layers(client: Client, plan: Any, bit: int) -> Tensor:
    return (plan & bit) > 0 if len(plan) else torch.zeros(len(client.net.layout.layers), dtype=torch.bool)


def _start(client: Client, part: Any, plan: Any) -> Tensor:
    """The model a client trains: the layers it was sent, and its own for the others."""
    own = part if len(part) == client.net.layout.size else client.state["models"][0]
    return put(own, part, _layers(client, plan, 1), _owner(client.net.layout))


def _check_lengths(replies: Replies, part: int, lengths: list[int]) -> None:
    """Check the lengths of replies. The engine cannot, because they differ."""
    found = [len(array) for array in replies.body[part]]
    if wrong := [c for c, has, needs in zip(replies.ids.tolist(), found, lengths) if has != needs]:
        raise UnusableReplies(wrong, "replied with fewer or more numbers than requested")


def _grouped_losses(state: State, replies: Replies) -> list[Tensor]:
    """Losses of the clients that have a group."""
    return [loss for loss, label in zip(replies.body[1], state["labels"][replies.ids].tolist()) if label >= 0]


def _with_all(version: Tensor) -> Tensor:
    """Adds a last row for clients without a group (label -1): the mean of all groups, as new as the newest group."""
    return torch.cat([version, version.amax(0, keepdim=True)])


def _parts(state: State, labels: Tensor, models: Tensor, ids: Tensor, asks: Tensor) -> list[Tensor]:
    """Of each client's group model, the layers it lacks."""
    own = labels[ids]
    if bool((own < 0).any()):
        models = torch.cat([models, overall(models, labels, state["n"])[None]])
    parts: dict[tuple[int, ...], Tensor] = {}  # clients that receive the same layers share the array
    keys = [(label, *lacks) for label, lacks in zip(own.tolist(), asks.tolist())]
    for key, lacks in zip(keys, asks):
        if key not in parts:
            parts[key] = pick(models[key[0]], lacks, state["owner"])
    return [parts[key] for key in keys]


def _labels(state: State, gamma: float) -> Tensor:
    return labels_at(state["tree"], state["leaves"], state["leader"], gamma)


def _discrepancy(state: State, leaves: Tensor) -> Tensor:
    grid = torch.meshgrid(leaves, leaves, indexing="ij")
    return filled(state["distance"][grid], state["seen"][grid])


def _follow(before: State, state: State, ids: Tensor, uploads: Tensor, due: Tensor) -> State:
    """A client outside the tree follows, from its first upload on, the client with the most similar change.

    D compares clients that started from one model. These clients started from different ones, so changes are measured
    from the model that the newcomer started from, the mean of all groups, and divided by their length.
    """
    late = state["leader"][ids] < 0
    known = ~late & due.any(1)  # a client alone in its group sends nothing
    layers = due[known].all(0)
    if not bool(late.any()) or not bool(known.any()) or not bool(layers.any()):
        return state
    columns = layers[state["owner"]]
    columns[state["parameters"] :] = False
    moved = (uploads - overall(before["groups"]["models"], before["labels"], state["n"]))[:, columns]
    moved = moved / moved.abs().sum(1, keepdim=True).clamp(min=1e-30)
    leader, labels, held = state["leader"].clone(), state["labels"].clone(), state["held"].clone()
    leader[ids[late]] = ids[known][torch.cdist(moved[late], moved[known], p=1).argmin(1)]
    for client in ids[late].tolist():
        if labels[client] != labels[leader[client]]:
            labels[client] = labels[leader[client]]
            held[client] = -1  # it holds the mean of all groups, not its group's model
    return {**state, "leader": leader, "labels": labels, "held": held}
