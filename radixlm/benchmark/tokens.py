"""The vocabulary prompts are drawn from, with or without a tokenizer. Knows nothing of datasets or servers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from radixlm.base.errors import ConfigError

FIT_ROUNDS = 8


Template = Callable[[list[Any], list[Any] | None], str]


class Codec(Protocol):
    """What the benchmark needs of a tokenizer (radixlm.loader's has it)."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, with what the model's tokenizer adds to a prompt (such as BOS) if asked."""

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """`encode` of many texts."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that are not text."""


@dataclass(frozen=True)
class Vocabulary:
    """The ids prompts may use, special tokens left out (int64 [n]), and the codec, None when prompts are ids only.

    `template` renders chat messages and tools to a prompt; None when the model brings no chat template.
    """

    ordinary_ids: npt.NDArray[np.int64]
    codec: Codec | None
    template: Template | None = None

    @staticmethod
    def of_size(size: int) -> "Vocabulary":
        """Ids below `size`, without a tokenizer."""
        if size < 1:
            raise ConfigError(f"--vocab-size must be at least 1, not {size}")
        return Vocabulary(np.arange(size), None)

    @staticmethod
    def of_codec(codec: Codec, template: Template | None = None) -> "Vocabulary":
        """All ids of a tokenizer but its special ones."""
        return Vocabulary(np.setdiff1d(np.arange(codec.vocab_size), list(codec.special_ids)), codec, template)

    def text_codec(self, what: str) -> Codec:
        """The codec; ConfigError naming `what` needs one if there is none."""
        if self.codec is None:
            raise ConfigError(f"{what} needs a tokenizer; give --tokenizer instead of --vocab-size")
        return self.codec

    def render(self, messages: list[Any], tools: list[Any] | None, what: str) -> str:
        """The prompt of a chat; ConfigError naming `what` needs a template if there is none."""
        if self.template is None:
            raise ConfigError(f"{what} needs a model with a chat template")
        return self.template(messages, tools)

    def chat_tokens(self, messages: list[Any], tools: list[Any] | None) -> int:
        """How long a chat's prompt is; without a tokenizer or a chat template only the server can tell, and it is 0."""
        if self.codec is None or self.template is None:
            return 0
        return len(self.codec.encode(self.template(messages, tools), False))


@dataclass
class _Fit:
    """One text being fitted: the ids it is made of now, how much filler it has used, and the best text so far."""

    ids: list[int]
    filler: Sequence[int]
    length_tokens: int
    used: int = 0
    best: str = ""
    best_miss: int | None = None

    def learn(self, text: str, encoded: list[int]) -> bool:
        """Take note of how `text` encodes and change the ids accordingly; True when the length is right."""
        miss = len(encoded) - self.length_tokens
        if self.best_miss is None or abs(miss) < abs(self.best_miss):
            self.best, self.best_miss = text, miss
        if miss > 0:
            self.ids = encoded[: self.length_tokens]
        else:
            self.ids = encoded + [self.filler[(self.used + i) % len(self.filler)] for i in range(-miss)]
            self.used -= miss
        return miss == 0


def added_tokens(codec: Codec) -> int:
    """How many tokens the tokenizer adds to a prompt of its own accord (such as BOS)."""
    return len(codec.encode("a")) - len(codec.encode("a", False))


def fit_texts(
    codec: Codec, starts: Sequence[Sequence[int]], fillers: Sequence[Sequence[int]], lengths_tokens: Sequence[int]
) -> list[str]:
    """For each of `starts` a text made of these ids that encodes to its length, as exactly as the tokenizer allows.

    Decoded random ids encode to another number of ids; so the re-encoded ids are cut, or lengthened from the filler
    (taken in turn), until the length holds. Where a tokenizer has no such text, the closest one found is returned.
    """
    fits = [
        _Fit(list(ids)[:length], filler, length)
        for ids, filler, length in zip(starts, fillers, lengths_tokens, strict=True)
    ]
    pending = fits
    for _ in range(FIT_ROUNDS):
        texts = [codec.decode(fit.ids) for fit in pending]
        encoded = codec.encode_batch(texts, False)
        pending = [fit for fit, text, ids in zip(pending, texts, encoded, strict=True) if not fit.learn(text, ids)]
        if not pending:
            break
    return [fit.best for fit in fits]


def prompt_lengths(codec: Codec, texts: Sequence[str]) -> list[int]:
    """How many tokens a server makes of each prompt."""
    return [len(ids) for ids in codec.encode_batch(texts)]
