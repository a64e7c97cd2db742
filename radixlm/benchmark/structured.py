"""`radixlm bench structured`: what structured output costs, beside free text of the same length on the same server.

Rounds with and without a grammar take turns, so that whatever else the machine does falls on both.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixlm.base.client_key import KEY_HELP, check_key
from radixlm.base.errors import RadixError
from radixlm.benchmark.http1 import HttpClient, HttpFailure
from radixlm.benchmark.launched import at
from radixlm.benchmark.options import client_at
from radixlm.benchmark.workers import run_async
from radixlm.config.commandline import Program, command, table
from radixlm.config.flags import at_least, flag, http_url, json_text

REQUEST_LIMIT_S = 600.0
# An array that is not over within any usual output, so that both kinds of answer are equally long.
PEOPLE = (
    '{"type": "array", "minItems": 10000, "items": {"type": "object", "properties": {"name": {"type": "string"}, '
    '"age": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}}, '
    '"required": ["name", "age", "tags"], "additionalProperties": false}}'
)


@dataclass(frozen=True)
class StructuredOptions:
    """The load; all requests of a round are sent at once."""

    base_url: str | None = flag(
        None, "a server that runs; one is started with the further options when unset", parse=http_url
    )
    api_key: str | None = flag(None, KEY_HELP, secret=True)
    concurrency: int = flag(16, "requests at once", check=at_least(1))
    output_len: int = flag(128, "output tokens of each request", check=at_least(1))
    rounds: int = flag(5, "rounds of each kind", check=at_least(1))
    json_schema: str = flag(PEOPLE, "what the answers must follow; it must not let them end early", parse=json_text)


PROGRAM = Program(
    "structured",
    "Measure what structured output costs. Further options are those of radixlm serve.",
    {"load": StructuredOptions},
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    found, rest = PROGRAM.read_known(argv, "[MODEL] [options of radixlm serve]")
    options: StructuredOptions = found["load"]
    with at(options.base_url, rest) as url:
        free, structured = run_async(run(url, options))
    print(shown(free, structured))
    return 0


async def run(url: str, options: StructuredOptions) -> tuple[list[float], list[float]]:
    """Output tokens per second of each round, free and structured. RadixError when a request fails."""
    client = client_at(url, options.api_key)
    free: list[float] = []
    structured: list[float] = []
    try:
        for number in range(options.rounds + 1):
            kinds = [("free", {}), ("structured", {"json_schema": options.json_schema})]
            if number % 2:  # neither is always the second
                kinds.reverse()
            speeds = {name: await _round(client, options, f"{name} {number}", grammar) for name, grammar in kinds}
            if number:  # the first pair only warms up: the grammar is compiled in it
                free.append(speeds["free"])
                structured.append(speeds["structured"])
    finally:
        client.close()
    return free, structured


async def _round(client: HttpClient, options: StructuredOptions, name: str, grammar: dict[str, Any]) -> float:
    """Output tokens per second. `name` makes the prompts new to the prefix cache."""
    bodies = [_body(options, f"{index} of {name}", grammar) for index in range(options.concurrency)]
    began = time.monotonic()
    tokens = sum(await asyncio.gather(*(_answer(client, body) for body in bodies)))
    seconds = time.monotonic() - began
    wanted = options.concurrency * options.output_len
    if tokens != wanted:
        raise RadixError(f"{tokens} output tokens in place of {wanted}: the schema lets answers end early")
    return tokens / seconds


def _body(options: StructuredOptions, name: str, grammar: dict[str, Any]) -> bytes:
    params = {
        "max_new_tokens": options.output_len,
        "ignore_eos": True,
        "temperature": 0.7,
        "sampling_seed": 1,
        **grammar,
    }
    text = f"Request {name}. Write a list of people, each with a name, an age and some tags, as JSON:\n"
    return msgspec.json.encode({"text": text, "sampling_params": params})


async def _answer(client: HttpClient, body: bytes) -> int:
    """The output tokens that one request got."""
    try:
        status, answer = await client.fetch("POST", "/generate", REQUEST_LIMIT_S, body)
    except HttpFailure as error:
        raise RadixError(f"a request failed: {error}") from None
    check_key(client.target.url, status)
    if status != 200:
        raise RadixError(f"a request failed with {status}: {answer.decode(errors='replace')[:300]}")
    return int(msgspec.json.decode(answer)["meta_info"]["completion_tokens"])


def shown(free: Sequence[float], structured: Sequence[float]) -> str:
    """The rounds side by side, and the median of their ratios."""
    ratios = [second / first for first, second in zip(free, structured, strict=True)]
    rows = [("round", "free tok/s", "structured tok/s", "ratio")]
    rows += [
        (str(number), f"{first:.1f}", f"{second:.1f}", f"{ratio:.3f}")
        for number, (first, second, ratio) in enumerate(zip(free, structured, ratios, strict=True), 1)
    ]
    rows.append(("median", f"{statistics.median(free):.1f}", f"{statistics.median(structured):.1f}", ""))
    return f"{table(rows)}\nstructured output runs at {statistics.median(ratios):.1%} of free text's speed (median)"


if __name__ == "__main__":
    sys.exit(main())
