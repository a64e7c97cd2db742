"""Llama 2 and 3, and Mistral, which differ in numbers of the card only (arXiv 2307.09288, 2407.21783, 2310.06825)."""

from radixlm.layers.parameter import Placement
from radixlm.models.attention import SelfAttention
from radixlm.models.decoder import Decoder


class Llama(Decoder):
    """Plain grouped-query attention, with biases only where the configuration asks for them."""

    def attention(self, index: int, place: Placement) -> SelfAttention:
        card = self.card
        return SelfAttention(
            card,
            index,
            place,
            qkv_bias=card.attention_bias,
            output_bias=card.attention_output_bias,
            qk_norm=False,
        )
