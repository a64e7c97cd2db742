"""Choices and their updates: what is not read is merged, whoever waits is woken, and a stalled reader costs little."""

import asyncio
import time

from radixlm.frontend.choice import Choice, Update, Updates
from radixlm.protocol.messages import Finished, FinishReason


def choice(key: int) -> Choice:
    return Choice(f"r{key}", key, [1], True, 0.0, lambda key: None)


def end(key: int) -> Finished:
    return Finished(key, FinishReason("stop"), 1, 1, 0, 0)


def test_updates_of_many_choices_are_merged_while_the_consumer_is_busy() -> None:
    async def run() -> tuple[dict[int, Update], int]:
        choices = [choice(0), choice(1)]
        seen = {0: Update(), 1: Update()}
        batches = 0
        choices[0].feed("a", [1], None)
        updates = Updates(choices)
        while batch := await updates.next():
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
    assert batches == 2


def test_whoever_waits_is_woken_once_for_all_that_came_together() -> None:
    async def run() -> list[list[tuple[int, str]]]:
        choices = [choice(0), choice(1), choice(2)]
        updates = Updates(choices)
        waiting = asyncio.create_task(updates.next())
        await asyncio.sleep(0)
        choices[2].feed("z", [1], None)
        choices[0].feed("x", [1], None)
        first = await waiting
        cancelled = asyncio.create_task(updates.next())
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        choices[1].feed("y", [1], None)  # nobody waits any more; nothing is lost
        return [[(index, update.text) for index, update in batch] for batch in (first, await updates.next())]

    assert asyncio.run(run()) == [[(0, "x"), (2, "z")], [(1, "y")]]


def test_between_the_first_and_the_last_token_the_interval_is_waited_for() -> None:
    async def run() -> list[int]:
        one = choice(0)
        one.interval = 3
        sizes = []
        for step in range(8):
            one.feed("x", [step], end(0) if step == 7 else None)
            updates = asyncio.create_task(one.next())
            await asyncio.sleep(0)
            if updates.done() or step in (0, 3, 6, 7):
                sizes.append(len((await updates).token_ids))
            else:
                updates.cancel()
        return sizes

    assert asyncio.run(run()) == [1, 3, 3, 1]


def test_a_stalled_reader_costs_time_proportional_to_what_it_has_not_read() -> None:
    def seconds(count: int) -> float:
        one = choice(0)
        began = time.process_time()
        for _ in range(count):
            one.feed("0123456789abcdef", [1], None)
        assert len(one.take().text) == 16 * count
        return time.process_time() - began

    assert seconds(200_000) < 40 * max(seconds(20_000), 1e-3)
