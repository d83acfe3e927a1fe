"""`fedkin join RUN --site SITE_FILE`: a personal model for a site that comes after the run.

The newcomer works on a copy of the server's folder: nothing of its own leaves its machine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedkin.deploy.check import read_site
from fedkin.deploy.site import introduce
from fedkin.results.files import read_json
from fedkin.results.run import inputs_of

if TYPE_CHECKING:
    from fedkin.results.joining import Joined
    from fedkin.results.run import Run


def join(run: Run, site_file: Path) -> Joined:
    """The newcomer's model by the method's own rule, from all of its examples, prepared as the run's sites agreed.
    The run learns the names of classes and columns, so that it can keep the model with them."""
    config = read_site(site_file)
    assert run.folder is not None
    agreed = run.folder / "preprocessing.json"
    prepared = agreed.read_text() if agreed.exists() else ""
    mine = config.load(prepared)
    cards = [site["card"] for site in read_json(run.folder / "sites.json").values()]
    info = introduce(config, prepared)
    own = (info.shape, info.columns, info.task)
    if cards and own not in [(card["shape"], card["columns"], card["task"]) for card in cards]:
        raise ValueError(
            f"{config.name} has other columns, levels of categories, classes or targets than the sites of the run: "
            f"compare {site_file} with the file of one of these sites."
        )
    (split,) = mine.splits
    examples = mine.examples(0, np.concatenate([split.train, split.validation, split.test]))
    known = {name: inputs_of(mine)[name] for name in ("class_names", "targets")}
    run.config = {**run.config, "inputs": {**run.config["inputs"], **known}}
    joined = run.join(config.name, examples.x, examples.y)
    return replace(joined, preprocessing=mine.description.get("preprocessing"))
