"""A tokenizer manager whose model pools: a prompt's vector tells how long it is, and its last token."""

import asyncio

import msgspec
import numpy as np

from radixlm.config.card import EncoderCard, PoolingCard
from radixlm.frontend.choice import Choice, ChoiceRequest
from radixlm.protocol.arrays import F32
from radixlm.protocol.extras import Extras
from radixlm.protocol.messages import FinishReason
from tests.wire.fake_manager import FakeManager, Script

DIMENSIONS = 4


def vector(ids: list[int]) -> F32:
    """Of a model with DIMENSIONS dimensions or classes."""
    return np.array([len(ids), ids[-1] % 64, 0.5, -1.0], np.float32) / np.float32(3)


class FakePooler(FakeManager):
    """`pooling` are the card's facts; with `encoder` it is a cross-encoder's."""

    def __init__(self, pooling: PoolingCard, encoder: bool = False) -> None:
        super().__init__()
        facts = EncoderCard(layer_norm_eps=1e-6, token_types=2) if encoder else None
        self.card = msgspec.structs.replace(self.card, hidden_size=DIMENSIONS, pooling=pooling, encoder=facts)

    async def _play(self, request: ChoiceRequest, choice: Choice, script: Script) -> None:
        await asyncio.sleep(0)
        if choice.finished is None:
            assert request.pooled and request.sampling_params["max_new_tokens"] == 0
            choice.started = self._started(choice, script)
            width = self.card.outputs
            extras = Extras(embedding=vector([int(id_) for id_ in choice.prompt_ids])[:width])
            self._finish(choice, FinishReason("length", length=0), 0, 0, [], extras)
