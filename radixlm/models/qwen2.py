"""Qwen2 and Qwen2.5 (arXiv 2407.10671)."""

from radixlm.layers.parameter import Placement
from radixlm.models.attention import SelfAttention
from radixlm.models.decoder import Decoder


class Qwen2(Decoder):
    """Always a bias on queries, keys and values, never on the output."""

    def attention(self, index: int, place: Placement) -> SelfAttention:
        return SelfAttention(self.card, index, place, qkv_bias=True, output_bias=False, qk_norm=False)
