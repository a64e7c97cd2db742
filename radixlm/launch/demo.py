"""`radixlm demo`: serve a small real model, ask it one question through the HTTP API, and show the answer."""

import json
import sys
from collections.abc import Sequence

import aiohttp

from radixlm.config.cli import parse_serve
from radixlm.launch.serve import serve

QUESTION = "Why do leaves change colour in autumn? Answer in two sentences."


def demo(arguments: Sequence[str]) -> int:
    """Serve `demo`, or the model named in `arguments`, and ask QUESTION; with --once end after the answer."""
    rest = [argument for argument in arguments if argument != "--once"]
    once = len(rest) < len(arguments)
    named = any(word.startswith("--model") for word in rest) or (bool(rest) and not rest[0].startswith("-"))
    config = parse_serve(rest if named else ["demo", *rest])
    key = config.server.api_key

    async def show(url: str) -> bool:
        await _ask(url, key)
        if not once:
            print(_try_next(url), flush=True)
        return once

    return serve(config, on_ready=show)


async def _ask(url: str, api_key: str | None) -> None:
    """Print the question and the answer as it streams in."""
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": True,
        "max_tokens": 120,
        "temperature": 0,
    }
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    print(f"\nQuestion: {QUESTION}\nAnswer:   ", end="", flush=True)
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}/v1/chat/completions", json=body) as response,
    ):
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                sys.stdout.write((choices[0]["delta"].get("content") or "") if choices else "")
                sys.stdout.flush()
    print("\n", flush=True)


def _try_next(url: str) -> str:
    return f"""The server goes on at {url} (Ctrl-C stops it). Try it from another terminal:

  curl {url}/generate -H 'Content-Type: application/json' \\
    -d '{{"text": "The capital of France is", "sampling_params": {{"max_new_tokens": 16, "temperature": 0}}}}'
"""
