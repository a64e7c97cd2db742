"""Texts of prompts to token ids, in this process. Knows no request, no limit and no other process."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from radixlm.base.errors import RequestError
from radixlm.protocol.arrays import I32

INLINE = 4096  # characters or tokens: about 2 ms of tokenizing; more than that goes to a thread


T = TypeVar("T")


async def by_size(work: Callable[[], T], size: int) -> T:
    """What `work` returns: done here when `size`, in characters or tokens, is small, otherwise in a thread."""
    return await asyncio.to_thread(work) if size > INLINE else work()


class Encoder(Protocol):
    """What makes token ids (loader.tokenizer.Tokenizer)."""

    @property
    def bos_token_id(self) -> int | None: ...
    def encode(self, text: str, add_special_tokens: bool = ...) -> list[int]: ...


class Prompts(Protocol):
    """Where prompts are tokenized."""

    async def encode(self, texts: Sequence[str], special: Sequence[bool]) -> list[I32]:
        """The token ids of each text, in order; `special[i]` as `add_special_tokens` of `encode`. RequestError when one
        cannot be encoded."""

    def fail(self, message: str) -> None:
        """Nothing can be tokenized any more: whoever waits gets a RequestError of status 500."""


def check_unicode(text: str) -> None:
    """RequestError when `text` cannot be written as UTF-8: JSON lets half of a surrogate pair through."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"text is not valid Unicode: {error.reason}", "text") from error


def encode(tokenizer: Encoder, text: str, add_special_tokens: bool) -> list[int]:
    """The token ids of a prompt. RequestError when `text` cannot be encoded.

    `add_special_tokens` adds BOS where the tokenizer does; a text that brings its own does not get a second one.
    """
    check_unicode(text)
    ids = tokenizer.encode(text, add_special_tokens)
    bos = tokenizer.bos_token_id
    return ids[1:] if add_special_tokens and ids[:2] == [bos, bos] else ids


class LocalPrompts:
    """Tokenizes here: what is short on the event loop, the rest in a thread."""

    def __init__(self, tokenizer: Encoder) -> None:
        self._tokenizer = tokenizer

    async def encode(self, texts: Sequence[str], special: Sequence[bool]) -> list[I32]:
        return await by_size(lambda: self.encode_now(texts, special), sum(map(len, texts)))

    def encode_now(self, texts: Sequence[str], special: Sequence[bool]) -> list[I32]:
        """`encode` for synchronous code."""
        pairs = zip(texts, special, strict=True)
        return [np.array(encode(self._tokenizer, text, flag), np.int32) for text, flag in pairs]

    def fail(self, message: str) -> None:
        """Nobody waits here for another process."""
