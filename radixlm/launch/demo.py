"""`radixlm demo`: serve a small real model, ask it one question through the HTTP API, and show the answer."""

import json
import sys
from collections.abc import Sequence

import aiohttp

from radixlm.config.cli import parse_serve
from radixlm.launch.serve import serve

QUESTION = "Why do leaves change colour in autumn? Answer in two sentences."
USAGE = """usage: radixlm demo [MODEL] [--once] [options of radixlm serve]

Serves MODEL (a small instruct model, fetched once, when there is none), asks it a question through the HTTP API and
shows the answer. Goes on serving until Ctrl-C; with --once it ends after the answer.
"""


def demo(arguments: Sequence[str]) -> int:
    """Serve `demo`, or the model named in `arguments`, and ask QUESTION; with --once end after the answer."""
    rest = [argument for argument in arguments if argument != "--once"]
    once = len(rest) < len(arguments)
    if rest[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    if not any(word.startswith("--model") for word in rest) and (not rest or rest[0].startswith("-")):
        rest.insert(0, "demo")
    if not any(word.startswith("--log-level") for word in rest):
        rest += ["--log-level", "warning"]  # the answer is what should be seen, not the steps that made it
    config = parse_serve(rest)
    key = config.server.api_key
    print(f"Starting {config.model.model_path} on port {config.server.port} ...", flush=True)

    async def show(url: str) -> bool:
        if not once:
            print(_try_next(url), flush=True)
        await _ask(url, key)
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
    return f"""The server runs at {url} until Ctrl-C. Ask it something from another terminal:

  curl {url}/generate -H 'Content-Type: application/json' \\
    -d '{{"text": "The capital of France is", "sampling_params": {{"max_new_tokens": 16, "temperature": 0}}}}'"""
