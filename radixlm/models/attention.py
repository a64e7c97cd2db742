"""Self-attention of a decoder layer, up to the backend that does the attending. Knows no architecture by name."""

from collections.abc import Iterator

from torch import Tensor

from radixlm.attention.base import AttentionLayer, ForwardContext
from radixlm.config.card import ModelCard
from radixlm.kernels.rotary import HeadNorms
from radixlm.layers.linear import Linear
from radixlm.layers.norm import RMSNorm
from radixlm.layers.parameter import Layer, Parameter, Placement, Shard


class SelfAttention(Layer):
    """Grouped-query attention with rotary positions; q, k and v come from one multiplication."""

    def __init__(
        self, card: ModelCard, index: int, place: Placement, *, qkv_bias: bool, output_bias: bool, qk_norm: bool
    ) -> None:
        """`index`: the layer's number in the KV pool. `qk_norm`: RMS-normalise each head's query and key first."""
        self._layer = AttentionLayer(index, card.attention_scale, card.window(index))
        self._heads, self._kv_heads, self._head_dim = card.num_heads, card.num_kv_heads, card.head_dim
        q_size, kv_size = card.num_heads * card.head_dim, card.num_kv_heads * card.head_dim
        parts = (("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size))
        self._qkv = Linear(card.hidden_size, parts, qkv_bias, Shard.OUTPUT, place)
        self._out = Linear(q_size, (("o_proj", card.hidden_size),), output_bias, Shard.INPUT, place)
        self._norms: tuple[RMSNorm, ...] = ()
        self._head_norms: HeadNorms | None = None
        if qk_norm:
            query, key = (RMSNorm(name, card.head_dim, card.rms_norm_eps, place) for name in ("q_norm", "k_norm"))
            self._norms = (query, key)
            self._head_norms = HeadNorms(query.weight, key.weight, card.rms_norm_eps)

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, ctx: ForwardContext) -> Tensor:
        """x: [T, hidden_size]; cos, sin: float32 [T, 1, head_dim]. Returns [T, hidden_size]."""
        qkv = self._qkv(x).view(x.shape[0], self._heads + 2 * self._kv_heads, self._head_dim)
        attended = ctx.attention.forward_projected(self._layer, qkv, cos, sin, self._head_norms, ctx.batch, ctx.meta)
        return self._out(attended)

    def parameters(self, prefix: str) -> Iterator[Parameter]:
        for layer in (self._qkv, self._out, *self._norms):
            yield from layer.parameters(prefix)

    def pack(self) -> None:
        self._qkv.pack()
        self._out.pack()
