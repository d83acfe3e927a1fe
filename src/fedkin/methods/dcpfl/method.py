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
| τ_{g,l}, τ, α, 0.1 | `due_layers`, tau (tau_counts), alpha, low |

Deviations, each with its reason in docs/methods/dcpfl.md: S uses the smallest and largest value of all models together;
a layer's share of the sum over layers is compared with 0.1; γ̃ falls by λ (the text says "adding") and keeps falling
while the groups stay the same; l_w is a plain mean; r = +inf where l'' ≤ 0; a new period starts a new loss curve.
A layer that is not due stays in the client's private state. A client is sent exactly the layers that its group averaged
since the client last received them. A client that joins after the tree was built follows the client whose training
moves the model most similarly.

Beside this file: discrepancy.py (eq. 3 and 5), tree.py (sec. III-B), curvature.py and trial.py (III-C), layerwise.py
(IV), messages.py (what travels), view.py (what the history shows).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import torch
from torch import Tensor

from fedkin.bounds import Bound, Count, Fraction, NonNegative, PositiveFraction, Whole
from fedkin.client.evaluate import evaluate
from fedkin.client.training import sgd
from fedkin.methods.dcpfl import view
from fedkin.methods.dcpfl.layerwise import (
    Tables,
    averaged,
    due_layers,
    lacking,
    low_layers,
    newest,
    overall,
    stacked,
    started,
)
from fedkin.methods.dcpfl.messages import check_lengths, loss_wanted, missing_parts, model_of, owner_of, plan_of, upload
from fedkin.methods.dcpfl.tree import compared, directions, first_seen, followed, gamma_for, groups_at, grown
from fedkin.methods.dcpfl.trial import judged, losses_in_groups, proposed
from fedkin.protocol import Client, Clients, Message, Method, Model, Replies, Reply, Server, State, ragged

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
        return {
            "clock": 0,  # rounds done
            "period": self._period(fed),
            "layers": [layer.name or "model" for layer in fed.layout.layers],
            "owner": owner_of(fed.layout),  # the layer of each column of a vector
            "parameters": fed.layout.parameters,
            "n": fed.n,
            "groups": started(fed.initial(0), int(labels.max()) + 1, layers, size),
            "labels": labels,  # each client's group; -1: none yet
            "held": torch.full((size, layers), -1),  # version of each layer that a client holds
            "distance": torch.zeros(size, size, dtype=torch.double),
            "seen": torch.zeros(size, size, dtype=torch.long),
            "tree": None,
            "leaves": torch.empty(0, dtype=torch.long),
            "leader": torch.full((size,), -1),  # whose group a client joins; a client of the tree leads itself
            "gamma": 1.0,
            "losses": [],
            "wait": 0,  # rounds until finer groups may be tried again
            "trial": None,  # the groups to try in this round
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
        asks, report_loss = lacking(state, ids), state["clock"] % state["period"] == 0
        old = missing_parts(state, state["labels"], state["groups"]["models"], ids, asks)
        if (tried := state["trial"]) is None:
            due = self._due(state)[state["labels"][ids]]
            return Message(own=(old, [plan_of(a, d, report_loss) for a, d in zip(asks, due)]))
        new = missing_parts(state, tried["labels"], tried["groups"]["models"], ids, asks)
        plans = [plan_of(a, torch.zeros_like(a), report_loss) for a in asks]  # the verdict says what to upload
        return Message((torch.ones(1, dtype=torch.uint8),), (old, plans, new))

    def round(self, state: State, clients: Clients) -> State:
        if state["trial"] is None:
            return super().round(state, clients)
        sent = self.send(state, clients.ids)
        state, accepted = judged(state, clients.run(self.local, sent), self.hold)
        due = self._due(state)[state["labels"][clients.ids]]
        verdict = torch.tensor([int(accepted)], dtype=torch.uint8)
        plans: list[Tensor] = [plan_of(torch.zeros_like(d), d, False) for d in due]
        return self._collect(state, clients.run(self.settle, Message((verdict,), (plans,))))

    def join(self, state: State, client: Client, id: int) -> Message:
        """The whole model of the nearest group: the one whose change from the mean of all groups is most similar to the
        newcomer's, as for a client that joins during training (tree.py)."""
        models, labels = state["groups"]["models"], state["labels"].index_fill(0, torch.tensor([id]), -1)
        group = 0
        if len(models) > 1:
            mean = overall(models, labels, state["n"])
            moved = torch.cat([sgd(client, mean)[None], models])
            moved = directions(moved, mean, slice(state["parameters"]))
            group = int(torch.cdist(moved[:1], moved[1:], p=1).argmin())
        placed = {**state, "labels": labels.index_fill(0, torch.tensor([id]), group), "trial": None}
        return self.send(placed, torch.tensor([id])).for_position(0)

    def reply_bounds(self, fed: Server, client: int) -> Mapping[int, Bound]:
        return {1: fed.loss_bound}

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        state = {**state, "event": {}}
        losses = [float(loss[0]) for loss in losses_in_groups(state, replies) if len(loss)]
        if losses:
            state["event"] = {"loss": sum(losses) / len(losses)}  # l(t)
            state["losses"] = [*state["losses"], state["event"]["loss"]]
        return self._collect(state, replies)

    def _collect(self, state: State, replies: Replies) -> State:
        """Record what clients hold now. If layers were uploaded, average them and decide whether to change groups."""
        ids, labels, due = replies.ids, state["labels"][replies.ids], self._due(state)
        held = state["held"].clone()
        held[ids] = torch.maximum(held[ids], newest(state["groups"]["version"])[labels])
        before = {**state, "held": held}
        state = {**before, "clock": state["clock"] + 1}
        if not bool(due.any()):
            return state
        check_lengths(replies, 0, due[labels][:, state["owner"]].sum(1).tolist())
        uploads = stacked(replies.body[0], due[labels], state["owner"])
        state["groups"] = self._averaged(state, state["groups"], state["labels"], replies, uploads, due)
        if state["tree"] is None:
            state = compared(state, ids, uploads, self.scale)
            if state["clock"] >= self.start_rounds * state["period"]:
                state = grown(state)
        elif not self.oracle:
            state = followed(before, state, ids, uploads, due[labels])
        return self._regrouped(state, replies, uploads, due)

    def _regrouped(self, state: State, replies: Replies, uploads: Tensor, due: Tensor) -> State:
        """If it is time for other groups, make them from the same uploads. Finer groups are tried in the next round."""
        if not self.dynamic:
            if state["clock"] // state["period"] != self._split_round():
                return state
            gamma = state["gamma"] if self.oracle else self.gamma
            if self.split_into:
                gamma = gamma_for(state["tree"], self.split_into)
            return {**state, **self._split(state, gamma, replies, uploads, due)}
        if state["tree"] is None:
            return state
        state, lower = proposed(state, self.window, self.patience, self.step)
        return state if lower is None else {**state, "trial": self._split(state, lower, replies, uploads, due)}

    def _split(self, state: State, gamma: float, replies: Replies, uploads: Tensor, due: Tensor) -> State:
        """The groups at γ̃: a new group starts with its parent's model and averages what its members just uploaded."""
        labels = first_seen(torch.tensor(self.oracle)) if self.oracle else groups_at(state, gamma)
        parent = torch.stack([state["labels"][labels == g].amax() for g in range(int(labels.max()) + 1)])
        groups = {name: table[parent] for name, table in state["groups"].items()}
        groups = self._averaged(state, groups, labels, replies, uploads, due[parent])
        return {"labels": labels, "groups": groups, "gamma": gamma}

    def _averaged(self, *arguments: Any) -> Tables:
        return averaged(*arguments, scale=self.layer_scale, drift=self.layer_drift)

    def _due(self, state: State) -> Tensor:
        silent = self.lone == "silent"
        return due_layers(state, self._low(state), self.alpha, layerwise=self.layerwise, silent=silent)

    def _low(self, state: State) -> Tensor:
        low = low_layers(state["groups"]["spread"], self.low, self.layer_reference)
        return torch.cat([low, torch.zeros_like(low[:1])])  # the last row: clients without a group

    # ---- client
    @ragged
    def local(self, client: Client, message: Message) -> Reply:
        part, plan, *tried = message.own
        # One model; in a trial the old and the new group's, unless neither has a layer that is new to this client.
        starts = [model_of(client, p, plan) for p in ((part, *tried) if len(part) else (part,))]
        measured = starts if loss_wanted(client, plan) else []
        losses = [evaluate(client.net, model, client.data.train)[1] for model in measured]  # l_i(t)
        trained = []
        for model in starts:
            torch.default_generator.manual_seed(client.seed)  # the same dropout noise for both
            trained.append(sgd(client, model))
        if tried:
            after = [evaluate(client.net, model, client.data.train)[1] for model in trained]
            losses = [losses[0], losses[-1], after[0], after[-1]]
        state = {"models": trained, "received": starts[0], "made": client.seed}
        return Reply(state, (upload(client, trained[0], plan), torch.tensor(losses)))

    @ragged
    def settle(self, client: Client, message: Message) -> Reply:
        """End of a trial: keep the model of the groups that stand and upload its layers that are due."""
        if client.state.get("made") != client.seed:
            raise RuntimeError("This client took no part in the trial: it has no models to choose from.")
        kept: Tensor = client.state["models"][-1 if bool(message.shared[0]) else 0]
        return Reply({**client.state, "models": [kept]}, (upload(client, kept, message.own[0]), torch.empty(0)))

    def received(self, client: Client, message: Message) -> Model:
        if client.state.get("made") == client.seed:  # after this round's training: the model it started from was kept
            start: Tensor = client.state["received"]
            return start
        return model_of(client, message.own[0], message.own[1])

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        if self.use == "group":
            return self.received(client, message)
        model: Tensor = trained().state["models"][0]
        return model

    # ---- to look at
    def mixing(self, state: State) -> dict[str, Tensor]:
        return view.mixing(state)

    def describe(self, state: State) -> dict[str, Any]:
        low = self._low(state)[:-1] & self.layerwise
        return view.described(state, torch.where(low, self.alpha * state["period"], state["period"]), self.window)
