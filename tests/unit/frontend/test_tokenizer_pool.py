"""Tokenizer workers: the same ids as here, in order, whatever is in the batch; errors stay errors of their request."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest

from radixlm.base.errors import RadixError, RequestError
from radixlm.frontend.prompts import Encoder, LocalPrompts, encode
from radixlm.frontend.tokenizer_pool import INLINE_CHARS, TokenizerPool
from radixlm.frontend.tokenizer_process import run
from radixlm.protocol.messages import ShutdownReq
from radixlm.protocol.wire import Addresses, Sender
from tests.helpers.vocabularies import SAMPLE, byte_level

TOKENIZER = byte_level()
LONG = [sample * (2 + INLINE_CHARS // len(sample)) for sample in SAMPLE]


class Choosy:
    """The real tokenizer, but for one text that it cannot take."""

    bos_token_id = TOKENIZER.bos_token_id

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        if "BOOM" in text:
            raise ValueError("boom")
        return TOKENIZER.encode(text, add_special_tokens)


@contextmanager
def workers(addresses: Addresses, count: int, tokenizer: Encoder) -> Iterator[None]:
    threads = [threading.Thread(target=run, args=(addresses, worker, tokenizer)) for worker in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for worker, thread in enumerate(threads):
            sender = Sender(addresses.tokenize(worker))
            sender.send(ShutdownReq())
            thread.join(5)
            sender.close()
            assert not thread.is_alive()


def with_pool(count: int, test: Callable[[TokenizerPool], Awaitable[None]], tokenizer: Encoder = TOKENIZER) -> None:
    """Run `test` on a loop with a pool of `count` workers, which are threads here."""

    async def main() -> None:
        pool = TokenizerPool(addresses, count, LocalPrompts(tokenizer))
        taking = asyncio.create_task(pool.run())
        try:
            await asyncio.wait_for(_finish(test(pool)), 20)
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            pool.close()

    addresses = Addresses.create()
    try:
        with workers(addresses, count, tokenizer):
            asyncio.run(main())
    finally:
        addresses.remove()


async def _finish(awaitable: Awaitable[None]) -> None:
    await awaitable


def test_a_batch_is_spread_and_comes_back_in_order() -> None:
    async def test(pool: TokenizerPool) -> None:
        texts = [*LONG, "", "x", "y" * 200_000, *(f"{number} " * 500 for number in range(30))]
        special = [number % 2 == 0 for number in range(len(texts))]
        batches = await asyncio.gather(*(pool.encode(texts, special) for _ in range(3)))
        expected = [encode(TOKENIZER, text, flag) for text, flag in zip(texts, special, strict=True)]
        for batch in batches:
            assert [array.tolist() for array in batch] == expected
            assert {array.dtype.name for array in batch} == {"int32"}

    with_pool(3, test)


def test_a_prompt_by_itself_is_done_here_and_the_next_one_by_a_worker() -> None:
    class Watched:
        """The real tokenizer, which knows what was asked in which thread."""

        bos_token_id = TOKENIZER.bos_token_id
        asked: ClassVar[list[tuple[str, bool]]] = []

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            self.asked.append((text, threading.current_thread() in working))
            if text == LONG[2]:
                came.set()
            assert text != LONG[1] or came.wait(10)
            return TOKENIZER.encode(text, add_special_tokens)

    working: set[threading.Thread] = set()
    came = threading.Event()

    async def test(pool: TokenizerPool) -> None:
        working.update(threading.enumerate())
        for special in (False, True):
            [ids] = await pool.encode([LONG[0]], [special])
            assert ids.tolist() == encode(TOKENIZER, LONG[0], special)
        assert Watched.asked == [(LONG[0], False)] * 2
        [one], [two] = await asyncio.gather(pool.encode([LONG[1]], [True]), pool.encode([LONG[2]], [True]))
        assert one.tolist() == encode(TOKENIZER, LONG[1], True) and two.tolist() == encode(TOKENIZER, LONG[2], True)
        assert sorted(Watched.asked[2:]) == sorted([(LONG[1], False), (LONG[2], True)])

    with_pool(2, test, Watched())


@pytest.mark.parametrize("fails", [False, True])
def test_a_prompt_that_nobody_waits_for_any_more_keeps_the_next_one_from_its_side(fails: bool) -> None:
    class Held:
        """The real tokenizer, which takes its time over the first text and knows in which thread each is done."""

        bos_token_id = TOKENIZER.bos_token_id

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            asked.append((text, threading.current_thread() in working))
            if len(asked) == 1:
                begun.set()
                assert let_go.wait(10)
                if fails:
                    raise ValueError("boom")
            return TOKENIZER.encode(text, add_special_tokens)

    begun, let_go = threading.Event(), threading.Event()
    asked: list[tuple[str, bool]] = []
    working: set[threading.Thread] = set()

    async def test(pool: TokenizerPool) -> None:
        working.update(threading.enumerate())
        leaving = asyncio.create_task(pool.encode([LONG[0]], [True]))
        try:
            assert await asyncio.to_thread(begun.wait, 10)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            for number in (1, 2):  # one after the other: nothing but the thread is busy
                [ids] = await pool.encode([LONG[number]], [True])
                assert ids.tolist() == encode(TOKENIZER, LONG[number], True)
        finally:
            let_go.set()
        assert asked == [(LONG[0], False), (LONG[1], True), (LONG[2], True)]
        while asked[-1][1]:  # the thread ends some time after it is let go, and then the front is free again
            await pool.encode([LONG[0]], [True])

    with_pool(2, test, Held())


def test_a_text_with_its_own_bos_gets_no_second_one() -> None:
    async def test(pool: TokenizerPool) -> None:
        [ids] = await pool.encode(["<s>" + LONG[0]], [True])
        assert ids[:2].tolist() == [TOKENIZER.bos_token_id, *encode(TOKENIZER, LONG[0], False)[:1]]

    with_pool(1, test)


def test_what_a_text_does_wrong_is_its_own_error() -> None:
    async def test(pool: TokenizerPool) -> None:
        with pytest.raises(RequestError) as refused:
            await pool.encode([LONG[0] + "\ud800"], [True])
        assert refused.value.field == "text" and refused.value.status == 400
        good, bad = pool.encode([LONG[0]], [True]), pool.encode([LONG[1] + "BOOM"], [True])
        answers = await asyncio.gather(good, bad, return_exceptions=True)
        assert isinstance(answers[1], RadixError) and "boom" in str(answers[1])
        assert not isinstance(answers[0], BaseException)
        assert len((await pool.encode([LONG[2]], [False]))[0])  # the worker lives
        with pytest.raises(RadixError, match="boom"):
            await pool.encode([LONG[1] + "BOOM"], [True])

    with_pool(1, test, Choosy())


def test_whoever_leaves_disturbs_nobody() -> None:
    async def test(pool: TokenizerPool) -> None:
        leaving = asyncio.create_task(pool.encode(LONG, [True] * len(LONG)))
        staying = asyncio.create_task(pool.encode(LONG, [False] * len(LONG)))
        await asyncio.sleep(0)
        leaving.cancel()
        assert [array.tolist() for array in await staying] == [encode(TOKENIZER, text, False) for text in LONG]

    with_pool(2, test)


def test_without_workers_short_texts_work_and_the_others_wait_until_told() -> None:
    async def main() -> None:
        pool = TokenizerPool(addresses, 2, LocalPrompts(TOKENIZER))
        assert (await pool.encode(["abc"], [False]))[0].tolist() == encode(TOKENIZER, "abc", False)
        waiting = asyncio.create_task(pool.encode(LONG, [True] * len(LONG)))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        pool.fail("tokenizer-1 process (pid 7) was killed by SIGKILL")
        for late in (waiting, asyncio.create_task(pool.encode(LONG, [True] * len(LONG)))):
            with pytest.raises(RequestError, match="SIGKILL") as failed:
                await late
            assert failed.value.status == 500
        pool.close()

    addresses = Addresses.create()
    asyncio.run(main())
    addresses.remove()
