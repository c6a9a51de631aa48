"""Which agent of a pool stands for its method.

The paper reports "the median agent" by clean return and by the returns under MAD and Min-RS, without saying
how three medians name one agent. The rule here: for each metric rank the agents by their distance to the
pool's median of that metric (equal distances share their mean rank); the agent with the smallest sum of ranks
is selected; ties go to the smaller distance in the first metric, then to the smaller seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import rankdata

from smoothrl.errors import UserError

RULE = "rank sum of the distances to the pool's medians"


def median_agent(scores: Mapping[str, Sequence[float]]) -> int:
    """Index of the selected agent; `scores` holds one value for each agent under each metric."""
    if not scores:
        raise UserError("no metric to select an agent by")
    table = np.array([list(values) for values in scores.values()], dtype=np.float64)
    if table.ndim != 2 or table.shape[1] == 0 or not np.isfinite(table).all():
        raise UserError("selecting an agent needs one finite score for each agent under each metric")
    distance = np.abs(table - np.median(table, axis=1, keepdims=True))
    ranks = np.asarray(rankdata(distance, axis=1)).sum(axis=0)
    order = sorted(range(table.shape[1]), key=lambda i: (ranks[i], distance[0, i], i))
    return order[0]
