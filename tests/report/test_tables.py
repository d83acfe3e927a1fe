"""LaTeX tables that can be pasted: every character of a label is shown, long titles take several lines."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from fedkin.report.tables import LATEX, escaped, latex


def test_special_characters_signs_and_greek_letters():
    assert escaped("a_b & 50 % $x$") == r"a\_b \& 50 \% \$x\$"
    assert escaped("λ ≥ 3 × μ, 1 ± 2 – …") == r"$\lambda$ $\geq$ 3 $\times$ $\mu$, 1 $\pm$ 2 -- \ldots{}"
    assert escaped("γ\u0303 and x\u0303") == r"$\tilde{\gamma}$ and $\tilde{x}$"


def test_long_titles_of_a_wide_table_take_several_lines():
    titles = ["a site: accuracy", "received %", "fashion-pathological %", "95 % interval"]
    assert latex(titles, []).splitlines()[2] == (
        r"a site: accuracy & received \% & fashion-pathological \% & 95 \% interval \\"
    )
    titles += ["above/below fedavg-ft", "north (n = 60)", *["a column"] * 10]
    lines = latex(titles, [["a", "-1.5", "1", "-1.00 to +2.00", *["b"] * 12]]).splitlines()
    assert lines[2].split(" & ")[:7] == [
        r"\shortstack[l]{\strut a site:\\accuracy}",
        r"received \%",  # no place to break it
        r"\shortstack[r]{\strut fashion-\\pathological \%}",
        r"95 \% interval",  # its cells are wider
        r"\shortstack[r]{\strut above/\\below\\fedavg-ft}",
        r"\shortstack[r]{\strut north\\(n = 60)}",
        r"a column",
    ]
    assert lines[4].startswith(r"a & $-$1.5 & 1 & $-$1.00 to +2.00 & b & ")


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_pdflatex_accepts_every_character(tmp_path):
    table = latex(
        ["every character that is translated", "value"], [["".join(LATEX) + "γ\u0303", "-1 ± 2"]], bold=[(0, 1)]
    )
    (tmp_path / "table.tex").write_text(
        rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{table}\end{{document}}"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"],
        cwd=tmp_path, capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "table.pdf").exists()
