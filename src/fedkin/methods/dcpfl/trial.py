"""When to split (DC-PFL, sec. III-C): after a rapid decrease period finer groups are tried for a round, and kept if
their loss is lower."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkin.methods.dcpfl.curvature import rapid_decrease_end
from fedkin.methods.dcpfl.messages import check_lengths
from fedkin.methods.dcpfl.tree import finer
from fedkin.protocol import Replies, State


def proposed(state: State, window: int, patience: int, step: float) -> tuple[State, float | None]:
    """The γ̃ to try in the next round: once a rapid decrease period ended, or t_sp rounds after a refusal; else None."""
    end = rapid_decrease_end(state["losses"], window, patience) if not state["wait"] else None
    ready = end is not None or state["wait"] == 1
    state = {**state, "wait": max(0, state["wait"] - 1)}
    gamma = finer(state, step) if ready else None
    if gamma is not None and end is not None:  # report it as a communication round since the start of the run
        end += state["clock"] // state["period"] - len(state["losses"])
        state["event"] = {**state["event"], "rdp_end": end}
    return state, gamma


def judged(state: State, replies: Replies, hold: int) -> tuple[State, bool]:
    """Compare G⁰ and G¹ by the mean training loss after local training: the new groups stand if theirs is lower."""
    check_lengths(replies, 1, [4] * len(replies.ids))
    losses = [loss.double() for loss in losses_in_groups(state, replies)]
    if not losses:  # only clients without a group answered: keep the groups
        return {**state, "trial": None, "event": {}, "wait": 1}, False
    before_old, before_new, old, new = torch.stack(losses).mean(0).tolist()
    trial, accepted = state["trial"], new < old
    outcome = {"outcome": "accepted" if accepted else "refused", "old": old, "new": new, "gamma": trial["gamma"]}
    state = {**state, "trial": None, "event": {"trial": outcome, "loss": before_new if accepted else before_old}}
    if accepted:  # a new rapid decrease period with its own loss curve
        return {**state, **trial, "losses": [before_new], "wait": 0}, True
    return {**state, "losses": [*state["losses"], before_old], "wait": hold + 1}, False


def losses_in_groups(state: State, replies: Replies) -> list[Tensor]:
    """Losses of the clients that have a group."""
    return [loss for loss, label in zip(replies.body[1], state["labels"][replies.ids].tolist()) if label >= 0]
