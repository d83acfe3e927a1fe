"""Figures for papers, one column or one page wide. They are readable in grayscale and with color blindness."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.report import page, read
from fedkin.report.compact import WEIGHT_SCALE
from fedkin.results.folder import check_file

FORMATS = ("pdf", "png", "svg")
MARK = "fedkin figures"  # in the metadata of every file
# The palette of Okabe and Ito, from dark to light. Dashes and markers also distinguish the lines.
COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
COLUMN, PAGE = 3.4, 7.0  # inches
MOST_NAMES = 20  # classes or clients that are named on an axis; more are numbered
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # TrueType: many journals refuse the default, Type 3
    "svg.fonttype": "path",  # letters as outlines: the same on every machine, whatever fonts it has
    "svg.hashsalt": "fedkin",
    "figure.constrained_layout.use": True,
}


def write(paths: Sequence[str | Path], out: str | Path | None = None, format: str = "pdf") -> list[Path]:
    """Write every figure that these folders have data for. The same data give the same files. In a folder
    that the user names, figures of fedkin's are replaced, no other file."""
    import matplotlib

    if format not in FORMATS:
        raise ValueError(f"format='{format}' must be one of {', '.join(FORMATS)}.")
    data = page.build(paths)
    folder = Path(out) if out is not None else Path(paths[0]) / "figures"
    drawings: dict[str, Callable[[], Any]] = {
        "learning": partial(learning, data),
        "gains": partial(gains, data),
        "partition": partial(partition, data),
        "costs": partial(costs, data),
    }
    for method in data["methods"]:
        name = re.sub(r"[^\w=.]+", "-", method["name"])
        drawings[f"mixing-{name}"] = partial(mixing, data, method)
        drawings[f"clusters-{name}"] = partial(clusters, data, method)
    written = []
    metadata = {
        "pdf": {"Creator": MARK, "CreationDate": None},
        "svg": {"Creator": MARK, "Date": None},
        "png": {"Software": MARK},
    }[format]
    if out is not None:
        for name in drawings:
            check_file(folder / f"{name}.{format}", MARK.encode())
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, draw in drawings.items():
            with read.understood(paths):
                figure = draw()
            if figure is not None:
                figure.savefig(folder / f"{name}.{format}", dpi=300, metadata=metadata)
                written.append(folder / f"{name}.{format}")
    return written


def _axes(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(1, columns)


def _look(index: int) -> dict[str, Any]:
    return {"color": COLORS[index % 8], "linestyle": DASHES[index % 7], "marker": MARKS[index % 8]}


def _name(data: dict[str, Any], method: dict[str, Any]) -> str:
    """The method's name, with its options only if another method has the same name."""
    base: str = method["name"].split(",")[0]
    unique = [m["name"].split(",")[0] for m in data["methods"]].count(base) == 1
    return base if unique else method["name"].replace(",", ",\n")


def _unit(data: dict[str, Any]) -> int:
    return 100 if data["headline"]["percent"] else 1


def _metric(data: dict[str, Any]) -> str:
    return str(data["headline"]["metric"]).replace("_", " ")


def learning(data: dict[str, Any]) -> Any:
    """Mean personal score by round. A single method also has a band that contains 80 % of its clients."""
    figure, axes = _axes(COLUMN, 2.3 + 0.13 * (len(data["methods"]) // 3))
    drawn, unit = 0, _unit(data)
    for index, method in enumerate(data["methods"]):
        curve = method["curves"]["personal"]
        if curve is None:
            continue
        drawn += 1
        rounds = np.array(curve["round"])
        scores = {key: unit * np.array(curve[key], float) for key in ("mean", "low", "high")}
        axes.plot(rounds, scores["mean"], label=_name(data, method), markevery=max(1, len(rounds) // 8), **_look(index))
        if len(data["methods"]) == 1:
            axes.fill_between(rounds, scores["low"], scores["high"], color="0.85", linewidth=0)
    if not drawn:
        return None
    _bands(axes, data)
    axes.set(xlabel="round", ylabel=f"personal {_metric(data)}{' (%)' if unit == 100 else ''}")
    _whole_rounds(axes)
    if len(data["methods"]) > 1:
        figure.legend(loc="outside lower center", ncols=3, handlelength=3)
    return figure


def _whole_rounds(axes: Any) -> None:
    """No ticks between two rounds."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _bands(axes: Any, data: dict[str, Any]) -> None:
    """One standard deviation over seeds to either side of the mean, where several methods have several seeds."""
    unit = 100 if data.get("headline", {}).get("percent", True) else 1
    for index, method in enumerate(data["methods"]):
        curve = method["curves"]["personal"]
        if len(data["methods"]) == 1 or curve is None or "std" not in curve:
            continue
        mean, std = (unit * np.array(curve[key], float) for key in ("mean", "std"))
        color = _look(index)["color"]
        axes.fill_between(curve["round"], mean - std, mean + std, color=color, alpha=0.15, linewidth=0)


def gains(data: dict[str, Any]) -> Any:
    """Each client's gain over local training: a box per method, a dot per client."""
    reference = next((m for m in data["methods"] if m["name"] == data["reference"]), None)
    others = [m for m in data["methods"] if m is not reference]
    if reference is None or not others:
        return None
    sign = 1 if data["headline"]["higher_is_better"] else -1
    pairs = [sign * _unit(data) * np.array(gain_over(m, reference)) for m in others]
    if not any(len(p) for p in pairs):
        return None
    figure, axes = _axes(COLUMN, 0.6 + 0.32 * len(others))
    heights = range(len(others), 0, -1)
    axes.axvline(0, color="0.5", linewidth=0.8)
    axes.boxplot(
        pairs, positions=list(heights), orientation="horizontal", widths=0.55, showfliers=False,
        medianprops={"color": "black", "linewidth": 1.4}, boxprops={"linewidth": 0.7}, whiskerprops={"linewidth": 0.7},
    )  # fmt: skip
    for values, height in zip(pairs, heights):
        spread = 0.16 * np.sin(np.arange(len(values)) * 2.4)  # not random: the same data give the same file
        axes.plot(values, height + spread, ".", color="#0072B2", alpha=0.5, markersize=3)
    axes.set_yticks(list(heights), [_name(data, m) for m in others])
    points = "points" if data["headline"]["percent"] else _metric(data)
    axes.set_xlabel(f"gain over local per client ({points})")
    return figure


def gain_over(method: dict[str, Any], reference: dict[str, Any]) -> list[float]:
    """Differences in the personal score at the same client and seed."""
    out = []
    for run in method["runs"]:
        for other in reference["runs"]:
            if (other["federation"], other["seed"]) == (run["federation"], run["seed"]):
                both = zip(run.get("last_personal", []), other.get("last_personal", []))
                out += [a - b for a, b in both if a is not None and b is not None]
    return out


def partition(data: dict[str, Any]) -> Any:
    """Labels of each client. The area of a bubble is the number of examples."""
    labels = data["federations"][0]["labels"]
    if not labels:
        return None
    counts = np.array(labels, float)
    figure, axes = _axes(PAGE if len(counts) > 30 else COLUMN, 2.2)
    client, label = np.nonzero(counts)
    size = counts[client, label] / counts.max()
    axes.scatter(client, label, s=size * (2200 / max(len(counts), 20)), color="#0072B2", linewidth=0)
    axes.set(xlabel="client", ylabel="label", xlim=(-0.8, len(counts) - 0.2), ylim=(-0.8, counts.shape[1] - 0.2))
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    clients = data["federations"][0]["names"]
    named = clients if any(name != f"client {c}" for c, name in enumerate(clients)) else []
    for names, set_ticks in ((data["federations"][0]["classes"], axes.set_yticks), (named, axes.set_xticks)):
        if names and len(names) <= MOST_NAMES:
            set_ticks(range(len(names)), [name if len(name) <= 18 else f"{name[:17]}…" for name in names])
    if named:
        axes.tick_params(axis="x", rotation=90 if max(map(len, named)) * len(named) > 45 else 0)
    return figure


def costs(data: dict[str, Any]) -> Any:
    """Traffic by direction and simulated time of each method, as stacked bars."""
    methods = data["methods"]
    figure, (left, right) = _axes(PAGE, 0.9 + 0.22 * len(methods), 2)
    heights = np.arange(len(methods))[::-1]
    longest = max(run["compute"] + run["communication"] for m in methods for run in m["runs"])
    seconds = longest < 120
    for axes, kinds, unit, title in (
        (left, ("down", "up"), 1e6, "traffic (MB)"),
        (
            right,
            ("compute", "communication"),
            1.0 if seconds else 60.0,
            f"simulated time ({'seconds' if seconds else 'minutes'})",
        ),
    ):
        start = np.zeros(len(methods))
        for kind, color, hatch in zip(kinds, ("#0072B2", "#B7D5EA"), ("", "////")):
            values = np.array([np.mean([run[kind] for run in m["runs"]]) for m in methods]) / unit
            axes.barh(heights, values, left=start, color=color, hatch=hatch, edgecolor="white", height=0.7, label=kind)
            start += values
        axes.set_yticks(heights, [_name(data, m) for m in methods])
        axes.set_xlabel(title)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)  # above: no bar is under it
    return figure


def _order(data: dict[str, Any], method: dict[str, Any]) -> tuple[list[int], list[Any]]:
    """Clients ordered by their last cluster and hidden group, and the block that each of them belongs to."""
    federation = data["federations"][method["runs"][0]["federation"]]
    size = len(federation["names"])
    last = method["facts"].get("clusters")
    labels = last[-1][1] if last else [0] * size
    group = federation["group"] or [0] * size
    order = sorted(range(size), key=lambda c: (labels[c] if labels[c] is not None else -1, group[c] or 0, c))
    return order, [labels[c] if last else group[c] for c in order]


def mixing(data: dict[str, Any], method: dict[str, Any]) -> Any:
    """The mixing matrix after the last round, ordered by cluster."""
    if method["mixing"] is None:
        return None
    frame = method["mixing"]["frames"][-1]
    part, index = next(iter(frame["parts"].items()))
    packed = method["mixing"]["matrices"][index]
    matrix = np.array([packed["rows"][row] for row in packed["of"]], float) / WEIGHT_SCALE
    order, keys = _order(data, method)
    figure, axes = _axes(COLUMN, 2.9)
    image = axes.imshow(100 * matrix[np.ix_(order, order)], cmap="Blues", vmin=0, interpolation="nearest")
    for cut in np.flatnonzero(np.array(keys[1:]) != np.array(keys[:-1])):
        if len(set(keys)) <= 12:
            axes.axhline(cut + 0.5, color="black", linewidth=0.4)
            axes.axvline(cut + 0.5, color="black", linewidth=0.4)
    figure.colorbar(image, ax=axes, label="share (%)", shrink=0.85)
    several = f", {part}" if len(frame["parts"]) > 1 else ""
    axes.set(xlabel="from client", ylabel="client", title=f"{_name(data, method)}, round {frame['round']}{several}")
    shown = range(0, len(order), -(-len(order) // 12))  # at most twelve labels
    axes.set_xticks(list(shown), [str(order[i]) for i in shown])
    axes.set_yticks(list(shown), [str(order[i]) for i in shown])
    return figure


def clusters(data: dict[str, Any], method: dict[str, Any]) -> Any:
    """The cluster of each client by round, with the method's own numbers."""
    from matplotlib import colormaps

    facts = method["facts"].get("clusters")
    if not facts or len(facts) < 2:
        return None
    order, _ = _order(data, method)
    table = np.array([[np.nan if v is None or v < 0 else v for v in labels] for _, labels in facts], float).T
    rounds = [round for round, _ in facts]
    count = int(np.nanmax(table)) + 1 if np.isfinite(table).any() else 1
    figure, axes = _axes(COLUMN, 2.2)
    image = axes.imshow(
        table[order], aspect="auto", cmap=colormaps["cividis"].resampled(count), interpolation="nearest",
        vmin=-0.5, vmax=count - 0.5, extent=(rounds[0] - 0.5, rounds[-1] + 0.5, len(order) - 0.5, -0.5),
    )  # fmt: skip
    figure.colorbar(image, ax=axes, label="cluster", ticks=list(range(0, count, max(1, count // 8))))
    axes.set(xlabel="round", ylabel="client", title=_name(data, method))
    _whole_rounds(axes)
    shown = range(0, len(order), -(-len(order) // 12))  # at most twelve labels
    axes.set_yticks(list(shown), [str(order[i]) for i in shown])
    return figure
