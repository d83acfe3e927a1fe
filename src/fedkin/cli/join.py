"""`fedkin join DIR`: a personal model for a client that was not in the run."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from pathlib import Path

from fedkin.cli import flags as parsing
from fedkin.cli.flags import UserError
from fedkin.cli.predict import opened


@dataclass(frozen=True)
class JoinFlags:
    data: Path | None = None
    """The newcomer's examples with their labels: a table like the run's, or an .npz with x and y."""
    site: Path | None = None
    """The newcomer's own file, if the run was made by sites over Flower; in place of --data and --name."""
    name: str = ""
    """Name of the newcomer; by default the name of its file."""
    out: Path | None = None
    """Folder for the newcomer's model, which `fedkin predict` and `fedkin export` take."""
    fresh: bool = False
    """Replace an earlier model of this newcomer in --out."""


def command(words: list[str]) -> int:
    about = "Make a personal model for a newcomer, by the method's own rule. The run itself stays as it is."
    flags, names = parsing.parse_one(words, JoinFlags(), "fedkin join DIR", about)
    from fedkin.results.joining import check_target

    run = opened(names, "join")
    deployed = run.config["federation"].get("engine") == "flower"
    if flags.site is not None:
        if flags.data is not None or flags.name:
            raise UserError("--site names the newcomer and its examples: leave --data and --name out.")
        if "joined" in run.config:
            raise UserError(f"{names[0]} holds one client's model: a newcomer needs the folder of the server's run.")
        if not deployed:
            raise UserError("--site is for runs that sites made over Flower: give --data FILE.")
        from fedkin.deploy.newcomer import join

        joined = join(run, flags.site)
    elif flags.data is None:
        raise UserError("join needs --data FILE: the newcomer's examples with their labels.")
    elif deployed and flags.data.suffix != ".npz":
        raise UserError(
            "This run was made by sites over Flower, and each says in its own file how its table is read: give "
            "--site FILE in place of --data, with a file like that of any site."
        )
    else:
        if flags.out is not None:
            check_target(flags.out, flags.name or flags.data.stem)
        joined = run.join(flags.name or flags.data.stem, *run.examples_of(flags.data))
    name = joined.name
    shown = {metric: f"{value:.3f}" for metric, value in joined.expected.items() if not isnan(value)}
    expected = ", ".join(f"{metric} {value}" for metric, value in shown.items())
    print(f"{name}: expect {expected} (measured in a trial, on {joined.examples} held-out examples)")
    if unknown := [metric for metric in joined.expected if metric not in shown]:
        print(f"With these examples, {', '.join(unknown)} cannot be measured.")
    if flags.out is None:
        print("Nothing was kept: add --out DIR to keep the newcomer's model.")
    else:
        earlier = (flags.out / "config.json").exists()
        run.keep(joined, flags.out, fresh=flags.fresh)
        if earlier:
            print("It replaced the earlier model there." if flags.fresh else "The same model was there already.")
        print(f"The model is in {flags.out}. To use it: fedkin predict {flags.out} --client '{name}' --data FILE")
    return 0
