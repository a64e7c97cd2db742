"""Log probabilities as completions and chats show them. Knows tokens and their texts; no request field, no chunk.

A token's text is its bytes, read as UTF-8 or, where they are a fragment of a character, as Latin-1.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radixlm.frontend.choice import ChoiceRequest
from radixlm.protocol.extras import Extras, TokenLogprobs
from radixlm.protocol.messages import FinishReason
from radixlm.server.readings import required_tokenizer
from radixlm.server.services import Services, Tokenizer


class TokenTexts:
    """The texts of single tokens."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens

    def text(self, id_: int) -> str:
        piece = self._tokenizer.piece(id_)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return piece.decode("latin-1")

    def data(self, id_: int) -> list[int] | None:
        """The bytes that the token adds to an answer's text; None for a special token, which adds none."""
        return None if self._hidden(id_) else list(self._tokenizer.piece(id_))

    def characters(self, id_: int) -> int:
        """How many characters of an answer's text begin in this token."""
        return 0 if self._hidden(id_) else sum(byte & 0xC0 != 0x80 for byte in self._tokenizer.piece(id_))

    def _hidden(self, id_: int) -> bool:
        return self._skip_special_tokens and self._tokenizer.is_special(id_)


class CompletionLogprobs:
    """The `logprobs` objects of one choice of /v1/completions: one entry for every token, the one it stops at included.

    `text_offset` counts characters of the choice's text, of which the last tokens' may have been cut off.
    """

    def __init__(self, texts: TokenTexts, top: int) -> None:
        self._texts = texts
        self._top = top
        self._offset = 0
        self._first: int | None = None

    def begin(self, first: int) -> None:
        """The prompt is shown too; `first` is its first token."""
        self._first = first

    def object(self, extras: Sequence[Extras]) -> dict[str, Any]:
        """The object of what `extras` add to those before."""
        shown: dict[str, Any] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        first, self._first = self._first, None
        if first is not None:
            self._add(shown, first, None, None)
        for one in extras:
            for part in (one.prompt, one.output):
                if part is not None:
                    self._add_part(shown, part)
        return shown

    def _add_part(self, shown: dict[str, Any], part: TokenLogprobs) -> None:
        tokens, values = part.tokens.tolist(), part.values.tolist()
        top_tokens, top_values = part.top_tokens.tolist(), part.top_values.tolist()
        for index, (token, value) in enumerate(zip(tokens, values, strict=True)):
            top: dict[str, float] | None = {} if self._top else None
            if top is not None:
                for id_, alternative in zip(top_tokens[index], top_values[index], strict=True):
                    top.setdefault(self._texts.text(id_), alternative)  # of equal texts the likeliest counts
            self._add(shown, token, value, top)

    def _add(self, shown: dict[str, Any], token: int, value: float | None, top: dict[str, float] | None) -> None:
        shown["text_offset"].append(self._offset)
        shown["token_logprobs"].append(value)
        shown["tokens"].append(self._texts.text(token))
        shown["top_logprobs"].append(top)
        self._offset += self._texts.characters(token)


@dataclass(frozen=True)
class Entry:
    """A token of a chat's answer as OpenAI shows it, and which characters of the text begin in it."""

    begin: int
    end: int
    token: int
    json: dict[str, Any]


class ChatLogprobs:
    """The entries of one chat answer, each given out with or after its text.

    A token that was only stopped at has no entry, so the entries' bytes joined are the text (but for tokens of which a
    stop string cut off a part: these are shown whole).
    """

    def __init__(self, texts: TokenTexts, no_stop_trim: bool) -> None:
        self._texts = texts
        self._no_stop_trim = no_stop_trim
        self._waiting: deque[Entry] = deque()
        self._end = 0
        self._shown = 0

    @staticmethod
    def of(services: Services, request: ChoiceRequest) -> "ChatLogprobs":
        """For one answer to `request`."""
        params = request.sampling_params
        texts = TokenTexts(required_tokenizer(services, "logprobs"), params.get("skip_special_tokens") is not False)
        return ChatLogprobs(texts, params.get("no_stop_trim") is True)

    def take(self, extras: Sequence[Extras], text: str, reason: FinishReason | None) -> list[Entry]:
        """The entries that have become certain by new tokens and new text; all that are left when they are the last."""
        for one in extras:
            if one.output is not None:
                self._add(one.output)
        self._shown += len(text)
        if reason is not None:
            return self._rest(reason)
        certain: list[Entry] = []
        while self._waiting and self._waiting[0].end <= self._shown:
            certain.append(self._waiting.popleft())
        return certain

    def _rest(self, reason: FinishReason) -> list[Entry]:
        left = list(self._waiting)
        self._waiting.clear()
        if reason.type != "stop" or self._no_stop_trim:
            return left
        if isinstance(reason.matched, int):
            return left[:-1] if left and left[-1].token == reason.matched else left
        return [entry for entry in left if entry.begin < self._shown]

    def _add(self, part: TokenLogprobs) -> None:
        tokens, values = part.tokens.tolist(), part.values.tolist()
        top_tokens, top_values = part.top_tokens.tolist(), part.top_values.tolist()
        for index, (token, value) in enumerate(zip(tokens, values, strict=True)):
            top = zip(top_tokens[index], top_values[index], strict=True) if top_tokens else ()
            shown = {**self._json(token, value), "top_logprobs": [self._json(*alternative) for alternative in top]}
            begin, self._end = self._end, self._end + self._texts.characters(token)
            self._waiting.append(Entry(begin, self._end, token, shown))

    def _json(self, token: int, value: float) -> dict[str, Any]:
        return {"token": self._texts.text(token), "bytes": self._texts.data(token), "logprob": value}
