"""A server that speaks the measured APIs with instant fake tokens, to find the client's own ceiling. Knows no model.

It can also misbehave on purpose (`--fail-every`, `--cut-every`), so that failure handling is seen at work.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import msgspec

from radixlm.base.errors import RadixError
from radixlm.benchmark.workers import run_async
from radixlm.config.commandline import Program, command
from radixlm.config.flags import at_least, flag, within

WORD = " tok"
WORD_ID = 7
LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True)
class Behaviour:
    """How the stub answers."""

    events_per_s: float = flag(0.0, "of each stream; 0 sends all at once", check=at_least(0))
    tokens_per_event: int = flag(1, "tokens of an event", check=at_least(1))
    incremental: bool = flag(False, "/generate sends increments, not the text so far")
    fail_every: int = flag(0, "answer each N-th request with status 500; 0: none", check=at_least(0))
    cut_every: int = flag(0, "cut each N-th stream off in its middle; 0: none", check=at_least(0))


@dataclass(frozen=True)
class Address:
    """Where it listens."""

    host: str = flag("127.0.0.1", "its address")
    port: int = flag(30000, "its port; 0 takes a free one, and the line printed says which", check=within(0, 65535))


PROGRAM = Program(
    "radixlm.benchmark.stub",
    "A server that speaks the measured APIs with instant fake tokens.",
    {"address": Address, "behaviour": Behaviour},
    family="python -m",
)


@dataclass
class _Shape:
    """What one request asked for."""

    prompt_tokens: int
    output_tokens: int
    stream: bool
    usage: bool


class _NativeApi:
    """Events of `/generate`. The growing part of a cumulative event is the same for every stream, so it is kept."""

    def __init__(self, incremental: bool) -> None:
        self._incremental = incremental
        self._heads: dict[tuple[int, int], bytes] = {}

    def shape(self, body: dict[str, Any]) -> _Shape:
        prompt = body.get("input_ids") or body.get("text") or ""
        wanted = int(body.get("sampling_params", {}).get("max_new_tokens", 128))
        return _Shape(_prompt_tokens(prompt), wanted, bool(body.get("stream")), True)

    def event(self, shape: _Shape, before: int, now: int) -> bytes:
        """The event that takes the answer from `before` to `now` tokens."""
        first = before if self._incremental else 0
        head = self._heads.get((first, now))
        if head is None:
            ids = ",".join([str(WORD_ID)] * (now - first))
            head = f'{{"text":"{WORD * (now - first)}","output_ids":[{ids}],"meta_info":{{"id":"stub",'.encode()
            self._heads[first, now] = head
        reason = f'{{"type":"length","length":{now}}}' if now == shape.output_tokens else "null"
        tail = (
            f'"finish_reason":{reason},"prompt_tokens":{shape.prompt_tokens},"weight_version":"default",'
            f'"completion_tokens":{now},"cached_tokens":0,"cached_tokens_details":null}}}}'
        )
        return head + tail.encode()

    def closing(self, shape: _Shape) -> list[bytes]:
        return []

    def whole(self, shape: _Shape) -> bytes:
        return self.event(shape, 0, shape.output_tokens)


class _OpenAiApi:
    """Events of the two OpenAI routes; every event of a stream but the last is the same bytes."""

    def __init__(self, chat: bool) -> None:
        self._chat = chat
        self._kept: dict[tuple[int, bool], bytes] = {}

    def shape(self, body: dict[str, Any]) -> _Shape:
        prompt = body["messages"][-1]["content"] if self._chat else body["prompt"]
        wanted = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return _Shape(_prompt_tokens(prompt), wanted, bool(body.get("stream")), usage)

    def event(self, shape: _Shape, before: int, now: int) -> bytes:
        key = (now - before, now == shape.output_tokens)
        if key not in self._kept:
            text = WORD * (now - before)
            part: dict[str, Any] = {"delta": {"content": text}} if self._chat else {"text": text}
            finish = "length" if key[1] else None
            self._kept[key] = self._answer([{"index": 0, **part, "logprobs": None, "finish_reason": finish}], None)
        return self._kept[key]

    def closing(self, shape: _Shape) -> list[bytes]:
        return [self._answer([], shape)] if shape.usage else []

    def whole(self, shape: _Shape) -> bytes:
        text = WORD * shape.output_tokens
        part: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        return self._answer([{"index": 0, **part, "logprobs": None, "finish_reason": "length"}], shape)

    def _answer(self, choices: list[dict[str, Any]], usage_of: _Shape | None) -> bytes:
        kind = "chat.completion" if self._chat else "text_completion"
        answer: dict[str, Any] = {"id": "stub", "object": kind, "created": 0, "model": "stub", "choices": choices}
        if usage_of is not None:
            prompt, output = usage_of.prompt_tokens, usage_of.output_tokens
            details = {"cached_tokens": 0}
            answer["usage"] = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
            answer["usage"]["prompt_tokens_details"] = details
        return msgspec.json.encode(answer)


Api = _NativeApi | _OpenAiApi


def _prompt_tokens(prompt: str | list[int]) -> int:
    return len(prompt.split()) if isinstance(prompt, str) else len(prompt)


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\ndata: %b\n\n\r\n" % (len(payload) + 8, payload)


@dataclass(eq=False)
class _Stream:
    """One answer being written."""

    transport: asyncio.Transport
    api: Api
    shape: _Shape
    cut_at: int | None
    finished: Callable[[], None]
    sent_tokens: int = field(default=0)

    def step(self, tokens: int) -> bool:
        """Write the next event; True when that ended the answer (or the client has gone)."""
        if self.transport.is_closing():
            return True
        if self.cut_at is not None and self.sent_tokens >= self.cut_at:
            self.transport.close()
            return True
        before = self.sent_tokens
        self.sent_tokens = min(before + tokens, self.shape.output_tokens)
        chunk = _chunk(self.api.event(self.shape, before, self.sent_tokens))
        if self.sent_tokens < self.shape.output_tokens:
            self.transport.write(chunk)
            return False
        closing = [_chunk(payload) for payload in [*self.api.closing(self.shape), b"[DONE]"]]
        self.transport.write(b"".join([chunk, *closing, LAST_CHUNK]))
        self.finished()
        return True


class Stub:
    """The state shared by the stub's connections: its streams, which advance together like rows of a decode batch."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.apis: dict[str, Api] = {
            "/generate": _NativeApi(behaviour.incremental),
            "/v1/completions": _OpenAiApi(chat=False),
            "/v1/chat/completions": _OpenAiApi(chat=True),
        }
        self.answered = 0
        self._streams: list[_Stream] = []
        self._stepping: asyncio.TimerHandle | None = None

    def fault(self) -> str | None:
        """What is to go wrong with the next answer, if anything."""
        self.answered += 1
        if self.behaviour.fail_every and self.answered % self.behaviour.fail_every == 0:
            return "fail"
        if self.behaviour.cut_every and self.answered % self.behaviour.cut_every == 0:
            return "cut"
        return None

    def start(self, stream: _Stream) -> None:
        if self.behaviour.events_per_s <= 0:
            while not stream.step(self.behaviour.tokens_per_event):
                pass
            return
        self._streams.append(stream)
        if self._stepping is None:
            self._step_at(asyncio.get_running_loop().time() + 1 / self.behaviour.events_per_s)

    def _step_at(self, due_s: float) -> None:
        self._stepping = asyncio.get_running_loop().call_at(due_s, self._step, due_s)

    def _step(self, due_s: float) -> None:
        self._streams = [s for s in self._streams if not s.step(self.behaviour.tokens_per_event)]
        self._stepping = None
        if self._streams:  # a late step does not make the later ones come faster
            self._step_at(max(due_s + 1 / self.behaviour.events_per_s, asyncio.get_running_loop().time()))


class _Connection(asyncio.Protocol):
    """One client connection; requests on it are answered in turn. Methods named on_… are httptools' callbacks."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = bytearray()
        self._queue: list[tuple[str, bytes]] = []
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        self._url = b""
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._queue.append((self._url.partition(b"?")[0].decode("latin-1"), bytes(self._body)))
        self._next()

    def _next(self) -> None:
        while self._queue and not self._busy:
            path, body = self._queue.pop(0)
            self._answer(path, body)

    def _answer(self, path: str, body: bytes) -> None:
        api = self._stub.apis.get(path)
        if api is None:
            self._whole(*_plain_route(path))
            return
        fault = self._stub.fault()
        if fault == "fail":
            self._whole(500, b'{"error":{"message":"failing as asked"}}')
            return
        try:
            shape = api.shape(json.loads(body))
        except (ValueError, KeyError, TypeError) as error:
            self._whole(400, msgspec.json.encode({"error": {"message": f"bad request: {error!r}"}}))
            return
        if not shape.stream:
            self._whole(200, api.whole(shape))
            return
        self._busy = True
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._transport.write(head.encode())
        cut_at = shape.output_tokens // 2 if fault == "cut" else None
        self._stub.start(_Stream(self._transport, api, shape, cut_at, self._stream_finished))

    def _stream_finished(self) -> None:
        self._busy = False
        self._next()

    def _whole(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} Stub\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


def _plain_route(path: str) -> tuple[int, bytes]:
    answers: dict[str, Any] = {
        "/v1/models": {"object": "list", "data": [{"id": "stub", "object": "model", "owned_by": "radixlm"}]},
        "/model_info": {"model_path": "stub", "tokenizer_path": "stub", "is_generation": True},
        "/server_info": {"status": "ready", "version": "stub", "internal_states": [{}]},
        "/flush_cache": "Cache flushed.",
        "/reset_prefix_cache": {},
        "/health": {},
    }
    if path not in answers:
        return 404, b'{"detail":"Not Found"}'
    return 200, msgspec.json.encode(answers[path])


async def serve(host: str, port: int, behaviour: Behaviour) -> asyncio.Server:
    """A listening stub; port 0 takes a free one."""
    stub = Stub(behaviour)
    return await asyncio.get_running_loop().create_server(lambda: _Connection(stub), host, port, backlog=4096)


async def _run(address: Address, behaviour: Behaviour) -> None:
    try:
        server = await serve(address.host, address.port, behaviour)
    except OSError as error:
        raise RadixError(f"cannot listen at {address.host}:{address.port}: {error.strerror}") from None
    print(f"listening on http://{address.host}:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    found = PROGRAM.read(argv)
    run_async(_run(found["address"], found["behaviour"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
