"""Traces of requests: when each came, what it shared with others, how long its answer was. Reads files, runs nothing.

One JSON object a line. `timestamp` is in milliseconds; without it requests arrive as a Poisson process. The prompt is
one of `input_ids` (token ids), `hash_ids` with `input_length` (Mooncake's form: equal ids stand for equal blocks of
tokens), `prompt` or `text` or the first turn of `conversations` (text, which needs a tokenizer), or `input_length`
alone (nothing is shared). The answer's length is `output_length`, or the second turn's. `max_tokens` is what the client
asked for at most: without it, exactly the answer's length. `priority`, `routing_key` and `cache_salt` are optional.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from radixlm.base.errors import ConfigError
from radixlm.protocol.arrays import I32

TOKEN_SPACE = 1 << 31
Length = Annotated[int, msgspec.Meta(ge=1)]
Encode = Callable[[str], list[int]]


class Line(msgspec.Struct, frozen=True):
    """A line as it may come. Other keys are ignored."""

    timestamp: float | None = None
    input_length: Length | None = None
    output_length: Annotated[int, msgspec.Meta(ge=0)] | None = None
    hash_ids: list[int] | None = None
    input_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=TOKEN_SPACE)]] | None = None
    prompt: str | None = None
    text: str | None = None
    conversations: list[dict[str, Any]] | None = None
    max_tokens: Length | None = None
    priority: int | None = None
    routing_key: str = ""
    cache_salt: str = ""


class TraceRequest(msgspec.Struct, frozen=True):
    """One request. `prompt()` makes its int32 token ids when they are needed, for a trace may be larger than memory.

    `most_tokens` None: the answer is as long as was asked for; else it ends by itself after `output_tokens`.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prompt: Callable[[], I32]
    most_tokens: int | None = None
    priority: int | None = None
    routing_key: str = ""
    cache_salt: str = ""


def read_trace(
    path: str,
    *,
    block_tokens: int = 512,
    slowdown: float = 1.0,
    rate_per_s: float | None = None,
    most_requests: int | None = None,
    encode: Encode | None = None,
    seed: int = 0,
) -> list[TraceRequest]:
    """The requests of a file in order of arrival, the first at 0 s.

    `slowdown` stretches timestamps; `rate_per_s` replaces them. ConfigError names the file, the line and the field.
    """
    try:
        raw = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    lines = [(number, line) for number, line in enumerate(raw, 1) if line.strip()][:most_requests]
    if not lines:
        raise ConfigError(f"{path} holds no request")
    parsed = [_parse(line, f"{path}, line {number}") for number, line in lines]
    times = _arrivals(parsed, path, slowdown, rate_per_s, seed)
    maker = _Maker(block_tokens, encode)
    found = [
        maker.request(line, time, index, f"{path}, line {lines[index][0]}")
        for index, (line, time) in enumerate(zip(parsed, times, strict=True))
    ]
    return sorted(found, key=lambda request: request.arrival_s)


def _parse(line: bytes, where: str) -> Line:
    try:
        return msgspec.json.decode(line, type=Line)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where}: {error}") from None


def _arrivals(lines: list[Line], path: str, slowdown: float, rate: float | None, seed: int) -> Iterable[float]:
    stamps = [line.timestamp for line in lines if line.timestamp is not None]
    if rate is None and len(stamps) == len(lines):
        first = min(stamps)
        return [(stamp - first) / 1000 * slowdown for stamp in stamps]
    if rate is None:
        raise ConfigError(f"{path} has lines without a timestamp: give --request-rate")
    if rate == float("inf"):
        return [0.0] * len(lines)
    gaps = np.random.default_rng(seed).exponential(1 / rate, len(lines) - 1)
    return [0.0, *np.cumsum(gaps).tolist()]


class _Maker:
    """Makes requests of lines. Blocks get consecutive ids below TOKEN_SPACE, so that different ones never meet."""

    def __init__(self, block_tokens: int, encode: Encode | None) -> None:
        self._block_tokens = block_tokens
        self._encode = encode
        self._blocks: dict[int, int] = {}
        self._next_id = 1

    def request(self, line: Line, arrival_s: float, index: int, where: str) -> TraceRequest:
        tokens, prompt = self._prompt(line, index, where)
        output = line.output_length if line.output_length is not None else self._answer(line, where)
        if output > (line.max_tokens or output):
            raise ConfigError(f"{where}: output_length {output} is more than max_tokens {line.max_tokens}")
        extra = (line.max_tokens, line.priority, line.routing_key, line.cache_salt)
        return TraceRequest(arrival_s, tokens, output, prompt, *extra)

    def _prompt(self, line: Line, index: int, where: str) -> tuple[int, Callable[[], I32]]:
        if line.input_ids:
            ids = np.array(line.input_ids, np.int32)
            return len(ids), lambda: ids
        text = line.prompt or line.text or (_turn(line, 0, where) if line.conversations else None)
        if text:
            encoded = np.array(self._encoded(text, where), np.int32)
            return len(encoded), lambda: encoded
        length = line.input_length
        if length is None:
            raise ConfigError(f"{where}: no input_ids, prompt, conversations or input_length")
        if not line.hash_ids:
            return length, partial(_consecutive, [self._fresh_ids(length)], length, length)
        size = self._block_tokens
        if len(line.hash_ids) * size < length:
            raise ConfigError(
                f"{where}: {len(line.hash_ids)} hash_ids of {size} tokens are less than input_length {length}"
            )
        firsts = [self._blocks.get(value) or self._new_block(value) for value in line.hash_ids]
        return length, partial(_consecutive, firsts, size, length)

    def _new_block(self, value: int) -> int:
        self._blocks[value] = self._fresh_ids(self._block_tokens)
        return self._blocks[value]

    def _fresh_ids(self, count: int) -> int:
        """The first of `count` ids that nobody has; from the beginning again when all are used."""
        if self._next_id + count > TOKEN_SPACE:
            self._next_id = 1
        self._next_id += count
        return self._next_id - count

    def _answer(self, line: Line, where: str) -> int:
        if line.conversations and len(line.conversations) > 1:
            return len(self._encoded(_turn(line, 1, where), where))
        if line.max_tokens is None:
            raise ConfigError(f"{where}: no output_length")
        return line.max_tokens

    def _encoded(self, text: str, where: str) -> list[int]:
        if self._encode is None:
            raise ConfigError(f"{where}: a prompt as text needs --tokenizer")
        return self._encode(text)


def _turn(line: Line, index: int, where: str) -> str:
    turns = line.conversations or []
    value = turns[index].get("content", turns[index].get("value")) if index < len(turns) else None
    if not isinstance(value, str):
        raise ConfigError(f"{where}: conversations[{index}] has no text in `content` or `value`")
    return value


def _consecutive(firsts: list[int], size: int, length: int) -> I32:
    """The ids of blocks that begin at `firsts`, cut to `length`."""
    ids = np.array(firsts, np.int64)[:, None] + np.arange(size)
    return ids.reshape(-1)[:length].astype(np.int32)
