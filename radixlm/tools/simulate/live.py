"""Plays a trace to a running server and takes the times, to hold a simulation against. Simulates nothing."""

import asyncio
import json
import time
from collections.abc import Sequence

import aiohttp

from radixlm.base.errors import RadixError
from radixlm.protocol.messages import Finished, FinishReason
from radixlm.tools.simulate.trace import TraceRequest
from radixlm.tools.simulate.world import Fate, Run

TIMEOUT_S = 3600
SPECIAL_IDS = 64  # the first ids of a vocabulary are mostly special tokens
SMALL_VOCABULARY = 8192  # where the server does not say


def play(url: str, trace: Sequence[TraceRequest]) -> Run:
    """Send every request at its time to the server's /generate, with token ids folded into its vocabulary.

    The server's prefix cache is emptied first, and its answers are as long as the trace says.

    RadixError when the server cannot be reached or answers with an error.
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
        bodies = [_body(request, vocab_size) for request in trace]
        start_s = time.perf_counter()
        sends = [_send(session, url, body, request, start_s) for body, request in zip(bodies, trace, strict=True)]
        fates = await asyncio.gather(*sends)
    run = Run(list(fates), max(fate.end_s for fate in fates))
    run.retractions = sum(fate.finished.retractions for fate in fates if fate.finished is not None)
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


async def _send(session: aiohttp.ClientSession, url: str, body: bytes, request: TraceRequest, start_s: float) -> Fate:
    await asyncio.sleep(max(start_s + request.arrival_s - time.perf_counter(), 0))
    fate = Fate(request.arrival_s)
    last: dict[str, dict[str, int]] = {}
    headers = {"content-type": "application/json"}
    async with session.post(f"{url}/generate", data=body, headers=headers) as answer:
        if answer.status != 200:
            raise RadixError(f"{url}/generate: {answer.status} {await answer.text()}")
        async for line in answer.content:
            if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
                continue
            if fate.first_s != fate.first_s:
                fate.first_s = time.perf_counter() - start_s
            last = json.loads(line[5:])
    fate.end_s = time.perf_counter() - start_s
    meta = last["meta_info"]
    counts = (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"], meta.get("num_retractions", 0))
    fate.finished = Finished(0, FinishReason("length"), *counts)
    return fate
