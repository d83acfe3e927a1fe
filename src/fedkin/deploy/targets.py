"""The targets of a regression over sites: all of them learn in the same units."""

from __future__ import annotations

import json
from dataclasses import replace

from fedkin.data.preprocess import Preprocessing
from fedkin.task import Regression, Task

UNSCALED = (
    "the targets are learned in their own units: if they are far from 0 and 1, give task.center and task.scale, or let "
    "the sites share their means and variances (run.fit='sites')"
)


def in_units_of(task: Task, preprocessing: str) -> Task:
    """The run's task with the center and scale that the sites agreed on, unless the run's config gives them."""
    if not preprocessing or not isinstance(task, Regression) or task.scale:
        return task
    targets = Preprocessing.from_json(json.loads(preprocessing)).targets
    center, scale = (tuple(target[k] for target in targets) for k in (0, 1))
    return replace(task, center=center, scale=scale)
