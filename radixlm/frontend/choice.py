"""Running choices as their consumer sees them: requests, then streams of updates. Knows nothing of HTTP or sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np

from radixlm.protocol.arrays import F32, I32
from radixlm.protocol.extras import Extras, LogprobOptions
from radixlm.protocol.grammar import Thinking
from radixlm.protocol.messages import CacheNamespace, Finished, Started


@dataclass(frozen=True, kw_only=True)
class ChoiceRequest:
    """One prompt to be continued once: either `text`, `input_ids` or `input_embeds` (float32 [n, hidden_size]).

    `sampling_params` are raw, under their native (SGLang) names: the tokenizer manager validates them.
    `apply_generation_defaults` puts generation_config.json under them (chat does, the other routes do not).
    `hidden_states`: of all positions, or only of the prompt's last one and those after it. `pooled`: nothing is to be
    generated; the extras have the prompt's vector. `second_at`: where the second of two texts begins in `input_ids`.
    `thinking`: how it is told from the answer; a grammar begins after it, unless `answer_at_once`. `processor`: the
    name of a registered logit processor, which is told `custom_params`. `grammar_field`: the field that a grammar comes
    from, where it is not the one of its kind.
    """

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: dict[str, Any] = field(default_factory=dict)
    stream: bool = False
    rid: str | None = None
    add_special_tokens: bool = True
    apply_generation_defaults: bool = False
    namespace: CacheNamespace = field(default_factory=CacheNamespace)
    priority: int | None = None
    routing_key: str = ""
    trace_parent: str | None = None
    input_embeds: F32 | None = None
    logprobs: LogprobOptions | None = None
    hidden_states: Literal["full", "last"] | None = None
    pooled: bool = False
    second_at: int | None = None
    thinking: Thinking | None = None
    answer_at_once: bool = False
    processor: str | None = None
    grammar_field: str | None = None


@dataclass(slots=True)
class Update:
    """What is new since the consumer last looked: text, token ids and extras; `finished` on the last one."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finished: Finished | None = None
    extras: list[Extras] = field(default_factory=list)


class Choice:
    """A choice in flight. The tokenizer manager feeds it; one consumer reads it; updates not yet read are merged.

    Attributes:
        rid: the request id shown to the client. key: the internal one.
        prompt_tokens: the prompt's length. started: known from the first update on.
        created: arrival time, Unix seconds. weight_version: of the weights that answered.
        truncated_tokens: how many tokens --allow-auto-truncate took off the prompt.
        trace_parent: the W3C traceparent of the client, for traces.
        logprobs: which log probabilities it has.
        interval: so many tokens are waited for before the consumer is woken, but for the first and the last ones.
    """

    def __init__(
        self,
        rid: str,
        key: int,
        prompt_ids: Sequence[int] | I32,
        stream: bool,
        created: float,
        abort: Callable[[int], None],
    ) -> None:
        self.rid = rid
        self.key = key
        self.prompt_tokens = len(prompt_ids)
        self.stream = stream
        self.created = created
        self.started: Started | None = None
        self.finished: Finished | None = None
        self.finished_at: float | None = None
        self.truncated_tokens = 0
        self.trace_parent: str | None = None
        self.logprobs: LogprobOptions | None = None
        self.weight_version = "default"
        self.interval = 1
        self._prompt_ids = prompt_ids
        self._abort = abort
        self._pending: Update | None = None
        self._more: list[str] = []  # texts after the pending one's own
        self._taken = False
        self._due = False
        self._on_due: Callable[[], None] | None = None

    @cached_property
    def prompt_ids(self) -> list[int]:
        """The prompt's tokens."""
        ids: list[int] = np.asarray(self._prompt_ids, np.int32).tolist()
        return ids

    def feed(
        self,
        text: str,
        token_ids: list[int],
        finished: Finished | None,
        extras: Extras | None = None,
        more: bool = False,
    ) -> None:
        """Append to what the consumer has not read yet; `token_ids` are taken over. The tokenizer manager calls it.

        With `more`, another call follows at once, and the consumer is told then.
        """
        pending = self._pending
        if pending is None:
            pending = self._pending = Update(text, token_ids)
        else:
            self._more.append(text)
            pending.token_ids += token_ids
        if extras is not None:
            pending.extras.append(extras)
        if finished is not None:
            pending.finished = self.finished = finished
        if more or self._due:
            return
        if finished is not None or not self._taken or len(pending.token_ids) >= self.interval:
            self._due = True
            if self._on_due is not None:
                self._on_due()

    def watch(self, on_due: Callable[[], None]) -> None:
        """Call `on_due` when there is something to take, at once if there is already, and again after each `take`."""
        self._on_due = on_due
        if self._due:
            on_due()

    def take(self) -> Update:
        """What is new; nothing new is an empty update."""
        update, self._pending = self._pending or Update(), None
        if self._more:
            update.text = "".join((update.text, *self._more))
            self._more = []
        self._taken, self._due = True, False
        return update

    async def next(self) -> Update:
        """Wait for something new and take it. After the update with `finished` there is nothing more to take."""
        if not self._due:
            waiter = asyncio.get_running_loop().create_future()
            self.watch(lambda: None if waiter.done() else waiter.set_result(None))
            await waiter
        return self.take()

    async def updates(self) -> AsyncIterator[Update]:
        while True:
            update = await self.next()
            yield update
            if update.finished is not None:
                return

    def abort(self) -> None:
        """Stop the request; harmless once it has finished."""
        if self.finished is None:
            self._abort(self.key)


class Updates:
    """What is new in several choices, whichever has something; what comes while the consumer is busy is merged."""

    def __init__(self, choices: Sequence[Choice], at_once: Callable[[int], bool] | None = None) -> None:
        """`at_once` is asked, while the consumer waits in `next`, to take what a choice has within the call that brings
        it, and says whether it has: with thousands of streams, to wake a task for each token costs more than the rest.
        """
        self._at_once = at_once
        self._choices = choices
        self._running = len(choices)
        self._due: list[int] = []
        self._waiter: asyncio.Future[None] | None = None
        for index, choice in enumerate(choices):
            choice.watch(partial(self._wake, index))

    def _wake(self, index: int) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():  # the consumer is busy, and takes in order
            self._due.append(index)
        elif self._at_once is None or not self._at_once(index):
            self._due.append(index)
            waiter.set_result(None)

    async def next(self) -> list[tuple[int, Update]]:
        """Wait for something new and take it, as (index, update) in order; empty once every choice has ended."""
        if not self._running:
            return []
        if not self._due:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        due, self._due = self._due, []
        batch = [(index, self._choices[index].take()) for index in sorted(due)]
        for _, update in batch:
            self._running -= update.finished is not None
        return batch
