"""Before round 1: wait for the sites, agree on how tables are prepared, and name the run."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from fedkin.data.cells import Reading
from fedkin.data.preprocess import Fit, agreed
from fedkin.deploy.codec import Malformed, SiteInfo, decode_statistics, encode_text, refusal
from fedkin.deploy.directory import NodeDirectory
from fedkin.deploy.lines import say
from fedkin.deploy.plan import Plan
from fedkin.results.files import write_json


def gathered(directory: NodeDirectory, plan: Plan, before: Mapping[str, Any]) -> list[str]:
    """Wait for all clients; return those that are missing. Raise if one of them cannot take part."""
    absent = directory.gather(plan.wait)
    if refused := {name: why for name, why in directory.refused.items() if name not in before}:
        raise RuntimeError(
            "; ".join(f"{name} cannot take part: {why.rstrip('.')}" for name, why in sorted(refused.items()))
            + ". Fix it there (`fedkin deploy check SITE_FILE`), restart its supernode, and run again."
        )
    return absent


def preprocessing_of(directory: NodeDirectory, plan: Plan, out: Path, absent: Sequence[str]) -> str:
    """The preprocessing of all sites as JSON, made once from the statistics they share, and kept with the run."""
    path = out / "preprocessing.json"
    if path.exists() and (out / "config.json").exists():
        return path.read_text()
    if absent:
        raise RuntimeError(f"run.fit='{plan.fit}' needs all sites at the start; {', '.join(absent)} is not connected.")
    answers = directory.ask("statistics", encode_text(plan.fit), plan.wait)
    statistics, problems = {}, [f"{name} did not answer" for name in plan.clients if name not in answers]
    for name, record in sorted(answers.items()):
        try:
            statistics[name] = decode_statistics(record)
        except Malformed as error:
            problems.append(f"{name}: {refusal(record) or error}")
    if problems:
        raise RuntimeError(f"The sites could not agree on how to prepare their tables: {'; '.join(problems)}.")
    made = agreed(statistics, cast(Fit, plan.fit), reading=Reading())
    write_json(path, made.to_json(), durable=True)
    return path.read_text()


def name_of_run(out: Path) -> str:
    """The run's own name. A resumed run keeps it, whatever Flower calls the run."""
    path = out / "run.json"
    if not path.exists() or not (out / "config.json").exists():
        write_json(path, {"run": secrets.token_hex(8)}, durable=True)
    name: str = json.loads(path.read_text())["run"]
    return name


def check_infos(infos: Mapping[str, SiteInfo], plan: Plan, absent: Sequence[str]) -> None:
    """Raise if a client has never introduced itself, neither now nor when the run began."""
    unknown = [name for name in plan.clients if name not in infos]
    if unknown:
        raise RuntimeError(
            f"Of the clients {', '.join(plan.clients)}, {', '.join(unknown)} did not connect within {plan.wait:g} s: "
            "start their supernodes, remove them from run.clients, or make run.wait longer."
        )
    for name in absent:
        say(f"{name} is not connected; the run continues without it until it comes back")
