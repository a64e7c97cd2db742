"""The vocabulary prompts are drawn from, with or without a tokenizer. Knows nothing of datasets or servers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from radixlm.base.errors import ConfigError

FIT_ROUNDS = 8


class Codec(Protocol):
    """What the benchmark needs of a tokenizer."""

    def encode(self, text: str, special: bool) -> list[int]:
        """Token ids of `text`; `special` adds what the model's tokenizer adds to a prompt (such as BOS)."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`."""


@dataclass(frozen=True)
class Vocabulary:
    """The ids prompts may use, special tokens left out (int64 [n]), and the codec, None when prompts are ids only."""

    ordinary_ids: npt.NDArray[np.int64]
    codec: Codec | None

    @staticmethod
    def of_size(size: int) -> "Vocabulary":
        """Ids below `size`, without a tokenizer."""
        if size < 1:
            raise ConfigError(f"--vocab-size must be at least 1, not {size}")
        return Vocabulary(np.arange(size), None)

    def text_codec(self, what: str) -> Codec:
        """The codec; ConfigError naming `what` needs one if there is none."""
        if self.codec is None:
            raise ConfigError(f"{what} needs a tokenizer; give --tokenizer instead of --vocab-size")
        return self.codec


def fit_text(codec: Codec, ids: Sequence[int], filler: Sequence[int], length_tokens: int, special: bool) -> str:
    """A text made of `ids` that encodes to `length_tokens` tokens, as exactly as the tokenizer allows.

    Decoded random ids encode to another number of ids; so the re-encoded ids are cut, or lengthened from `filler`
    (taken in turn), until the length holds. Some tokenizers have no such text: the closest one found is returned.
    """
    ids = list(ids)[:length_tokens]
    taken = 0
    best, best_miss = "", length_tokens + 1
    for _ in range(FIT_ROUNDS):
        text = codec.decode(ids)
        length = len(codec.encode(text, special))
        miss = length - length_tokens
        if abs(miss) < best_miss:
            best, best_miss = text, abs(miss)
        if miss == 0:
            break
        ids = codec.encode(text, False)
        if miss > 0:
            ids = ids[: max(len(ids) - miss, 1)]
        else:
            ids += [filler[(taken + i) % len(filler)] for i in range(-miss)]
            taken -= miss
    return best
