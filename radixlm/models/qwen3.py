"""Qwen3, the dense models (arXiv 2505.09388)."""

from radixlm.layers.parameter import Placement
from radixlm.models.attention import SelfAttention
from radixlm.models.decoder import Decoder


class Qwen3(Decoder):
    """Each head's query and key is RMS-normalised before the rotary embedding."""

    def attention(self, index: int, place: Placement) -> SelfAttention:
        card = self.card
        return SelfAttention(
            card,
            index,
            place,
            qkv_bias=card.attention_bias,
            output_bias=card.attention_output_bias,
            qk_norm=True,
        )
