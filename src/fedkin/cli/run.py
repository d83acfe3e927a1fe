"""`fedkin run METHOD`: one run."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedkin.cli import config as configs
from fedkin.cli import flags as parsing
from fedkin.cli import settings
from fedkin.cli.flags import Part, UserError

if TYPE_CHECKING:
    from rich.table import Table

USAGE = """\
usage: fedkin run METHOD [flags]

Run one method on one federation of clients.

METHOD is a name from `fedkin list methods`, or your own as file.py:Class. Its
fields are flags, or follow its name: fedkin run fedprox,mu=0.5 --rounds 50

`fedkin run METHOD --help` lists all flags of the method, the data and the run.
"""


@dataclass(frozen=True)
class NameFlag:
    name: str | None = None
    """Label of this run in tables and figures; by default METHOD."""


def command(words: list[str]) -> int:
    names, rest = parsing.split_words(words)
    if len(names) > 1:
        raise UserError(f"run takes one method; given: {' '.join(names)}. To run several: fedkin compare.")
    if not names and (parsing.wants_help(rest) or not rest):
        print(USAGE, end="")
        return 0 if rest else 2
    config = configs.read(rest)
    if not names and len(config.methods) != 1:
        raise UserError("run needs a METHOD before the flags, or one in the --config file.")
    label = names[0] if names else config.methods[0]
    plain, config = configs.with_training(label, config)
    from rich.console import Console

    from fedkin.cli.terminal import console
    from fedkin.engine.loop import run
    from fedkin.methods import method, split_training
    from fedkin.registry import parse_label
    from fedkin.results.files import relabel

    name, fields = parse_label(plain)
    if config.methods and parse_label(config.methods[0])[0] == name:
        fields = {**parse_label(split_training(config.methods[0])[0])[1], **config.fields, **fields}
    default = method(name, **fields)
    flags, extra = parsing.parse(
        rest,
        [Part("method", default, f"method ({name})"), *settings.parts(rest, config, output=NameFlag())],
        f"fedkin run {label}",
        (inspect.getdoc(inspect.getmodule(type(default))) or "").split("\n\n")[0],
        config.values,
    )
    if extra:
        raise UserError(f"'{extra[0]}' is not expected here: METHOD comes first, then flags with their values.")
    shown = flags.own_output.name or label
    federation = settings.federation(flags, flags.options.seed)
    result = run(
        flags.method,
        federation,
        model=flags.model.model,
        model_options=settings.chosen(flags, "model"),
        head=flags.model.head,
        task=settings.task(flags),
        training=flags.training,
        out=flags.output.out,
        fresh=flags.output.fresh,
        label=shown,
        trackers=settings.trackers(flags.output, shown, Console(stderr=True)),
        options=flags.options,
    )
    if result.out is not None:
        relabel(result.out, shown)
        result.summary["method"] = shown
    if flags.output.json:
        print(json.dumps(result.summary, indent=2))
        return 0
    screen = console()
    screen.print(table(shown, result.summary))
    out = flags.output.out
    if out is None:
        print("Nothing was kept: add --out DIR to keep the history, the models and a report.")
    else:
        print(f"The results are in {out}. To see them: fedkin report {out}")
    return 0


def one_class_note(names: list[str]) -> str:
    """Name the clients whose personal model predicts one class only."""
    from fedkin.report.tables import some

    return f"The personal model predicts one class for every test example: {some(names)}"


def table(name: str, summary: dict[str, Any]) -> Table:
    """The headline numbers of a run."""
    from fedkin.report.tables import duration, score, size, terminal

    metric, unit = summary["headline"]["metric"], summary["headline"]["percent"]
    kinds: dict[str, Any] = {kind: summary[kind] for kind in ("personal", "received") if kind in summary}
    if "chosen_by_validation" in summary:
        chosen = summary["chosen_by_validation"]
        kinds[f"round {chosen['round']} *"] = chosen
    rows = [
        (kind, *(score(s[k], in_percent=unit) for k in ("mean", "weighted", "std", "worst_decile")), f"{s['jain']:.3f}")
        for kind, s in kinds.items()
    ]
    time = summary["simulated_seconds"]
    kld = summary["mean_kld"]  # of labels: a regression has none
    unlike = "" if kld is None else f", mean pairwise KLD {kld:.2f}"
    notes = [
        f"{summary['clients']} clients, {summary['rounds']} rounds{unlike}",
        f"{size(summary['bytes_down'])} down, {size(summary['bytes_up'])} up",
        f"simulated time {duration(time['total'])}: {duration(time['compute'])} compute, "
        f"{duration(time['communication'])} communication",
    ]
    if "chosen_by_validation" in summary:
        notes.append(f"* personal, after the round with the best {metric} on validation examples")
    if summary["incomplete"]:
        notes.insert(
            0,
            f"Incomplete: over {summary['measured']} of {summary['clients']} clients. {summary['unmeasured']} could "
            "not be measured: see 'unmeasured' in the history",
        )
    if summary["dropped"]:
        bad = sum(summary["quarantined"].values())
        which = f", {bad} of them quarantined" if bad else ""
        notes.append(f"{summary['dropped']} replies were dropped{which}: see 'dropped' in the history")
    notes += suspicions(summary)
    if metric == "accuracy" and "majority_rate" in summary:
        notes.append(f"Always predicting a client's most frequent class: {score(summary['majority_rate'])} %, mean")
    if alone := summary.get("one_class"):
        notes.append(one_class_note(alone))
    if summary["sees_test"]:
        notes.append("This method learns from test examples, as its paper does: its results are optimistic")
    notes.insert(0, "weighted: by test examples; std: over clients; Jain: 1 if all clients fare alike")
    header = (f"{metric} %" if unit else metric, "mean", "weighted", "std", "worst 10 %", "Jain")
    return terminal(name, header, rows, "\n".join(notes))


def suspicions(summary: dict[str, Any]) -> list[str]:
    """Notes on privacy, hostile clients and what a defense found."""
    from fedkin.report.tables import score

    out = []
    if "privacy" in summary:
        privacy = summary["privacy"]
        out.append(f"Privacy of {privacy['level']}s: epsilon {privacy['epsilon']:.3g} at delta {privacy['delta']:g}")
    if "hostile" in summary:
        kept = score(summary["honest"]["mean"], in_percent=summary["headline"]["percent"])
        who = ", ".join(map(str, summary["hostile"]))
        out.append(f"The {summary['clients'] - len(summary['hostile'])} honest clients have {kept}; hostile: {who}")
    for key, words in (("outliers", "Outliers"), ("left_out", "Left out by the defense")):
        if found := summary.get(key):
            most = sorted(found.items(), key=lambda item: (-item[1], int(item[0])))[:8]
            named = ", ".join(f"client {client} in {times} rounds" for client, times in most)
            out.append(f"{words}: {named}{', …' if len(found) > 8 else ''}")
    return out
