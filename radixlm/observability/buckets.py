"""Histogram edges, and the rules that replace them. Knows nothing of metrics or flags."""

from collections.abc import Sequence

from radixlm.base.errors import ConfigError

_LATENCY_TAIL = (2.0, 4.0, 6.0, 8.0)
TIME_TO_FIRST_TOKEN_S = (
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1.0,
    *_LATENCY_TAIL,
    10.0,
    20.0,
    40.0,
    60.0,
    80.0,
    100.0,
    200.0,
    400.0,
)
E2E_S = (*TIME_TO_FIRST_TOKEN_S, 600.0, 1200.0, 1800.0, 2400.0)
PER_TOKEN_S = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1.0, *_LATENCY_TAIL),
)
QUEUE_TIME_S = (
    *(0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0, 1200.0),
    *(1400.0, 1600.0, 1800.0, 2000.0, 2500.0, 3000.0),
)
GET_LOADS_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
STAGE_S = tuple(0.001 * 1.62**step for step in range(30))
TOKEN_COUNTS = (
    *(100.0, 300.0, 500.0, 700.0, 1000.0, 1500.0, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0, 7000.0, 8000.0, 9000.0),
    *(10000.0, 12500.0, 15000.0, 17500.0, 20000.0, 22500.0, 25000.0, 27500.0, 30000.0, 35000.0, 40000.0, 60000.0),
    *(80000.0, 100000.0, 200000.0, 300000.0, 400000.0, 600000.0, 800000.0, 1000000.0, 1100000.0),
)


def edges(values: Sequence[float] | None, default: Sequence[float], flag: str) -> tuple[float, ...]:
    """`values` sorted and without doubles, or `default` when there are none; ConfigError names `flag`."""
    if not values:
        return tuple(default)
    if any(value != value or value < 0 for value in values):
        raise ConfigError(f"{flag}: histogram edges must be numbers of at least 0")
    return tuple(sorted({float(value) for value in values}))


def token_count_edges(rule: Sequence[str] | None, flag: str) -> tuple[float, ...]:
    """Edges from the words of a rule: `default`; `custom V1 V2 ...`; `tse MIDDLE BASE COUNT`.

    `tse` puts edges at a distance of BASE^0 .. BASE^(COUNT-1) on both sides of MIDDLE. ConfigError names `flag`.
    """
    kind, *words = rule or ["default"]
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        raise ConfigError(f"{flag}: {' '.join(words)} are not all numbers") from None
    if kind == "default" and not numbers:
        return TOKEN_COUNTS
    if kind == "custom" and numbers:
        return edges(numbers, TOKEN_COUNTS, flag)
    if kind == "tse" and len(numbers) == 3 and numbers[1] > 1 and numbers[2] >= 1:
        middle, base, count = numbers
        distances = [base**exponent for exponent in range(int(count))]
        both_sides = [middle - distance for distance in distances] + [middle + distance for distance in distances]
        return edges([middle, *(edge for edge in both_sides if edge > 0)], TOKEN_COUNTS, flag)
    raise ConfigError(f"{flag}: write 'default', 'custom V1 V2 ...' or 'tse MIDDLE BASE COUNT' with BASE above 1")
