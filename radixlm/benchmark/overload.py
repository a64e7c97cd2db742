"""Whether a server fell behind its load: judged by how waiting grows over a run, never by one rate over another.

Pure arithmetic over raw outcomes. Completions over duration are no measure of it: the tail after the last arrival is in
the duration, and how many requests a Poisson process sends in a time is chance.
"""

import math
from collections.abc import Sequence

from radixlm.benchmark.outcome import Outcome
from radixlm.benchmark.search import gain_of

DEFICIT = 0.05  # of the load comes back later and later
FEWEST = 20  # requests; with fewer nothing is said


def falls_behind(outcomes: Sequence[Outcome]) -> bool:
    """Whether less came back than was sent.

    Where a share of the load is not served, the time from when a request was due to its end grows by that share of a
    second per second of arrivals (a fluid queue). So the last third is compared with the first, against when they
    were really due. The difference must be more than the spread within the two explains (Welch's t, 95 %), and more
    than the standard deviation of so many Poisson arrivals: a queue grows by that for a while without being overloaded.
    Requests that failed did not come back at all.
    """
    sent = sorted(outcomes, key=lambda one: one.due_s)
    good = [one for one in sent if one.error is None]
    if len(sent) < FEWEST:
        return False
    if len(good) < (1 - DEFICIT) * len(sent):
        return True
    third = len(good) // 3
    first, last = good[:third], good[-third:]
    before, after = [one.end_s - one.due_s for one in first], [one.end_s - one.due_s for one in last]
    between_s = (sum(one.due_s for one in last) - sum(one.due_s for one in first)) / third
    growth, margin = gain_of(before, after, higher_is_better=True)
    least_s = max(DEFICIT, 1 / math.sqrt(2 * third)) * between_s
    return growth > margin and (sum(after) - sum(before)) / third > least_s
