"""Conversations for chat routes: recorded bodies, and turns that get the server's own answers between them."""

from typing import Any

import numpy as np

from radixlm.base.errors import ConfigError
from radixlm.benchmark.datasets.spec import DatasetSpec, json_lines
from radixlm.benchmark.outcome import Request
from radixlm.benchmark.tokens import Vocabulary

DEFAULT_OUTPUT_TOKENS = 256
AGENTIC_OUTPUT_TOKENS = 220
_OURS = ("messages", "max_tokens", "max_completion_tokens", "model", "stream", "stream_options")


def openai(spec: DatasetSpec, vocabulary: Vocabulary, rng: np.random.Generator) -> list[Request]:
    """JSONL of chat bodies, the first ones in their order; all fields but the model, lengths and streaming are sent."""
    requests = []
    for number, body in enumerate(json_lines(spec.dataset_path, "openai")[: spec.num_prompts], 1):
        messages = _messages(body.get("messages"), f"{spec.dataset_path}, record {number}: messages")
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or DEFAULT_OUTPUT_TOKENS
        extra = {key: value for key, value in body.items() if key not in _OURS}
        tokens = vocabulary.chat_tokens(messages, body.get("tools"))
        requests.append(Request(messages, tokens, spec.sharegpt_output_len or int(asked), extra=extra))
    return requests


def agentic_trace(spec: DatasetSpec, vocabulary: Vocabulary, rng: np.random.Generator) -> list[Request]:
    """Records with `messages`, `conversations` or `turns`; what stands between two of the assistant's is one turn.

    The recorded answers are left out: the server's own take their place. A conversation begins with record
    `dataset_offset` and they go round; `num_prompts` counts conversations.
    """
    records = json_lines(spec.dataset_path, "agentic-trace")
    requests: list[Request] = []
    for number in range(min(spec.num_prompts, len(records))):
        place = (number + spec.dataset_offset) % len(records)
        turns = _turns(records[place], f"{spec.dataset_path}, record {place + 1}")
        for index, turn in enumerate(turns[: spec.agentic_max_turns]):
            tokens = vocabulary.chat_tokens(turn, None) if index == 0 else 0
            output = spec.sharegpt_output_len or AGENTIC_OUTPUT_TOKENS
            requests.append(Request(turn, tokens, output, follows=index > 0))
    return requests


def _turns(record: dict[str, Any], where: str) -> list[list[Any]]:
    messages = next((record[key] for key in ("messages", "conversations", "turns") if key in record), None)
    turns: list[list[Any]] = [[]]
    for message in _messages(messages, where):
        if message["role"] == "assistant":
            turns.append([])
        else:
            turns[-1].append(message)
    return [turn for turn in turns if turn]


_ROLES = {"human": "user", "gpt": "assistant"}


def _messages(value: Any, where: str) -> list[Any]:
    """Chat messages; those of ShareGPT's form (`from`, `value`) are turned into them, bare texts into a user's."""
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where}: no list of messages")
    messages: list[Any] = []
    for item in value:
        if isinstance(item, str):
            messages.append({"role": "user", "content": item})
        elif isinstance(item, dict) and isinstance(item.get("role"), str):
            messages.append(item)
        elif isinstance(item, dict) and isinstance(item.get("from"), str):
            messages.append({"role": _ROLES.get(item["from"], item["from"]), "content": item.get("value", "")})
        else:
            raise ConfigError(f"{where}: a message without a role")
    return messages
