"""The skeleton of a pre-norm decoder: embedding, layers, norm, head. Knows no family."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from radixlm.attention.base import ForwardContext
from radixlm.config.card import ModelCard
from radixlm.kernels.activation import Activation
from radixlm.layers.embedding import Embedding, Head
from radixlm.layers.mlp import GatedMLP
from radixlm.layers.norm import RMSNorm
from radixlm.layers.parameter import Layer, Parameter, Placement
from radixlm.layers.rotary import Rotary
from radixlm.layers.score import ScoreHead
from radixlm.models.attention import SelfAttention
from radixlm.models.base import Model, Part


class DecoderLayer(Layer):
    """Attention and feed-forward, each after a norm and around the residual stream."""

    def __init__(self, attention_norm: RMSNorm, attention: SelfAttention, mlp_norm: RMSNorm, mlp: GatedMLP) -> None:
        self._attention_norm = attention_norm
        self._attention = attention
        self._mlp_norm = mlp_norm
        self._mlp = mlp

    def attend(self, delta: Tensor | None, residual: Tensor, cos: Tensor, sin: Tensor, ctx: ForwardContext) -> Tensor:
        """Add the layer before's `delta` to `residual` in place, and return attention's own; all [T, hidden_size]."""
        x = self._attention_norm(residual) if delta is None else self._attention_norm.add(delta, residual)
        return self._attention(x, cos, sin, ctx)

    def feed(self, delta: Tensor, residual: Tensor) -> Tensor:
        """Add attention's `delta` to `residual` in place, and return the feed-forward's own; all [T, hidden_size]."""
        return self._mlp(self._mlp_norm.add(delta, residual))

    def parameters(self, prefix: str) -> Iterator[Parameter]:
        yield from self._attention_norm.parameters(prefix)
        yield from self._attention.parameters(f"{prefix}self_attn.")
        yield from self._mlp_norm.parameters(prefix)
        yield from self._mlp.parameters(f"{prefix}mlp.")

    def pack(self) -> None:
        for part in (self._attention_norm, self._attention, self._mlp_norm, self._mlp):
            part.pack()


class Decoder(Model):
    """A causal language model; an architecture says what its attention and feed-forward blocks are."""

    prefix: ClassVar[str] = "model."

    def __init__(self, card: ModelCard, dtype: torch.dtype, device: torch.device, invariant: bool = False) -> None:
        super().__init__(card, dtype, device, invariant)
        place = self.place
        self._embedding = self.embedding(place)
        self._rotary = Rotary(card.head_dim, card.rope_theta, card.rope_scaling, device)
        self._layers = [self.layer(index, place) for index in range(card.num_layers)]
        self._norm = self.norm("norm", place)
        self._head = _head(card, self._embedding, place)

    @abstractmethod
    def attention(self, index: int, place: Placement) -> SelfAttention:
        """The attention block of layer `index`."""

    def mlp(self, place: Placement) -> GatedMLP:
        """The feed-forward block of a layer."""
        card = self.card
        activation: Activation = "gelu_tanh" if card.hidden_act == "gelu_tanh" else "silu"
        return GatedMLP(card.hidden_size, card.intermediate_size, card.mlp_bias, activation, place)

    def norm(self, name: str, place: Placement) -> RMSNorm:
        """A norm of the residual stream."""
        return RMSNorm(name, self.card.hidden_size, self.card.rms_norm_eps, place)

    def layer(self, index: int, place: Placement) -> DecoderLayer:
        """Layer `index`."""
        before, between = (self.norm(name, place) for name in ("input_layernorm", "post_attention_layernorm"))
        return DecoderLayer(before, self.attention(index, place), between, self.mlp(place))

    def embedding(self, place: Placement) -> Embedding:
        """The token embedding."""
        return Embedding("embed_tokens", self.card.vocab_size, self.card.hidden_size, place)

    def forward(self, input_ids: Tensor, ctx: ForwardContext) -> Tensor:
        residual, cos, sin = self.begin(input_ids, ctx)
        return self.finish(self.attend(residual, cos, sin, ctx), residual, ctx.wanted)

    def begin(self, input_ids: Tensor, ctx: ForwardContext) -> tuple[Tensor, Tensor, Tensor]:
        """What the layers start from: new tensors [T, hidden_size], and cos and sin as `Rotary.tables` gives them."""
        residual = self._embedding(input_ids)
        if ctx.embeds is not None:
            where, own = ctx.embeds
            residual.index_copy_(0, where, own.to(residual.dtype))
        return residual, *self._rotary.tables(ctx.batch.positions)

    def attend(self, residual: Tensor, cos: Tensor, sin: Tensor, ctx: ForwardContext) -> Tensor:
        """All in which tokens meet: what the last layer's attention adds, [T, hidden_size]. Changes `residual`."""
        delta: Tensor | None = None
        for layer in self._layers[:-1]:
            delta = layer.feed(layer.attend(delta, residual, cos, sin, ctx), residual)
        return self._layers[-1].attend(delta, residual, cos, sin, ctx)

    def finish(self, delta: Tensor, residual: Tensor, wanted: Tensor | None = None) -> Tensor:
        """The rest of `forward`, from what `attend` returned, for any of its tokens. Changes `residual`."""
        if wanted is not None:
            if not len(wanted):
                return residual[:0]
            delta, residual = delta.index_select(0, wanted), residual.index_select(0, wanted)
        return self._norm.add(self._layers[-1].feed(delta, residual), residual)

    def raw_logits(self, hidden: Tensor) -> Tensor:
        return self._head.raw(hidden)

    def parts(self) -> Iterator[tuple[str, Part]]:
        yield "model.", self._embedding
        for index, layer in enumerate(self._layers):
            yield f"model.layers.{index}.", layer
        yield "model.", self._norm
        yield "", self._head

    def pack(self) -> None:
        for part in (*self._layers, self._norm, self._head):
            part.pack()

    def redundant(self, name: str) -> bool:
        card = self.card
        unused_head = name == "lm_head.weight" and (card.tie_word_embeddings or card.pooling is not None)
        return unused_head or name.endswith(".rotary_emb.inv_freq")


def _head(card: ModelCard, embedding: Embedding, place: Placement) -> Head | ScoreHead:
    """What the card asks of a hidden state: logits of the vocabulary, scores of classes, or nothing more."""
    size, pooling = card.hidden_size, card.pooling
    if pooling is None:
        return Head("lm_head", card.vocab_size, size, embedding if card.tie_word_embeddings else None, place)
    if not pooling.labels:
        return ScoreHead(size, (), place)
    if pooling.deep_head:
        return ScoreHead(size, (("score.0", size), ("score.2", len(pooling.labels))), place)
    return ScoreHead(size, (("score", len(pooling.labels)),), place, bias=False)
