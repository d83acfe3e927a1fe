"""The experiments of the four papers as declarations, one file a paper: `fedkin reproduce PAPER/ITEM`."""

from __future__ import annotations

from fedkin.experiments.declare import Item
from fedkin.registry import Entry, lookup

PAPERS: dict[str, Entry] = {
    "fedcedar": Entry(
        "fedkin.experiments.papers.fedcedar:ITEMS", "clusters, a graph between them, propagation (PAKDD 2024)"
    ),
    "pflic": Entry(
        "fedkin.experiments.papers.pflic:ITEMS", "iterative clustering, a shared layer, fair selection (ComSIS 2025)"
    ),
    "pfedgat": Entry(
        "fedkin.experiments.papers.pfedgat:ITEMS", "graph attention on the server, client feedback (2025)"
    ),
    "dcpfl": Entry("fedkin.experiments.papers.dcpfl:ITEMS", "groups that split, layers at their own pace (2025)"),
}


def items(paper: str) -> dict[str, Item]:
    found: dict[str, Item] = lookup(PAPERS, paper, "paper").load()
    return found


def find(name: str) -> dict[str, Item]:
    """`fedcedar/table1`, or `fedcedar` for all of a paper: full names to items."""
    paper, _, item = name.partition("/")
    known = items(paper)
    if item and item not in known:
        raise ValueError(f"The paper {paper} has no item '{item}'. Known: {', '.join(f'{paper}/{k}' for k in known)}.")
    return {f"{paper}/{k}": v for k, v in known.items() if item in ("", k)}
