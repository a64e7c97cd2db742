"""What a request may get beside its tokens: log probabilities, hidden states, an embedding. Arrays, nothing else.

Rare, so it travels apart from the columns that every request fills: a map from row, or from key, to what there is.
"""

import msgspec
import numpy as np

from radixlm.protocol.arrays import Array

OUTPUTS_ONLY = 2**31 - 1  # a `start` behind every prompt


class LogprobOptions(msgspec.Struct, frozen=True, array_like=True):
    """Which log probabilities a request wants.

    `start`: prompt tokens at positions > `start` are scored too; the prompt's length or more means outputs only.
    `top`: how many likeliest tokens to list at each position. `token_ids`: these are listed at each position.
    """

    start: int
    top: int = 0
    token_ids: tuple[int, ...] = ()


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities of M consecutive tokens of one request, natural logarithm, of the raw logits' softmax.

    tokens: int32 [M]; values: float32 [M]. top_tokens: int32 [M, top] and top_values: float32 [M, top], likeliest
    first. chosen_values: float32 [M, C], of the C token_ids that the request named. What was not asked for is [0].
    """

    tokens: Array
    values: Array
    top_tokens: Array
    top_values: Array
    chosen_values: Array


class Extras(msgspec.Struct, frozen=True, array_like=True):
    """What one row, or one request since the last message, has beside tokens.

    prompt: of prompt tokens. output: of output tokens. hidden: float32 [n, hidden_size], of the n positions computed.
    embedding: float32 [D], the pooled vector or the head's scores of a request that generates nothing.
    """

    prompt: TokenLogprobs | None = None
    output: TokenLogprobs | None = None
    hidden: Array | None = None
    embedding: Array | None = None


def joined(parts: list[Extras]) -> Extras:
    """Several steps' extras of one request, in order, as one. `parts` is not empty."""
    if len(parts) == 1:
        return parts[0]
    prompts = [part.prompt for part in parts if part.prompt is not None]
    outputs = [part.output for part in parts if part.output is not None]
    hidden = [part.hidden for part in parts if part.hidden is not None]
    embeddings = [part.embedding for part in parts if part.embedding is not None]
    return Extras(
        prompt=_appended(prompts) if prompts else None,
        output=_appended(outputs) if outputs else None,
        hidden=np.concatenate(hidden) if hidden else None,
        embedding=embeddings[-1] if embeddings else None,
    )


def _appended(parts: list[TokenLogprobs]) -> TokenLogprobs:
    fields = TokenLogprobs.__struct_fields__
    return TokenLogprobs(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))
