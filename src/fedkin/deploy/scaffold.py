"""`fedkin deploy init`: a ready app for Flower, a file for each site, and the commands to start them."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

VERSIONS = "flwr>=1.41,<1.42"


@dataclass(frozen=True)
class Init:
    """Write an app for Flower, a file for each site, and the commands to start them."""

    folder: Path
    """A new folder."""
    method: str = "fedcedar"
    """Method to run (see `fedkin list methods`); its fields may follow: fedcedar,clusters=2."""
    clients: tuple[str, ...] = ()
    """Names of the sites; each site is one client. By default the names of the tables, or north, south and west."""
    data: str = "digits"
    """Built-in data set to try things with, of which each site gets a part; or a folder with one table for each site,
    to try your own. Sites name their own files later."""
    label: tuple[str, ...] = ("y",)
    """Own tables: name of the column with the labels; several names if the task has several targets."""
    ignore: tuple[str, ...] = ()
    """Own tables: names of columns to leave out."""
    categorical: tuple[str, ...] = ()
    """Own tables: names of number columns that stand for categories. Text columns always do."""
    missing: tuple[str, ...] = ()
    """Own tables: further cells that mean "not known", in all columns (unknown) or in one (chol=0)."""
    decimal: str = "auto"
    """Own tables: the decimal mark, if the files do not make it clear."""
    ordered: bool = False
    """Own tables: rows are in time order, and the latest ones are used for testing."""
    fit: Literal["each", "sites"] = "each"
    """Own tables: what the sites agree on. each: columns, levels of categories and classes. sites: also means and
    variances."""
    rounds: int = 3
    """Rounds of communication."""
    task: str = "classification"
    """What is predicted: classification, regression or multilabel. The last two need tables of your own."""
    metrics: tuple[str, ...] = ()
    """Metrics to compute; results are judged by the first one. By default the task's first metric."""
    superlink: str = "127.0.0.1:8000"
    """Address and port at which the sites reach the superlink."""


def init(given: Init) -> None:
    from fedkin.data import DATASETS
    from fedkin.deploy.plan import read
    from fedkin.task import TASKS

    folder = given.folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: name a new folder.")
    tables = _tables(given)
    if given.data not in DATASETS and not tables:
        raise ValueError(
            f"There is no data set and no folder of tables '{given.data}'. Known data sets: {', '.join(DATASETS)}."
        )
    given = replace(given, clients=given.clients or tuple(tables) or ("north", "south", "west"))
    if given.task not in TASKS:
        raise ValueError(f"task='{given.task}' must be one of {', '.join(TASKS)}; name your own in app/pyproject.toml.")
    host, _, port = given.superlink.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"superlink='{given.superlink}' must be an address and a port, such as 127.0.0.1:8000.")
    config = _config(given, folder)
    read({f"{table}.{key}": value for table, keys in config.items() for key, value in keys.items()})  # is it good?
    files = {
        "app/pyproject.toml": _pyproject(config),
        "app/fedkin_app/__init__.py": '"""fedkin as a Flower app."""\n',
        "app/fedkin_app/server_app.py": "from fedkin.deploy import server\n\napp = server.app\n",
        "app/fedkin_app/client_app.py": "from fedkin.deploy import client\n\napp = client.app\n",
        "flower/config.toml": _connections(given.superlink, folder),
        "env.sh": _environment(folder),
        "README.md": _readme(given, port, folder),
        ".gitignore": "keys/\nsites/\nflower/\nserver/\n",
    }
    for part, name in enumerate(sorted(given.clients)):
        files[f"sites/{name}.toml"] = _site(given, folder, name, part, tables.get(name))
    (folder / "server").mkdir(parents=True)  # for the superlink's database and the run
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    print(f"{folder} holds the app, the sites' files and README.md with the commands to start them.")


def _tables(given: Init) -> dict[str, Path]:
    """The sites' tables by their names, if `data` is a folder."""
    from fedkin.data.own import FILES
    from fedkin.deploy.plan import NAME

    folder = Path(given.data)
    if not folder.is_dir():
        return {}
    found = {p.stem: p.resolve() for p in sorted(folder.iterdir()) if p.suffix.lower() in FILES and p.name[0] != "."}
    if not found:
        raise ValueError(f"{folder} holds no {', no '.join(FILES)} file: one for each site is expected.")
    for name in found:
        if not NAME.fullmatch(name):
            raise ValueError(f"{found[name].name}: a site's name is made of letters, digits, '.', '_' and '-'.")
    if given.clients and (unknown := sorted({*given.clients} - {*found})):
        raise ValueError(f"{folder} has no table of {', '.join(unknown)}; it has those of {', '.join(found)}.")
    return found


def name_of(given: Init) -> str:
    """The method without its fields."""
    from fedkin.registry import parse_label

    return parse_label(given.method)[0]


def _config(given: Init, folder: Path) -> dict[str, dict[str, Any]]:
    """All fields, because Flower's --run-config can only change fields that exist."""
    from fedkin.deploy.plan import LIMITS, RUN, TIME_LIMIT
    from fedkin.engine.options import Options
    from fedkin.methods import method
    from fedkin.protocol import Training

    made = method(given.method)
    options = {name: getattr(Options(), name) for name in RUN}
    changed = {"rounds": given.rounds, "time_limit": TIME_LIMIT, "checkpoint_every": 1}
    return {
        "method": {"name": name_of(given), **(_plain(made) if is_dataclass(made) else {})},
        "model": {"name": "auto", "head": ""},
        "training": _plain(Training()),
        "task": _task(given),
        "run": {
            "clients": " ".join(given.clients),
            "out": str(folder / "server" / name_of(given)),
            "wait": 300.0,
            "bind_keys": False,
            "fit": given.fit if _tables(given) else "",
            "secure": False,
            **LIMITS,
            **options,
            **changed,
        },
    }


def _task(given: Init) -> dict[str, str]:
    from fedkin.task import Regression, task

    made = task(given.task, metrics=given.metrics)
    own = {"kind": given.task, "metrics": " ".join(made.metrics), "headline": made.headline}
    return own | ({"center": "", "scale": ""} if isinstance(made, Regression) else {})


def _plain(value: Any) -> dict[str, Any]:
    out = {}
    for field in fields(value):
        default = getattr(value, field.name)
        if isinstance(default, bool | int | float | str):
            out[field.name] = default
        elif default is not None:  # Flower's tables cannot hold lists
            out[field.name] = repr(default)
    return out


def _pyproject(config: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# A thin adapter: fedkin and torch are installed on every machine beforehand, and are not named here, because",
        "# Flower would install them again.",
        "[project]",
        'name = "fedkin-app"',
        'version = "1.0.0"',
        'description = "A method of fedkin as a Flower app."',
        'license = "Apache-2.0"',
        f'dependencies = ["{VERSIONS}"]',
        "",
        "[tool.flwr.app]",
        'publisher = "fedkin"',
        "",
        "[tool.flwr.app.components]",
        'serverapp = "fedkin_app.server_app:app"',
        'clientapp = "fedkin_app.client_app:app"',
        "",
        "# What the run does. Change it here, or for one run: flwr run app plain --run-config 'run.rounds=10'",
        "[tool.flwr.app.config]",
    ]
    for table, values in config.items():
        lines += ["", f"[tool.flwr.app.config.{table}]", *(f"{key} = {_toml(v)}" for key, v in values.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _connections(superlink: str, folder: Path) -> str:
    return f"""\
[superlink]
default = "plain"

[superlink.plain]
address = "{superlink}"
insecure = true

[superlink.tls]
address = "{superlink}"
root-certificates = {_toml(str(folder / "keys" / "ca.crt"))}
"""


def _environment(folder: Path) -> str:
    return f"""\
export FLWR_HOME={shlex.quote(str(folder / "flower"))}
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1  # fedkin and torch are installed; download nothing
export FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_TELEMETRY_ENABLED=0
"""


def _data(given: Init, part: int, table: Path | None) -> str:
    """The lines of a site's file that say where its examples are, and how they are read."""
    if table is not None:
        several = {k: ", ".join(getattr(given, k)) for k in ("label", "ignore", "categorical", "missing")}
        lines = {"data": str(table), **several, "decimal": given.decimal, "ordered": given.ordered, "task": given.task}
        lines["share"] = given.fit  # what this site may tell of its table, so that all prepare theirs in the same way
        return "".join(f"{key} = {_toml(value)}\n" for key, value in lines.items())
    if given.task != "classification":
        return f"""\
# A table with a header and one row for each example, or an .npz file with the arrays x and y:
data = "/path/to/patients.csv"
label = "y"  # column of the target; several with commas between
task = "{given.task}"
"""
    return f"""\
data = "{given.data}"  # a built-in data set to try things with; this site has one part of it:
clients = {len(given.clients)}
part = {part}
# Own data, instead of the three lines above: a table with a header and one row for each example, or an .npz file with
# the arrays x and y.
# data = "/path/to/patients.csv"
# label = "y"  # column of the labels
"""


def _site(given: Init, folder: Path, name: str, part: int, table: Path | None) -> str:
    hints = """\
# ignore = "patient_id"  # columns to leave out, with commas between; also: categorical, missing, decimal
# share = "each"  # what this site may share if the run has run.fit: each (columns, levels), sites (also means)
"""
    return f"""\
# This site's own settings. Its name and its number of examples leave the site; no example does, and no path unless an
# error message contains it. To check this file before anything is sent: fedkin deploy check THIS_FILE
name = "{name}"
state = {_toml(str(folder / "sites" / name))}  # private states and the personal model
{_data(given, part, table)}{"" if table else hints}\
# Limits of this site, if you want any:
# functions = "local"  # client functions that may be called; max_requests, max_rounds, max_bytes = 0 (no limit)
# privacy = "client:clip=1,noise=1.1"  # noise on everything that leaves, whatever the run says
# secure = true  # replies leave this site under secure aggregation only
"""


def _readme(given: Init, port: str, folder: Path) -> str:
    method, link = name_of(given), given.superlink
    names = sorted(given.clients)
    plain = "\n".join(
        f"flower-supernode --insecure --superlink {link} --port {9094 + i} --node-config sites/{name}.toml"
        for i, name in enumerate(names)
    )
    secure = "\n".join(
        "flower-supernode --root-certificates keys/ca.crt "
        f"--auth-supernode-private-key ../{folder.name}-private/{name} "
        f"--superlink {link} --port {9094 + i} --node-config sites/{name}.toml"
        for i, name in enumerate(names)
    )
    register = "\n".join(f"flwr supernode register keys/{name}.pub tls" for name in names)
    return f"""\
# {method} at {len(names)} sites

All machines have Python, `fedkin[flower]` and this folder. Each command below runs in a shell of its own, here, after:

```sh
. ./env.sh
```

## Without TLS, on one machine

```sh
flower-superlink --insecure --host 127.0.0.1 --port {port} --database server/state.db
```

At each site (on one machine: each with a port of its own):

```sh
{plain}
```

Then start the run, and watch it:

```sh
flwr run app plain --stream
```

The server's results are in `server/{method}`; each site's personal model in `sites/NAME/RUN/NAME/personal.safetensors`.
There: `fedkin predict sites/NAME/RUN/NAME --client NAME --data new.csv`.
The same command resumes a run that was stopped; move `server/{method}` away to start over.
A site that comes later, with a copy of that folder: `fedkin join server/{method} --site sites/NEW.toml --out DIR`.

## With TLS and keys

```sh
fedkin deploy keys .
flower-superlink --host 127.0.0.1 --port {port} --database server/state-tls.db --ssl-ca-certfile keys/ca.crt \\
  --ssl-certfile keys/server.crt --ssl-keyfile ../{folder.name}-private/server.key --enable-supernode-auth
```

The private keys are in `../{folder.name}-private`, not in this folder, which all machines get. Give each site the file
with its name. Register the sites' keys once at the superlink:

```sh
{register}
```

At each site:

```sh
{secure}
```

```sh
flwr run app tls --stream --run-config 'run.bind_keys=true'
```
"""
