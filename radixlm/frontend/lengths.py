"""How long prompt and output may be: one check, one set of messages. Knows numbers only."""

from dataclasses import dataclass

from radixlm.base.errors import RequestError

CODE = "context_length_exceeded"
LEAST_TOKEN_CHARS = 64  # for vocabularies whose special tokens are long and whose words are not


@dataclass(frozen=True)
class Limits:
    """`context_len` is the model's, in tokens; `capacity_tokens` what the KV pool can hold of one request (None: not
    known yet). With `allow_auto_truncate` what is too long is cut instead of refused."""

    context_len: int
    capacity_tokens: int | None = None
    allow_auto_truncate: bool = False

    @property
    def total_tokens(self) -> int:
        """The most that prompt and output may have together."""
        return self.context_len if self.capacity_tokens is None else min(self.context_len, self.capacity_tokens)


@dataclass(frozen=True)
class Fit:
    """The lengths that were agreed on: how many prompt tokens to keep (from the start), and how many to generate."""

    prompt_tokens: int
    max_new_tokens: int


def fit(prompt_tokens: int, max_new_tokens: int | None, given: bool, limits: Limits, field: str) -> Fit:
    """Check a prompt's length and settle the output's; `max_new_tokens` None means all there is room for.

    An output the client asked for (`given`) must fit the context; beyond that, and where the KV pool is the limit,
    it is cut to the room there is. RequestError blames `field` or max_new_tokens and says which limit was hit.
    """
    if prompt_tokens < 1:
        raise RequestError("The prompt is empty: at least one token is needed.", field)
    total = limits.total_tokens
    if limits.allow_auto_truncate:
        if prompt_tokens >= total:
            wanted = 1 if max_new_tokens is None else max_new_tokens
            prompt_tokens = total - max(1, min(wanted, total // 2))
    else:
        _refuse_long_prompt(prompt_tokens, limits, field)
        if given and max_new_tokens is not None and prompt_tokens + max_new_tokens > limits.context_len:
            raise RequestError(
                f"Requested token count exceeds the model's maximum context length of {limits.context_len} tokens. "
                f"You requested a total of {prompt_tokens + max_new_tokens} tokens: {prompt_tokens} tokens in the "
                f"input and {max_new_tokens} tokens for the completion. Shorten the input or ask for fewer new tokens.",
                "max_new_tokens",
                code=CODE,
            )
    room = total - prompt_tokens
    return Fit(prompt_tokens, room if max_new_tokens is None else min(max_new_tokens, room))


def fit_alone(prompt_tokens: int, limits: Limits, field: str) -> Fit:
    """`fit` for a prompt that gets no output: it may take all there is."""
    if prompt_tokens < 1:
        raise RequestError("The prompt is empty: at least one token is needed.", field)
    if limits.allow_auto_truncate:
        return Fit(min(prompt_tokens, limits.total_tokens), 0)
    if prompt_tokens > limits.total_tokens:
        raise RequestError(
            f"The input ({prompt_tokens} tokens) is longer than the {limits.total_tokens} tokens that the model's "
            "context or the server's memory holds of one request.",
            field,
            code=CODE,
        )
    return Fit(prompt_tokens, 0)


def fit_text(text: str, longest_token_chars: int, limits: Limits) -> str:
    """`text`, if it may fit; RequestError, or its beginning, for one that is too long however it is tokenized.

    Tokenizing takes a second for every megabyte, and would be for nothing. `longest_token_chars`: of the vocabulary.
    """
    most_chars = limits.total_tokens * max(longest_token_chars, LEAST_TOKEN_CHARS)
    if len(text) <= most_chars:
        return text
    if limits.allow_auto_truncate:
        return text[:most_chars]
    raise RequestError(
        f"The input ({len(text)} characters) is longer than the model's context length ({limits.context_len} "
        f"tokens), however it is tokenized.",
        "text",
        code=CODE,
    )


def _refuse_long_prompt(prompt_tokens: int, limits: Limits, field: str) -> None:
    if prompt_tokens >= limits.context_len:
        raise RequestError(
            f"The input ({prompt_tokens} tokens) is longer than the model's context length "
            f"({limits.context_len} tokens).",
            field,
            code=CODE,
        )
    capacity = limits.capacity_tokens
    if capacity is not None and prompt_tokens >= capacity:
        raise RequestError(
            f"Input length ({prompt_tokens} tokens) exceeds the maximum allowed length ({capacity - 1} tokens). "
            f"The limit is this server's KV cache, which holds {capacity} tokens of one request; the model's context "
            f"length is {limits.context_len} tokens.",
            field,
            code=CODE,
        )
