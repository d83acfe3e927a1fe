"""Put the outcomes of `fedkin reproduce` into the result pages.

    python benchmarks/pages.py OUT [ITEM ...]

Copies OUT's JSON and pictures to docs/results/PAPER/ and writes each item's tables between its two marks in
docs/results/PAPER.md, <!-- ITEM --> and <!-- /ITEM -->; what is written by hand around them stays. Tables with many
claims are folded. tests/papers/test_pages.py holds pages against the JSON files.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent / "docs" / "results"
FOLD = 8  # lines of claims from which they are folded


def block(folder: Path, stem: str, paper: str, item: str) -> str:
    text = (folder / f"{stem}.md").read_text()
    text = text.split("\n", 2)[2].strip()  # the heading is the page's
    head, mark, claims = text.partition("Claims: ")
    if mark:
        tally, _, table = claims.partition("\n\n")
        if table.count("\n") > FOLD:
            table = f"<details><summary>claim by claim</summary>\n\n{table}\n\n</details>"
        text = f"{head}Claims: {tally}\n\n{table}"
    picture = f"\n\n![{item}]({paper}/{item}.png)" if (folder / f"{stem}.png").exists() else ""
    return f"{text}{picture}\n\nNumbers: [{item}.json]({paper}/{item}.json)."


def main(folder: Path, chosen: list[str]) -> None:
    for path in sorted(folder.glob("*-*.json")):
        name = json.loads(path.read_text())["item"]
        paper, item = name.split("/")
        page = ROOT / f"{paper}.md"
        if chosen and name not in chosen:
            continue
        target = ROOT / paper
        target.mkdir(exist_ok=True)
        shutil.copy(path, target / f"{item}.json")
        if path.with_suffix(".png").exists():
            shutil.copy(path.with_suffix(".png"), target / f"{item}.png")
        begin, end = f"<!-- {item} -->", f"<!-- /{item} -->"
        found = page.read_text()
        if begin not in found:
            sys.exit(f"{page} has no mark {begin}")
        before, _, rest = found.partition(begin)
        after = rest.partition(end)[2]
        page.write_text(f"{before}{begin}\n{block(folder, path.stem, paper, item)}\n{end}{after}")
        print(name)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
