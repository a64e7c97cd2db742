"""Requests for vectors on the way in: the model must fit, lengths without an output, and what truncation keeps."""

import asyncio

import msgspec
import numpy as np
import pytest

from radixlm.base.errors import RequestError
from radixlm.config.card import PoolingCard
from radixlm.frontend.choice import ChoiceRequest
from radixlm.frontend.intake import Intake, Prepared
from radixlm.frontend.lengths import Limits
from radixlm.frontend.prompts import LocalPrompts
from tests.helpers.tiny import CARD
from tests.wire.fake_manager import FakeTokenizer

POOLS = msgspec.structs.replace(CARD, vocab_size=200, pooling=PoolingCard(modes=("lasttoken",)))
NOTHING = {"max_new_tokens": 0}


class Ending(FakeTokenizer):
    """Puts 2 behind every text."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*map(ord, text), *([2] if add_special_tokens else [])]


def prepare(request: ChoiceRequest, limits: Limits, card=POOLS) -> Prepared:
    return asyncio.run(Intake(card, LocalPrompts(Ending())).prepare([request], limits))[0]


def test_a_prompt_may_fill_the_context() -> None:
    request = ChoiceRequest(input_ids=list(range(10)), sampling_params=NOTHING, pooled=True)
    prepared = prepare(request, Limits(10, 64))
    assert len(prepared.prompt_ids) == 10 and prepared.sampling.max_new_tokens == 0
    with pytest.raises(RequestError, match=r"10 tokens.*9 tokens") as refused:
        prepare(request, Limits(9, 64))
    assert (refused.value.field, refused.value.code) == ("input_ids", "context_length_exceeded")
    with pytest.raises(RequestError, match=r"10 tokens.*8 tokens"):
        prepare(request, Limits(10, 8))


def test_a_cut_text_keeps_the_token_that_ends_it() -> None:
    limits = Limits(4, 64, allow_auto_truncate=True)
    text = prepare(ChoiceRequest(text="abcdef", sampling_params=NOTHING, pooled=True), limits)
    assert text.prompt_ids.tolist() == [97, 98, 99, 2] and text.truncated_tokens == 3
    ids = prepare(ChoiceRequest(input_ids=[5, 6, 7, 8, 9], sampling_params=NOTHING, pooled=True), limits)
    assert ids.prompt_ids.tolist() == [5, 6, 7, 8] and ids.prompt_ids.dtype == np.int32


def test_the_other_task_is_refused() -> None:
    with pytest.raises(RequestError, match="makes embeddings"):
        prepare(ChoiceRequest(text="a"), Limits(100))
    with pytest.raises(RequestError, match="--is-embedding"):
        prepare(ChoiceRequest(text="a", pooled=True), Limits(100), msgspec.structs.replace(POOLS, pooling=None))
