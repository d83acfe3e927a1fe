"""The method × client table of a comparison as Markdown, CSV and LaTeX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedkin.report import tables
from fedkin.results.sites import Site

if TYPE_CHECKING:
    from fedkin.results.comparison import Comparison

COLUMNS = (
    "client", "method", "metric", "test", "standard_error", "test_examples", "validation", "validation_examples",
    "gain_over_local", "gain_low", "gain_high", "predicts_one_class", "majority_rate", "use",
)  # fmt: skip

MOST_COLUMNS = 6  # clients side by side on a page


def cell(made: Comparison, site: Site, method: str) -> str:
    """Test score ± its standard error."""
    found = site.cells[method]
    return tables.with_spread(found.test, found.error, in_percent=made.percent)


def is_best(made: Comparison, site: Site, method: str) -> bool:
    sign = 1 if made.higher_is_better else -1
    values = [sign * c.test for c in site.cells.values() if c.test is not None]
    own = site.cells[method].test
    return own is not None and sign * own == max(values)


def markdown(made: Comparison) -> str:
    """Test ± standard error / validation; the best test score in bold."""
    unit = " %" if made.percent else ""
    header = [f"{made.metric}{unit}", *(f"{site.name} (n = {site.test_examples})" for site in made.sites)]
    rows = []
    for line in made.lines:
        row = [line.method]
        for site in made.sites:
            text = cell(made, site, line.method)
            text = f"**{text}**" if is_best(made, site, line.method) else text
            row.append(f"{text} / {tables.score(site.cells[line.method].validation, in_percent=made.percent)}")
        rows.append(row)
    if made.metric == "accuracy" and made.sites[0].majority_rate is not None:
        rows.append(["*most frequent class*", *(tables.percent(site.majority_rate) for site in made.sites)])
    caption = (
        "Test ± standard error over test examples / validation; bold: best on test. To choose a method, use validation."
    )
    return f"{caption}\n\n{tables.markdown(header, rows)}"


def csv(made: Comparison) -> str:
    """One line for each client and method, in full precision."""
    rows = [
        [site.name, method, made.metric, c.test, c.error, site.test_examples, c.validation, site.validation_examples,
         c.gain, c.low, c.high, int(c.one_class), site.majority_rate, int(site.use == method)]
        for site in made.sites
        for method, c in site.cells.items()
    ]  # fmt: skip
    return tables.csv(COLUMNS, rows)


def latex(made: Comparison) -> str:
    """A table for booktabs: the best of each client in bold, ± is the standard error over n test examples. Clients are
    its columns, or its rows where there are too many for a page."""
    methods = [line.method for line in made.lines]
    clients = [f"{site.name} (n = {site.test_examples})" for site in made.sites]
    cells = [[cell(made, site, method) for site in made.sites] for method in methods]
    best = [[is_best(made, site, method) for site in made.sites] for method in methods]
    across, down = clients, methods
    if len(clients) > MOST_COLUMNS:
        across, down = methods, clients
        cells, best = [list(row) for row in zip(*cells)], [list(row) for row in zip(*best)]
    unit = " (%)" if made.percent else ""
    rows = [[name, *row] for name, row in zip(down, cells)]
    bold = [(i, j + 1) for i, row in enumerate(best) for j, found in enumerate(row) if found]
    return tables.latex([f"{made.metric}{unit}", *across], rows, bold)
