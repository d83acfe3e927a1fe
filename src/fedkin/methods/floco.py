"""Floco: Federated Learning over Connected Modes.
Grinwald, Wiesner, Nakajima. NeurIPS 2024.

| symbol | here |
|---|---|
| θ_1 … θ_M | state "endpoints" [M, head]: heads that span the solution simplex; the body is common |
| (1) θ_α = Σ_m α_m θ_m, α in the simplex | a head inside it |
| (2) α drawn in every step: uniform in the simplex, after round τ in R_i | local training of body and endpoints |
| (3) β_i: the clients' changes of the endpoints, by PCA to M numbers, projected onto the simplex | state "centers" |
| (4) R_i = {α : ‖α − β_i‖_1 ≤ ρ} | subregion of client i; τ, ρ: tau, rho |
| (5) Floco+: min F_i(v) + λ/2 ‖v − θ‖² | client state "body", "endpoints", as in Ditto; personal_epochs, lam |

The numbers are ours. (3) takes the scale at which the projected clients lie furthest apart (Riesz energy). A client
uses the head at β_i. Deviations: the replies of round τ serve for (3) and for the average (the authors' code trains
twice); all clients are asked then, and those whose reply is missing, or who join later, keep the whole simplex. It
holds weight and bias (theirs: the weight). (2) moves from β_i toward a uniform point, so α stays in it
(theirs may leave it).

Endpoint weights start by Glorot's rule, as in the authors' code: the center of the simplex is a mean of M independent
heads, so with PyTorch's smaller weights it would hardly pass a gradient to the body. A step at α moves endpoint m by
α_m of a head's step, so the center learns at 1/M of FedAvg's pace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import Count, NonNegative, Whole
from fedkin.client.parts import check_head, linear_head, sgd_with
from fedkin.client.steps import joined
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.maths.simplex import near, principal_scores, spread_on_simplex
from fedkin.maths.steps import local_steps
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, with_rows

Parts = tuple[Tensor, ...]  # body and endpoints
ENOUGH = 50  # steps of FedAvg that a run should be worth to each endpoint

CITATION = r"""@inproceedings{grinwald2024federated,
  title = {Federated Learning over Connected Modes},
  author = {Grinwald, Dennis and Wiesner, Philipp and Nakajima, Shinichi},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2024}
}"""


@dataclass(frozen=True)
class Floco(Method):
    paper = "Grinwald et al., NeurIPS 2024"
    citation = CITATION
    travels = "body and M heads both ways, M numbers down"
    stays = "nothing; Floco+: a simplex of its own"

    endpoints: Count = 10
    """M: heads that span the simplex; 1 is FedAvg."""
    tau: Count = 5
    """τ: the round whose replies assign clients to subregions."""
    rho: NonNegative = 0.1
    """ρ: L1 radius of a subregion; 0: the whole simplex in training."""
    personal_epochs: Whole = 0
    """Epochs of a personal simplex held near the received one (Floco+); 0: none."""
    lam: NonNegative = 1.0
    """λ: how strongly it is held."""

    matters = {"tau": {"tau": 1}, "rho": {"tau": 1}, "lam": {"personal_epochs": 1}, "personal_epochs": {"tau": 1}}

    # ---- server
    def init(self, fed: Server) -> State:
        check_head(fed.layout, fed.classes, "Floco")
        endpoints = torch.stack([fed.initial(m)[fed.layout.head] for m in range(self.endpoints)])
        generator = torch.Generator().manual_seed(int(fed.rng(0, 0xF10C0).integers(1 << 62)))
        for head in endpoints:
            weight, _ = linear_head(fed.layout, head, "Floco")  # says so now if there is no such head
            if self.endpoints > 1:  # one endpoint is FedAvg, with the head that the network starts with
                torch.nn.init.xavier_normal_(weight, generator=generator)
        return {
            "body": fed.initial(0)[fed.layout.body],
            "endpoints": endpoints,
            "centers": torch.full((fed.size, self.endpoints), 1 / self.endpoints),
            "assigned": torch.zeros(fed.size, dtype=torch.bool),
            "round": 0,
            "share": fed.equal_shares(),
        }

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        out = []
        if rounds < self.tau:
            out.append(
                f"Floco gives clients their regions of the simplex after round {self.tau}; in {rounds} rounds all use "
                "its center. Use more rounds or a smaller tau."
            )
        n, training = float(fed.n[fed.ids].double().mean()), fed.training
        steps = rounds * local_steps(round(n), training.batch_size, training.epochs)
        if self.endpoints > 1 and steps < ENOUGH * self.endpoints:
            out.append(
                f"Floco's {self.endpoints} endpoints share every step, so about {steps} steps train each like "
                f"{steps / self.endpoints:.0f} of FedAvg: too few where clients have most classes. Use fewer "
                "endpoints, more rounds or epochs, or a larger lr."
            )
        if len(fed.ids) < 2:
            out.append("Floco's regions need at least two clients; a single client uses the center of the simplex.")
        return out

    def select(self, state: State, fed: Server, round: int) -> Tensor:
        assigns = state["round"] + 1 >= self.tau and not state["assigned"].any()
        return fed.ids if assigns else fed.sample(round)

    def send(self, state: State, ids: Tensor) -> Message:
        own = (state["centers"][ids], state["assigned"][ids].float())
        return Message(shared=(state["body"], state["endpoints"]), own=own)

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        bodies, endpoints = replies.body
        new = {**state, "round": state["round"] + 1}
        if not state["assigned"].any() and len(replies.ids) > 1 and new["round"] >= self.tau:
            changes = (endpoints - state["endpoints"]).flatten(1).double().numpy()
            points = spread_on_simplex(principal_scores(changes, self.endpoints))  # (3)
            new["centers"] = with_rows(state["centers"], replies.ids, torch.from_numpy(points).float())
            new["assigned"] = with_rows(state["assigned"], replies.ids, torch.ones(len(points), dtype=torch.bool))
        flat = endpoints.flatten(1)
        means = averaged(len(state["share"]), replies.ids, replies.weights, body=bodies, endpoints=flat)
        return {**new, **means, "endpoints": means["endpoints"].view_as(state["endpoints"])}

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        body, endpoints = self._train(client, message, message.shared, personal=False)
        if not self.personal_epochs:
            return Reply({}, (body, endpoints))
        own = (client.state["body"], client.state["endpoints"]) if client.state else message.shared
        own_body, own_endpoints = self._train(client, message, own, personal=True)
        return Reply({"body": own_body, "endpoints": own_endpoints}, (body, endpoints))

    def _train(self, client: Client, message: Message, begin: Parts, *, personal: bool) -> Parts:
        layout, shared = client.net.layout, self._at(client, message, message.shared)
        center, assigned = message.own[0].double().numpy(), bool(message.own[1])  # type: ignore[union-attr]
        rng = np.random.default_rng([client.seed, int(personal)])
        held = client.net.pieces(shared[: layout.parameters])

        def loss(net: Network, extra: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
            alpha = torch.as_tensor(near(center, self.rho if assigned else 0.0, rng)).float()  # (2)
            head = linear_head(layout, alpha @ extra[0], "Floco")  # (1)
            value = net.task.loss(F.linear(net.features(x), *head), y)
            if personal:
                pairs = [(extra[0], message.shared[1]), *zip(net.parameters, held)]
                value = value + self.lam / 2 * torch.stack([(v - w).square().sum() for v, w in pairs]).sum()  # (5)
            return value

        start, epochs = self._at(client, message, begin), self.personal_epochs if personal else None
        model, (endpoints,) = sgd_with(client, start, [begin[1]], loss, epochs=epochs)
        return model[layout.body], endpoints

    def _at(self, client: Client, message: Message, parts: Parts) -> Tensor:
        """The model at β_i."""
        layout, center = client.net.layout, torch.as_tensor(message.own[0])
        return joined(layout.size, (layout.body, parts[0]), (layout.head, center @ parts[1]))

    # ---- use
    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        state = client.state or trained().state if self.personal_epochs else {}
        return self._at(client, message, (state["body"], state["endpoints"]) if state else message.shared)

    def received(self, client: Client, message: Message) -> Model:
        return self._at(client, message, message.shared)

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])

    def describe(self, state: State) -> dict[str, Any]:
        return {"centers": state["centers"]} if state["assigned"].any() else {}
