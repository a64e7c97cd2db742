"""What is sent and what one request left behind: raw times and counts, no statistics. Structs that pipes can carry."""

from typing import Any

import msgspec


class Request(msgspec.Struct):
    """One row of a dataset.

    Attributes:
        prompt: text, token ids when prompts are sent tokenized, or chat messages.
        prompt_tokens: the prompt's length as the server should count it; 0 when only the server can know.
        output_tokens: how many tokens to ask for.
        follows: this is a later turn: it is sent when the request before it has ended, after that one's prompt and
            answer, and its `prompt` is only what is new.
        due_s: when the trace sent it, in seconds from its start; None leaves that to the arrival process.
        extra: fields of the body that are this request's own.
    """

    prompt: str | list[Any]
    prompt_tokens: int
    output_tokens: int
    follows: bool = False
    due_s: float | None = None
    extra: dict[str, Any] = {}


class Outcome(msgspec.Struct):
    """The raw record of one request. Times are seconds of one monotonic clock that all client processes share.

    Attributes:
        index: the request's place in the dataset. due_s: when the arrival process wanted it sent.
        sent_s: when it was sent (after any wait for the concurrency limit). end_s: last byte of the answer received.
        event_s: when each text-bearing event arrived, ascending. event_tokens: the new tokens in each; always 1 where
            the server does not say (OpenAI routes).
        output_tokens: the answer's length; the length asked for if `output_assumed` (no usage came).
        server_prompt_tokens, cached_tokens, cached_details: as the server reported them, None if it did not.
        error: None for a success, else one line; a failed request keeps whatever was measured before it failed.
    """

    index: int
    due_s: float = 0.0
    sent_s: float = 0.0
    end_s: float = 0.0
    event_s: list[float] = []
    event_tokens: list[int] = []
    output_tokens: int = 0
    output_assumed: bool = False
    server_prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cached_details: dict[str, Any] | None = None
    text: str = ""
    error: str | None = None

    def prompt_tokens(self, request: Request) -> int:
        """The length of what was sent: the dataset's count, or for a later turn the server's (0 if it told none)."""
        return request.prompt_tokens or self.server_prompt_tokens or 0

    @property
    def latency_s(self) -> float:
        return self.end_s - self.sent_s

    @property
    def ttft_s(self) -> float:
        """Sent to first text; the whole latency when no event was seen (nothing was streamed, or no text came)."""
        return (self.event_s[0] if self.event_s else self.end_s) - self.sent_s

    def inter_token_s(self) -> list[float]:
        """Gaps between tokens: each gap between events, divided by the later event's tokens and repeated for each."""
        gaps: list[float] = []
        for before, now, tokens in zip(self.event_s, self.event_s[1:], self.event_tokens[1:], strict=False):
            gaps += [(now - before) / tokens] * tokens
        return gaps
