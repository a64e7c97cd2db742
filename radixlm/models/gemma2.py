"""Gemma 2 (arXiv 2408.00118)."""

from collections.abc import Iterator

from torch import Tensor

from radixlm.attention.base import ForwardContext
from radixlm.layers.embedding import Embedding
from radixlm.layers.mlp import GatedMLP
from radixlm.layers.norm import OffsetRMSNorm, RMSNorm
from radixlm.layers.parameter import Parameter, Placement
from radixlm.models.attention import SelfAttention
from radixlm.models.decoder import Decoder, DecoderLayer


class Gemma2Layer(DecoderLayer):
    """What attention and feed-forward add to the residual stream is normalised, too."""

    def __init__(
        self,
        attention_norm: RMSNorm,
        attention: SelfAttention,
        mlp_norm: RMSNorm,
        mlp: GatedMLP,
        attended_norm: RMSNorm,
        fed_norm: RMSNorm,
    ) -> None:
        super().__init__(attention_norm, attention, mlp_norm, mlp)
        self._attended_norm = attended_norm
        self._fed_norm = fed_norm

    def attend(self, delta: Tensor | None, residual: Tensor, cos: Tensor, sin: Tensor, ctx: ForwardContext) -> Tensor:
        return self._attended_norm(super().attend(delta, residual, cos, sin, ctx))

    def feed(self, delta: Tensor, residual: Tensor) -> Tensor:
        return self._fed_norm(super().feed(delta, residual))

    def parameters(self, prefix: str) -> Iterator[Parameter]:
        yield from super().parameters(prefix)
        yield from self._attended_norm.parameters(prefix)
        yield from self._fed_norm.parameters(prefix)

    def pack(self) -> None:
        super().pack()
        self._attended_norm.pack()
        self._fed_norm.pack()


class Gemma2(Decoder):
    """Soft caps on scores and logits, windows in every other layer, and embeddings as long as their size's root."""

    def attention(self, index: int, place: Placement) -> SelfAttention:
        bias = self.card.attention_bias
        return SelfAttention(self.card, index, place, qkv_bias=bias, output_bias=bias, qk_norm=False)

    def norm(self, name: str, place: Placement) -> RMSNorm:
        return OffsetRMSNorm(name, self.card.hidden_size, self.card.rms_norm_eps, place)

    def layer(self, index: int, place: Placement) -> DecoderLayer:
        before, attended, between, fed = (
            self.norm(f"{name}_layernorm", place)
            for name in ("input", "post_attention", "pre_feedforward", "post_feedforward")
        )
        return Gemma2Layer(before, self.attention(index, place), between, self.mlp(place), attended, fed)

    def embedding(self, place: Placement) -> Embedding:
        size = self.card.hidden_size
        return Embedding("embed_tokens", self.card.vocab_size, size, place, scale=size**0.5)

    def raw_logits(self, hidden: Tensor) -> Tensor:
        logits, cap = super().raw_logits(hidden), self.card.logit_soft_cap
        if cap is None or self.card.pooling is not None:
            return logits
        return logits.float().div_(cap).tanh_().mul_(cap)
