"""The headline numbers of a run, read from its history alone, in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedkin.maths.fairness import fairness
from fedkin.results.history import ALL, History

PROTOCOL = (
    "personal: the model that the method says this client uses; received: the model as sent. Each on the client's own "
    "test examples, after the last round, mean over all clients; chosen_by_validation: the evaluated round with the "
    "best mean validation score, never the best on test."
)
QUARANTINED = "quarantined: "  # how the history marks a reply that arrived but could not be used
COSTS = ("bytes_down", "bytes_up", "flops", "compute_seconds", "communication_seconds")
Values = dict[int, float | None]


# for histories from before there were tasks
ACCURACY: dict[str, Any] = {"headline": "accuracy", "metrics": ["accuracy"], "higher_is_better": True, "percent": True}


def summarize(history: History, config: dict[str, Any]) -> dict[str, Any]:
    last = config["options"]["rounds"]
    task = config.get("task", ACCURACY)
    higher, metrics = task["higher_is_better"], (*task["metrics"], "loss")
    names = ("personal", "received", "validation", *(f"personal_{m}" for m in metrics))
    scores: dict[str, dict[int, Values]] = {name: {} for name in names}
    sums: dict[str, Any] = dict.fromkeys(COSTS, 0)
    weight: dict[int, float] = {}
    unmeasured: dict[int | None, str] = {}
    majority: dict[int, float] = {}
    one_class: list[int] = []
    dropped: Counter[int | None] = Counter()
    quarantined: Counter[int | None] = Counter()
    suspected: dict[str, Counter[int | None]] = {"outlier": Counter(), "left_out": Counter()}
    hostile: list[int] = []
    released: Counter[int | None] = Counter()
    examples: dict[int | None, int] = {}
    lost_rounds, mean_kld = 0, None
    for round, client, metric, value, scope in history:
        if metric in scores and scope == ALL and client is not None:
            if round == last or metric in ("personal", "validation"):  # the others are needed only for the last round
                scores[metric].setdefault(round, {})[client] = value
        elif metric in sums:
            sums[metric] += value
        elif metric == "test_examples" and client is not None:
            weight[client] = value
        elif metric == "majority_rate" and client is not None:
            majority[client] = value
        elif metric == "one_class" and round == last and client is not None:
            one_class.append(client)
        elif metric == "unmeasured" and round == last and scope == ALL:
            unmeasured[client] = value
        elif metric == "dropped":
            dropped[client] += 1
            quarantined[client] += str(value).startswith(QUARANTINED)
        elif metric in suspected:
            suspected[metric][client] += 1
        elif metric == "hostile" and client is not None:
            hostile.append(client)
        elif metric == "released":
            released[client] += value
        elif metric == "train_examples":
            examples[client] = value
        elif metric == "lost_round":
            lost_rounds += 1
        elif metric == "mean_kld":
            mean_kld = value
    if last not in scores["personal"]:
        why = next(iter(unmeasured.values()), "there are no measurements of it")
        raise ValueError(f"No client could be measured after the last round, {last}: {why}")
    measured = scores["personal"][last]
    out: dict[str, Any] = {
        "method": config["label"],
        "rounds": last,
        "clients": len(weight),
        "measured": len(measured),
        "incomplete": not _present(config, weight) <= measured.keys(),
        "headline": {"metric": task["headline"], "higher_is_better": higher, "percent": task["percent"]},
        "personal": spread(measured, weight, higher),
    }
    if received := spread(scores["received"].get(last, {}), weight, higher):
        out["received"] = received
    others = {m: list(scores[f"personal_{m}"].get(last, {}).values()) for m in metrics if m != task["headline"]}
    out["metrics"] = {m: float(np.mean(there)) for m, v in others.items() if (there := [x for x in v if x is not None])}
    if majority:
        out["majority_rate"] = float(np.mean(list(majority.values())))
    out["one_class"] = [_client_name(config, client) for client in one_class]
    validation = {r: [x for x in v.values() if x is not None] for r, v in sorted(scores["validation"].items())}
    scored = {r: float(np.mean(v)) for r, v in validation.items() if v}
    if scored:
        best = max(scored, key=lambda r: (scored[r] if higher else -scored[r], -r))
        out["chosen_by_validation"] = {"round": best, **spread(scores["personal"].get(best, {}), weight, higher)}
    compute, communication = sums["compute_seconds"], sums["communication_seconds"]
    out |= {name: sums[name] for name in ("bytes_down", "bytes_up", "flops")}
    out["simulated_seconds"] = {"compute": compute, "communication": communication, "total": compute + communication}
    out["dropped"] = dropped.total()
    out["quarantined"] = {str(c): n for c, n in sorted(quarantined.items(), key=lambda kv: kv[0] or 0) if n}
    if hostile:
        out["hostile"] = hostile
        out["honest"] = spread({c: v for c, v in measured.items() if c not in hostile}, weight, higher)
    if config["options"].get("defend"):
        out["outliers"] = {str(c): n for c, n in sorted(suspected["outlier"].items(), key=lambda kv: kv[0] or 0)}
        out["left_out"] = {str(c): n for c, n in sorted(suspected["left_out"].items(), key=lambda kv: kv[0] or 0)}
    if text := config["options"].get("privacy", ""):
        from fedkin.robust.privacy import Privacy, sampling_rate  # imported here because it imports torch

        privacy = Privacy.read(text)
        assert privacy is not None
        batch = config["training"]["batch_size"]
        looked = [(count, sampling_rate(examples[client], batch)) for client, count in released.items()]
        if privacy.level == "client":
            looked = [(count, 1.0) for count, _ in looked]
        out["privacy"] = {**privacy.to_summary(), "epsilon": privacy.epsilon(looked)}
    out["lost_rounds"] = lost_rounds
    out["unmeasured"] = len(unmeasured)
    out["mean_kld"] = mean_kld
    out["sees_test"] = config["sees_test"]
    out["evaluation"] = PROTOCOL
    return out


def spread(
    values: Mapping[int, float | None], weight: Mapping[int, float], higher_is_better: bool = True
) -> dict[str, float]:
    """Mean, mean weighted by test examples, and fairness of a metric, over the clients for which it is defined."""
    values = {client: value for client, value in values.items() if value is not None}
    if not values:
        return {}
    v = np.array(list(values.values()), float)
    w = np.array([weight[client] for client in values], float)
    return {
        "mean": float(v.mean()),
        "weighted": float((v * w).sum() / w.sum()),
        **fairness(v, higher_is_better=higher_is_better),
    }


def _client_name(config: dict[str, Any], client: int) -> str:
    names = config.get("inputs", {}).get("clients", [])
    return names[client] if client < len(names) else f"client {client}"


def _present(config: dict[str, Any], clients: Mapping[int, float]) -> set[int]:
    """The clients that are part of the federation in the last round."""
    options = config["options"]
    arrive = {int(c): r for c, r in options.get("arrive", {}).items()}
    leave = {int(c): r for c, r in options.get("leave", {}).items()}
    last = options["rounds"]
    return {c for c in clients if arrive.get(c, 1) <= last < leave.get(c, last + 1)}
