"""Merging of updates, seeds of siblings, limits."""

import pytest

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import Choice
from radixlm.protocol.messages import Finished, FinishReason
from radixlm.server.generation import check_n, choice_seed, error_of
from radixlm.server.limits import MAX_CHOICES, MAX_N


def choice(key):
    return Choice(f"r{key}", key, [1, 2], True, 0.0, lambda _: None)


def end(key):
    return Finished(key, FinishReason("stop", matched=2), 2, 1, 0, 0)


def test_first_seed_is_the_given_one_and_others_are_distinct_int64():
    seeds = [choice_seed(7, index) for index in range(1000)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 1000
    assert all(-(1 << 63) <= seed < 1 << 63 for seed in seeds)
    assert not set(seeds) & {choice_seed(8, index) for index in range(1000)}
    assert choice_seed("seven", 3) == "seven"


@pytest.mark.parametrize("n", [0, -1, MAX_N + 1, True, 1.5, "2"])
def test_bad_n(n):
    with pytest.raises(RequestError, match="n must be an integer") as error:
        check_n(n, 1)
    assert error.value.field == "n"


def test_n_and_prompts_together_are_limited():
    assert check_n(None, MAX_CHOICES) == 1
    assert check_n(4, 10) == 4
    with pytest.raises(RequestError, match=str(MAX_CHOICES)):
        check_n(2, MAX_CHOICES)


def test_only_aborts_with_a_status_are_errors():
    assert error_of(None) is None
    assert error_of(FinishReason("abort", message="Aborted")) is None
    error = error_of(FinishReason("abort", message="The request queue is full.", status_code=503))
    assert error is not None and error.status == 503 and error.message == "The request queue is full."
