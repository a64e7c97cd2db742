"""One choice in SGLang's native shape: text, output_ids and meta_info. Knows no HTTP; Engine answers with it too."""

import time
from typing import Any

from radixlm.frontend.choice import Choice
from radixlm.protocol.messages import FinishReason


def finish_json(reason: FinishReason | None) -> dict[str, Any] | None:
    """`finish_reason` as the native API shows it; None while the choice runs."""
    if reason is None:
        return None
    if reason.type == "stop":
        return {"type": "stop", "matched": reason.matched}
    if reason.type == "length":
        return {"type": "length", "length": reason.length}
    shown = {"message": reason.message, "status_code": reason.status_code, "err_type": reason.err_type}
    return {"type": "abort", **shown}


def cached_tokens_of(choice: Choice) -> int:
    """Prompt tokens that came from the cache, as far as known."""
    if choice.finished is not None:
        return choice.finished.cached_tokens
    return choice.started.cached_tokens if choice.started is not None else 0


def answer(
    choice: Choice,
    text: str,
    output_ids: list[int],
    completion_tokens: int | None = None,
    weight_version: str | None = None,
) -> dict[str, Any]:
    """The native answer of `choice` with this text and these ids.

    `completion_tokens` is the count so far, the ids' where not given (they may be only the newest ones);
    `weight_version` the choice's own where not given. A choice that has ended also shows `e2e_latency` in seconds.
    """
    finished, cached = choice.finished, cached_tokens_of(choice)
    completed = len(output_ids) if completion_tokens is None else completion_tokens
    version = choice.weight_version if weight_version is None else weight_version
    meta: dict[str, Any] = {
        "id": choice.rid,
        "finish_reason": finish_json(finished.reason if finished is not None else None),
        "prompt_tokens": finished.prompt_tokens if finished is not None else choice.prompt_tokens,
        "completion_tokens": finished.completion_tokens if finished is not None else completed,
        "cached_tokens": cached,
        "reasoning_tokens": 0,
        "cached_tokens_details": {"device": cached, "host": 0},
        "weight_version": version,
        "num_retractions": finished.retractions if finished is not None else 0,
        "dp_rank": None,
    }
    if choice.truncated_tokens:
        meta["truncated_tokens"] = choice.truncated_tokens
    if finished is not None:
        ended = choice.finished_at if choice.finished_at is not None else time.time()
        meta["weight_versions"] = [{"version": version, "start": 0, "end": finished.completion_tokens}]
        meta["e2e_latency"] = ended - choice.created
    return {"text": text, "output_ids": output_ids, "meta_info": meta}
