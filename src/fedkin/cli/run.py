"""`fedkin run METHOD`: one run."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

from fedkin.cli import flags as parsing
from fedkin.cli.flags import Setting, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from fedkin.data.federation import Federation


def command(words: list[str]) -> int:
    from rich.console import Console

    from fedkin.cli.terminal import console

    names, rest = parsing.split_words(words)
    if len(names) != 1:
        from fedkin.methods import METHODS

        if names:
            raise UserError(f"run takes one method, given: {' '.join(names)}. To compare several: fedkin compare.")
        print(f"usage: fedkin run METHOD [flags]\n\nMETHOD: {', '.join(METHODS)}, or your own as file.py:Class.")
        print("`fedkin run METHOD --help` lists the flags of the method, the data and the partition named.")
        return 0 if "--help" in rest or "-h" in rest else 2
    from fedkin.engine.loop import run
    from fedkin.methods import method

    default = method(names[0])
    parts, prefixed = parsing.common(rest)
    parts = {"method": (type(default), default), **parts}
    about = (inspect.getdoc(inspect.getmodule(type(default))) or "").split("\n\n")[0]
    flags = parsing.parse(rest, parts, prefixed, f"fedkin run {names[0]}", about)
    setting: Setting = flags.setting
    federation = parsing.federation(flags, flags.options.seed)
    result = run(
        flags.method,
        federation,
        model=setting.model,
        model_options=parsing.chosen(flags, "model"),
        head=setting.head,
        training=flags.training,
        out=setting.out,
        fresh=setting.fresh,
        label=names[0],
        trackers=parsing.trackers(setting, names[0], Console(stderr=True)),
        options=flags.options,
    )
    if setting.json:
        print(json.dumps(result.summary, indent=2))
        return 0
    _show(names[0], result.summary, federation, console())
    if setting.out is not None:
        print(f"Everything of this run is in {setting.out}. To see it: fedkin report {setting.out}")
    return 0


def _show(name: str, summary: dict[str, Any], federation: Federation, console: Console) -> None:
    from fedkin.report.tables import duration, percent, size, terminal

    rows = []
    for kind in ("personal", "received"):
        if kind in summary:
            s = summary[kind]
            rows.append(
                (kind, *(percent(s[k]) for k in ("mean", "weighted", "std", "worst_decile")), f"{s['jain']:.3f}")
            )
    if "chosen_by_validation" in summary:
        s = summary["chosen_by_validation"]
        label = f"personal, round {s['round']} (by validation)"
        rows.append((label, *(percent(s[k]) for k in ("mean", "weighted", "std", "worst_decile")), f"{s['jain']:.3f}"))
    time = summary["simulated_seconds"]
    told = (
        f"{summary['clients']} clients, {summary['rounds']} rounds, mean pairwise KLD {summary['mean_kld']:.2f}\n"
        f"{size(summary['bytes_down'])} down, {size(summary['bytes_up'])} up; simulated time {duration(time['total'])} "
        f"({duration(time['compute'])} compute, {duration(time['communication'])} communication)"
    )
    if summary["dropped"]:
        told += f"\n{summary['dropped']} replies were dropped: see 'dropped' in the history"
    if summary["sees_test"]:
        told += "\nThis method learned from test rows, as its paper does: these accuracies are optimistic"
    header = ("accuracy %", "mean", "by rows", "std", "worst 10 %", "Jain")
    console.print(terminal(name, header, rows, told))
