"""The headline numbers of a run, read from its history alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.maths.fairness import fairness
from fedkin.results.history import History

PROTOCOL = (
    "personal: the model that the method says this client uses; received: the model as sent. Each on the client's own "
    "test examples, after the last round, mean over all clients; chosen_by_validation: the evaluated round with the "
    "best mean validation score, never the best on test."
)


# of histories from before there were tasks
ACCURACY = {"headline": "accuracy", "metrics": ["accuracy"], "higher_is_better": True, "percent": True}


def summarize(history: History, config: dict[str, Any]) -> dict[str, Any]:
    rounds = history.rounds("personal")
    last = config["options"]["rounds"]
    if last not in rounds:
        why = next((r.value for r in history.select("unmeasured", round=last)), "there are no measurements of it")
        raise ValueError(f"No client could be measured after the last round, {last}: {why}")
    weight = history.values("test_rows", round=0, scope="")
    task = config.get("task", ACCURACY)
    higher = task["higher_is_better"]
    out: dict[str, Any] = {
        "method": config["label"],
        "rounds": config["options"]["rounds"],
        "clients": len(weight),
        "headline": {"metric": task["headline"], "higher_is_better": higher, "percent": task["percent"]},
        "personal": spread(history, "personal", last, weight, higher),
    }
    if received := spread(history, "received", last, weight, higher):
        out["received"] = received
    others = {
        m: history.values(f"personal_{m}", round=last) for m in (*task["metrics"], "loss") if m != task["headline"]
    }
    out["metrics"] = {
        m: float(np.mean(there)) for m, v in others.items() if (there := [x for x in v.values() if x is not None])
    }
    validation = {r: list(history.values("validation", round=r).values()) for r in rounds}
    scored = {r: float(np.mean(there)) for r, v in validation.items() if (there := [x for x in v if x is not None])}
    if scored:
        best = max(scored, key=lambda r: (scored[r] if higher else -scored[r], -r))
        out["chosen_by_validation"] = {"round": best, **spread(history, "personal", best, weight, higher)}
    out["bytes_down"] = sum(r.value for r in history.select("bytes_down"))
    out["bytes_up"] = sum(r.value for r in history.select("bytes_up"))
    out["flops"] = sum(r.value for r in history.select("flops"))
    compute = sum(r.value for r in history.select("compute_seconds"))
    communication = sum(r.value for r in history.select("communication_seconds"))
    out["simulated_seconds"] = {"compute": compute, "communication": communication, "total": compute + communication}
    out["dropped"] = sum(1 for _ in history.select("dropped"))
    out["lost_rounds"] = sum(1 for _ in history.select("lost_round"))
    out["unmeasured"] = sum(1 for _ in history.select("unmeasured", round=last))
    out["mean_kld"] = next((r.value for r in history.select("mean_kld")), None)
    out["sees_test"] = config["sees_test"]
    out["evaluation"] = PROTOCOL
    return out


def spread(
    history: History, metric: str, round: int, weight: dict[int, Any], higher_is_better: bool = True
) -> dict[str, float]:
    """Mean, mean weighted by test examples, and fairness of a metric, over all clients for which it is defined."""
    values = {client: value for client, value in history.values(metric, round=round).items() if value is not None}
    if not values:
        return {}
    v = np.array(list(values.values()), float)
    w = np.array([weight[client] for client in values], float)
    return {
        "mean": float(v.mean()),
        "weighted": float((v * w).sum() / w.sum()),
        **fairness(v, higher_is_better=higher_is_better),
    }
