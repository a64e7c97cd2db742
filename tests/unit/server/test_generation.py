"""Merging of updates, seeds of siblings, limits."""

import asyncio

import pytest

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import Choice, Update
from radixlm.protocol.messages import Finished, FinishReason
from radixlm.server.generation import check_n, choice_seed, error_of, merged_updates
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


def test_updates_of_many_choices_are_merged_while_the_consumer_is_busy():
    async def run():
        choices = [choice(0), choice(1)]
        seen = {0: Update(), 1: Update()}
        batches = 0
        choices[0].feed("a", [1], None)
        async for batch in merged_updates(choices):
            batches += 1
            for index, update in batch:
                seen[index].text += update.text
                seen[index].token_ids += update.token_ids
                seen[index].finished = update.finished
            if batches == 1:
                for step in range(5):
                    choices[1].feed(str(step), [step], None)
                    choices[0].feed("b", [9], end(0) if step == 4 else None)
                    await asyncio.sleep(0)
                choices[1].feed("", [], end(1))
        return seen, batches

    seen, batches = asyncio.run(run())
    assert seen[0].text == "abbbbb" and seen[0].token_ids == [1, 9, 9, 9, 9, 9]
    assert seen[1].text == "01234" and seen[1].token_ids == [0, 1, 2, 3, 4]
    assert seen[0].finished is not None and seen[1].finished is not None
    assert batches <= 3


def test_leaving_early_leaves_no_task_behind():
    async def run():
        choices = [choice(0), choice(1), choice(2)]
        choices[1].feed("x", [1], None)
        updates = merged_updates(choices)
        await anext(updates)
        await updates.aclose()
        return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1
