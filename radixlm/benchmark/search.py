"""Which of a few changes are worth keeping: one at a time, measured against the best so far, and honest about noise.

Knows numbers and names; how a setting is measured is the caller's. A gain that could be chance is not one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, variance

# Two-sided 95 % quantiles of Student's t by degrees of freedom; larger ones take the normal's.
_T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 8: 2.31, 10: 2.23, 15: 2.13, 20: 2.09}
_T95_LARGE = 1.96

Settings = tuple[str, ...]  # words of a command line


@dataclass(frozen=True)
class Change:
    """One thing to try: the words it adds, and why it may help."""

    words: Settings
    reason: str


@dataclass(frozen=True)
class Trial:
    """What one setting gave. `values`: the objective of each run; empty when it failed, and then `error` says why."""

    settings: Settings
    values: tuple[float, ...]
    seconds: float
    error: str | None = None

    @property
    def mean(self) -> float:
        return fmean(self.values)


@dataclass(frozen=True)
class Step:
    """A change that was tried. `gain`: relative change of the objective, positive is better; `margin`: what it must
    exceed to be more than noise (95 %)."""

    change: Change
    trial: Trial
    gain: float | None
    margin: float | None
    kept: bool


@dataclass
class Search:
    """What the search found. `left`: changes that the budget had no time for. `confirmed`: gain and margin of all kept
    changes together, measured again at the end beside the start; None when nothing was kept or time was up."""

    start: Trial
    steps: list[Step] = field(default_factory=list)
    settings: Settings = ()
    left: list[Change] = field(default_factory=list)
    confirmed: tuple[float, float] | None = None


Measure = Callable[[Settings], Trial]


def gain_of(before: Sequence[float], after: Sequence[float], higher_is_better: bool) -> tuple[float, float]:
    """The gain of `after`, and the half-width of its 95 % interval (Welch's t); inf with a single run on a side."""
    base = fmean(before)
    gain = (fmean(after) - base) / base
    if min(len(before), len(after)) < 2:
        return (gain if higher_is_better else -gain), math.inf
    parts = [variance(side) / len(side) for side in (before, after)]
    error = math.sqrt(sum(parts))
    freedom = _welch(parts, [len(before), len(after)])
    return (gain if higher_is_better else -gain), _t95(freedom) * error / abs(base)


def _welch(parts: Sequence[float], sizes: Sequence[int]) -> float:
    below = sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
    return sum(parts) ** 2 / below if below > 0 else math.inf


def _t95(freedom: float) -> float:
    fitting = [value for degrees, value in _T95.items() if degrees <= freedom]
    return _T95_LARGE if freedom > max(_T95) else fitting[-1] if fitting else _T95[1]


def search(
    measure: Measure,
    changes: Sequence[Change],
    budget_s: float,
    higher_is_better: bool,
    clock: Callable[[], float],
    told: Callable[[Step], None] | None = None,
) -> Search:
    """Try `changes` in their order, each on top of those kept before. Time that is not there is not spent.

    A change that is kept rules out later ones with the same flag. The end confirms: the start and the winner are
    measured again, one after the other, because a machine that drifts, or luck among many tries, looks like a gain.
    """
    began = clock()
    found = Search(measure(()))
    best = found.start
    if best.error is not None:
        return found
    longest_s = best.seconds
    for place, change in enumerate(changes):
        if change.words[0] in found.settings:
            continue
        reserve_s = 2 * longest_s if found.settings else 0.0
        if clock() - began + longest_s + reserve_s > budget_s:
            found.left = list(changes[place:])
            break
        trial = measure((*found.settings, *change.words))
        longest_s = max(longest_s, trial.seconds)
        if trial.error is not None:
            step = Step(change, trial, None, None, False)
        else:
            gain, margin = gain_of(best.values, trial.values, higher_is_better)
            step = Step(change, trial, gain, margin, gain > margin)
        found.steps.append(step)
        if step.kept:
            best, found.settings = trial, trial.settings
        if told is not None:
            told(step)
    if found.settings and clock() - began + 2 * longest_s <= budget_s:
        again, winner = measure(()), measure(found.settings)
        if again.error is None and winner.error is None:
            found.confirmed = gain_of(again.values, winner.values, higher_is_better)
    return found
