"""Plays a trace to a running server and takes the times, to hold a simulation against. Simulates nothing."""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from radixlm.base.errors import RadixError
from radixlm.protocol.messages import Finished, FinishReason
from radixlm.tools.simulate.trace import TraceRequest
from radixlm.tools.simulate.world import Fate, Run

TIMEOUT_S = 3600
SPECIAL_IDS = 64  # the first ids of a vocabulary are mostly special tokens
SMALL_VOCABULARY = 8192  # where the server does not say
REFUSALS = (400, 413, 503)  # too long, too large, too many
UNKNOWN = -1


def play(url: str, trace: Sequence[TraceRequest]) -> Run:
    """Send every request at its time to the server's /generate, with token ids folded into its vocabulary.

    The server's prefix cache is emptied first, and its answers are as long as the trace says. How often requests were
    retracted is known of a RadixLM server only.

    RadixError when the server cannot be reached, refuses all, or fails.
    """
    try:
        return asyncio.run(_play(url.rstrip("/"), trace))
    except aiohttp.ClientError as error:
        raise RadixError(f"{url}: {error}") from None


async def _play(url: str, trace: Sequence[TraceRequest]) -> Run:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        async with session.post(f"{url}/flush_cache") as answer:
            if answer.status != 200:
                raise RadixError(f"{url}/flush_cache: {answer.status} {await answer.text()}")
        async with session.get(f"{url}/model_info") as answer:
            vocab_size = (await answer.json()).get("vocab_size", SMALL_VOCABULARY)
        async with session.get(f"{url}/v1/models") as answer:
            longest = (await answer.json())["data"][0].get("max_model_len") or sys.maxsize
        bodies = [_body(request, vocab_size) if request.prompt_tokens < longest else None for request in trace]
        start_s = time.perf_counter()
        sends = [_send(session, url, body, request, start_s) for body, request in zip(bodies, trace, strict=True)]
        fates = await asyncio.gather(*sends)
    ended = [fate.finished for fate in fates if fate.finished is not None]
    refused = [finished.reason.message for finished in ended if finished.reason.type == "abort"]
    if len(refused) == len(fates):
        raise RadixError(f"{url}/generate refuses every request: {refused[0]}")
    run = Run(list(fates), max(fate.end_s for fate in fates))
    run.wall_s = time.perf_counter() - start_s
    told = [finished.retractions for finished in ended if finished.reason.type != "abort"]
    run.retractions = None if UNKNOWN in told else sum(told)
    return run


def _body(request: TraceRequest, vocab_size: int) -> bytes:
    ids = (request.prompt() % (vocab_size - SPECIAL_IDS) + SPECIAL_IDS).tolist()
    body = {
        "input_ids": ids,
        "stream": True,
        "sampling_params": {"max_new_tokens": request.output_tokens, "ignore_eos": True, "temperature": 0},
        "priority": request.priority,
        "routing_key": request.routing_key or None,
        "cache_salt": request.cache_salt or None,
    }
    return json.dumps(body).encode()


async def _send(
    session: aiohttp.ClientSession, url: str, body: bytes | None, request: TraceRequest, start_s: float
) -> Fate:
    """What becomes of a request; one without a body is too long to be made."""
    await asyncio.sleep(max(start_s + request.arrival_s - time.perf_counter(), 0))
    fate = Fate(request.arrival_s)
    if body is None:
        return _refused(fate, start_s, f"a prompt of {request.prompt_tokens} tokens is beyond the model's context")
    last: dict[str, Any] = {}
    headers = {"content-type": "application/json"}
    async with session.post(f"{url}/generate", data=body, headers=headers) as answer:
        if answer.status in REFUSALS:
            return _refused(fate, start_s, await answer.text())
        if answer.status != 200:
            raise RadixError(f"{url}/generate: {answer.status} {await answer.text()}")
        async for line in answer.content:
            if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
                continue
            if fate.first_s != fate.first_s:
                fate.first_s = time.perf_counter() - start_s
            last = json.loads(line[5:])
    meta = last.get("meta_info")
    reason = meta["finish_reason"] if meta is not None else None
    if meta is None or reason is None or reason["type"] == "abort":
        return _refused(fate, start_s, str(last if reason is None else reason.get("message")))
    fate.end_s = time.perf_counter() - start_s
    retractions = meta.get("num_retractions", UNKNOWN)
    counts = (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"], retractions)
    fate.finished = Finished(0, FinishReason("length"), *counts)
    return fate


def _refused(fate: Fate, start_s: float, why: str) -> Fate:
    fate.end_s = time.perf_counter() - start_s
    fate.finished = Finished(0, FinishReason("abort", message=why), 0, 0, 0, 0)
    return fate
