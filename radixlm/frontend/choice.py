"""One running choice as its consumer sees it: a request, then a stream of updates. Knows nothing of HTTP or sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from radixlm.protocol.messages import CacheNamespace, Finished, Started


@dataclass(frozen=True, kw_only=True)
class ChoiceRequest:
    """One prompt to be continued once. Exactly one of `text` and `input_ids` is given.

    `sampling_params` are raw, under their native (SGLang) names: the tokenizer manager validates them.
    `apply_generation_defaults` puts generation_config.json under them (chat does, the other routes do not).
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


@dataclass
class Update:
    """What is new since the consumer last looked: text and token ids appended; `finished` on the last one."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finished: Finished | None = None


class Choice:
    """A choice in flight. The tokenizer manager feeds it; one consumer reads it; updates not yet read are merged.

    Attributes:
        rid: the request id shown to the client. key: the internal one.
        prompt_ids: the prompt's tokens. started: known from the first update on.
        created: arrival time, Unix seconds. weight_version: of the weights that answered.
        truncated_tokens: how many tokens --allow-auto-truncate took off the prompt.
        interval: so many tokens are waited for before the consumer is woken, but for the first and the last ones.
    """

    def __init__(
        self, rid: str, key: int, prompt_ids: list[int], stream: bool, created: float, abort: Callable[[int], None]
    ) -> None:
        self.rid = rid
        self.key = key
        self.prompt_ids = prompt_ids
        self.stream = stream
        self.created = created
        self.started: Started | None = None
        self.finished: Finished | None = None
        self.finished_at: float | None = None
        self.truncated_tokens = 0
        self.weight_version = "default"
        self.interval = 1
        self._abort = abort
        self._pending = Update()
        self._taken = False
        self._event = asyncio.Event()

    def feed(self, text: str, token_ids: list[int], finished: Finished | None) -> None:
        """Append to what the consumer has not read yet (called by the tokenizer manager only)."""
        pending = self._pending
        pending.text += text
        pending.token_ids += token_ids
        if finished is not None:
            pending.finished = self.finished = finished
        if finished is not None or not self._taken or len(pending.token_ids) >= self.interval:
            self._event.set()

    async def next(self) -> Update:
        """Wait for something new and take it. After the update with `finished` there is nothing more to take."""
        await self._event.wait()
        self._event.clear()
        self._taken = True
        update, self._pending = self._pending, Update()
        return update

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
