"""A tokenizer manager that answers from scripts instead of a model. One character is one token; its id is its code."""

import asyncio
import itertools
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from radixlm.base.errors import RequestError
from radixlm.config.card import ModelCard
from radixlm.frontend import checks
from radixlm.frontend.choice import Choice, ChoiceRequest
from radixlm.frontend.records import record_of
from radixlm.observability.record import RequestRecord
from radixlm.protocol.control import FlushCacheReply, InternalStateReply, TreeNode, TreeReply
from radixlm.protocol.extras import Extras
from radixlm.protocol.messages import Finished, FinishReason, SchedulerReady, SchedulerStats, Started, TextOptions
from tests.wire.fake_extras import extras_of

CONTEXT_LEN = 1000
EOS = 2


@dataclass
class Script:
    """What a choice says: pieces of text with a pause before each, then a reason. `endless` repeats until aborted."""

    pieces: Sequence[str] = ("Hel", "lo ", "wörld")
    reason: FinishReason = field(default_factory=lambda: FinishReason("stop", matched=EOS))
    pause_s: float = 0.0
    endless: bool = False
    cached_tokens: int = 0


class FakeTokenizer:
    bos_token_id = 1

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self.bos_token_id] * add_special_tokens + [ord(c) for c in text]

    def encode_pair(self, first: str, second: str) -> tuple[list[int], int | None]:
        ids = self.encode(first)
        return [*ids, *self.encode(second, False)], len(ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(token) for token in ids if token != EOS or not skip_special_tokens)

    def piece(self, id_: int) -> bytes:
        return b"" if id_ == EOS else chr(id_).encode()

    def is_special(self, id_: int) -> bool:
        return id_ == EOS


class FakeTemplate:
    """Renders `<role>content` per message, and a last `<assistant>`; kwargs are shown so that tests can see them."""

    source = "<role>content"

    def render(
        self, messages, tools=None, add_generation_prompt=True, continue_final_message=False, limit_s=None, **kwargs
    ):  # type: ignore[no-untyped-def]
        if not messages:
            raise RequestError("messages must not be empty", "messages")
        if any(message["content"] == "explode" for message in messages):
            raise RequestError("the chat template cannot render these messages: roles must alternate", "messages")
        tail = messages[-1]["content"] if continue_final_message else ""
        messages = messages[:-1] if continue_final_message else messages
        shown = "".join(f"{key}={value};" for key, value in sorted(kwargs.items()))
        return (
            shown
            + "".join(f"<{m['role']}>{m['content']}" for m in messages)
            + "<assistant>" * add_generation_prompt
            + tail
        )


class FakeManager:
    """`script` chooses what each request gets; `requests` keeps what the routes asked for."""

    def __init__(self) -> None:
        self.ready: SchedulerReady | None = SchedulerReady(900, 1024, 8, 16, ["started"], {"context_len": CONTEXT_LEN})
        self.stats: SchedulerStats | None = None
        self.fatal: str | None = None
        self.draining = False
        self.paused = False
        self.pauses: list[str] = []
        self.pulse_age_s = 0.0
        self.busy = False
        self.script: Callable[[ChoiceRequest], Script] = lambda request: Script()
        self.requests: list[ChoiceRequest] = []
        self.live: dict[int, Choice] = {}
        self.aborted: list[str] = []
        self.tokenizer = FakeTokenizer()
        self.card = ModelCard(
            architecture="LlamaForCausalLM",
            model_type="llama",
            vocab_size=70000,
            hidden_size=8,
            intermediate_size=8,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=8,
            context_len=CONTEXT_LEN,
        )
        self._keys = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit_all(self, requests: list[ChoiceRequest]) -> list[Choice]:
        for request in requests:
            self._validate(request)
        return [self._start(request) for request in requests]

    def abort(self, rid: str | None, abort_all: bool = False) -> int:
        hit = [choice for choice in self.live.values() if abort_all or choice.rid == rid]
        for choice in hit:
            choice.abort()
        return len(hit)

    async def control(self, verb: str, request: msgspec.Struct) -> msgspec.Struct:
        if verb == "get_weights_by_name":
            raise RequestError("Get parameter by name failed", "name")
        if verb == "tree":
            return TreeReply(
                [TreeNode(-1, 32, 3, 1, 0, 2, [72, 105]), TreeNode(0, 16, 1, 0, 4, 0, [60, 98])], 9, 99, 48
            )
        if verb == "flush_cache":
            return FlushCacheReply(not self.busy, "Requests are running." if self.busy else "Cache flushed.")
        return InternalStateReply({"step": 7})

    async def pause(self, mode: str) -> None:
        self.paused = True
        self.pauses.append(mode)
        if mode == "abort":
            self.abort(None, abort_all=True)

    async def resume(self) -> None:
        self.paused = False
        self.pauses.append("resume")

    def records(self, most: int) -> list[RequestRecord]:
        return [record_of(one, one.created, 0, None, 0.0) for one in list(self.live.values())[::-1][:most]]

    def healthy(self, now_monotonic: float) -> bool:
        return self.pulse_age_s < 20

    def _validate(self, request: ChoiceRequest) -> None:
        if request.input_ids is not None:
            checks.token_ids("input_ids", request.input_ids, self.card.vocab_size)
        size = len(self._prompt_ids(request))
        if not size:
            raise RequestError("The prompt has no tokens.", "text")
        if size >= CONTEXT_LEN:
            message = f"The input ({size} tokens) is longer than the model's context length ({CONTEXT_LEN} tokens)."
            raise RequestError(message, "input_ids", code="context_length_exceeded")
        limit = request.sampling_params.get("max_new_tokens", 128)
        if limit is not None and limit < 0:
            raise RequestError("max_new_tokens must be at least 0", "max_new_tokens")
        if request.rid in [choice.rid for choice in self.live.values()]:
            raise RequestError(f"rid {request.rid} is in use", "rid")

    def _prompt_ids(self, request: ChoiceRequest) -> list[int]:
        return request.input_ids if request.input_ids is not None else [ord(c) for c in request.text or ""]

    def _start(self, request: ChoiceRequest) -> Choice:
        self.requests.append(request)
        key = next(self._keys)
        rid = request.rid or uuid.uuid4().hex
        choice = Choice(rid, key, self._prompt_ids(request), request.stream, time.time(), self._abort_key)
        self.live[key] = choice
        if request.logprobs is not None:
            start = min(request.logprobs.start, len(choice.prompt_ids))
            choice.logprobs = msgspec.structs.replace(request.logprobs, start=start)
        task = asyncio.get_running_loop().create_task(self._play(request, choice, self.script(request)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return choice

    async def _play(self, request: ChoiceRequest, choice: Choice, script: Script) -> None:
        said, hidden = 0, request.hidden_states is not None
        for piece in itertools.cycle(script.pieces) if script.endless else script.pieces:
            await asyncio.sleep(script.pause_s)
            if choice.finished is not None:
                return
            choice.started = self._started(choice, script)
            tokens = [ord(c) for c in piece]
            choice.feed(piece, tokens, None, extras_of(choice, tokens, not said, hidden))
            said += len(piece)
        await asyncio.sleep(script.pause_s)
        if choice.finished is None:
            choice.started = self._started(choice, script)
            tail = [EOS] if script.reason.matched == EOS else []
            extras = extras_of(choice, tail, not said, hidden)
            self._finish(choice, script.reason, said + len(tail), script.cached_tokens, tail, extras)

    def _started(self, choice: Choice, script: Script) -> Started:
        return Started(choice.key, len(choice.prompt_ids), script.cached_tokens, 0.25, TextOptions())

    def _finish(
        self,
        choice: Choice,
        reason: FinishReason,
        said: int,
        cached: int,
        tail: list[int],
        extras: Extras | None = None,
    ) -> None:
        choice.finished_at = time.time()
        choice.feed("", tail, Finished(choice.key, reason, len(choice.prompt_ids), said, cached, 0), extras)
        del self.live[choice.key]

    def _abort_key(self, key: int) -> None:
        choice = self.live[key]
        self.aborted.append(choice.rid)
        self._finish(choice, FinishReason("abort", message="Aborted"), 0, 0, [])
