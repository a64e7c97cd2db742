"""Goodput: how much of what was served was served within its bounds. Pure arithmetic over raw outcomes.

Goodput is requests per second that meet every bound (DistServe, arXiv 2401.09670): a fast server that is late is not
good. Bounds hold for each request by itself, so a good mean cannot hide a bad tail.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from radixlm.benchmark.outcome import Outcome
from radixlm.config.flags import at_least, flag, within


@dataclass(frozen=True)
class Slo:
    """Bounds on one request, in ms; None: no bound."""

    slo_ttft_ms: float | None = flag(None, "longest time to first token", check=at_least(0))
    slo_tpot_ms: float | None = flag(None, "longest mean time per further token", check=at_least(0))
    slo_itl_ms: float | None = flag(None, "longest gap between any two tokens", check=at_least(0))
    slo_e2e_ms: float | None = flag(None, "longest whole latency", check=at_least(0))
    slo_attainment: float = flag(0.9, "share of requests that must meet every bound", check=within(0, 1))

    @property
    def empty(self) -> bool:
        return self.slo_ttft_ms is self.slo_tpot_ms is self.slo_itl_ms is self.slo_e2e_ms is None

    def met(self, outcome: Outcome, paced: bool) -> bool:
        """Whether a request kept every bound; one that failed did not.

        `paced`: requests arrive by themselves, so one that its client sent late has made its user wait. Where the
        client sends the next only when one has ended, there is no such user.
        """
        if outcome.error is not None:
            return False
        late_s = outcome.sent_s - outcome.due_s if paced else 0.0
        tokens = outcome.output_tokens
        tpot_s = (outcome.latency_s - outcome.ttft_s) / (tokens - 1) if tokens > 1 else 0.0
        worst_s = max(outcome.inter_token_s(), default=0.0)
        measured = (
            (self.slo_ttft_ms, outcome.ttft_s + late_s),
            (self.slo_tpot_ms, tpot_s),
            (self.slo_itl_ms, worst_s),
            (self.slo_e2e_ms, outcome.latency_s + late_s),
        )
        return all(bound is None or 1000 * value <= bound for bound, value in measured)


@dataclass(frozen=True)
class Goodput:
    """`per_s`: requests per second that met every bound; `attainment`: their share of all, failed ones included."""

    per_s: float
    attainment: float

    @staticmethod
    def of(slo: Slo, outcomes: Sequence[Outcome], duration_s: float, paced: bool) -> "Goodput":
        """Of one run; `paced` as in `Slo.met`."""
        met = sum(slo.met(outcome, paced) for outcome in outcomes)
        return Goodput(met / duration_s if duration_s > 0 else 0.0, met / len(outcomes) if outcomes else 0.0)
