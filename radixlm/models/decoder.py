"""The skeleton of a pre-norm decoder: embedding, layers, norm, head, and taking weights by name. Knows no family."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from radixlm.attention.base import ForwardContext
from radixlm.base.errors import ModelError
from radixlm.config.card import ModelCard
from radixlm.layers.embedding import Embedding, Head
from radixlm.layers.mlp import GatedMLP
from radixlm.layers.norm import RMSNorm
from radixlm.layers.parameter import Layer, Parameter, Placement
from radixlm.layers.rotary import Rotary
from radixlm.models.attention import SelfAttention


class DecoderLayer(Layer):
    """Attention and feed-forward, each after a norm and around the residual stream."""

    def __init__(self, card: ModelCard, attention: SelfAttention, mlp: GatedMLP, place: Placement) -> None:
        self._input_norm = RMSNorm("input_layernorm", card.hidden_size, card.rms_norm_eps, place)
        self._attention = attention
        self._post_norm = RMSNorm("post_attention_layernorm", card.hidden_size, card.rms_norm_eps, place)
        self._mlp = mlp

    def __call__(self, delta: Tensor | None, residual: Tensor, cos: Tensor, sin: Tensor, ctx: ForwardContext) -> Tensor:
        """Add the layer before's `delta` to `residual` in place, and return this layer's own; all [T, hidden_size]."""
        x = self._input_norm(residual) if delta is None else self._input_norm.add(delta, residual)
        x = self._post_norm.add(self._attention(x, cos, sin, ctx), residual)
        return self._mlp(x)

    def parameters(self, prefix: str) -> Iterator[Parameter]:
        yield from self._input_norm.parameters(prefix)
        yield from self._attention.parameters(f"{prefix}self_attn.")
        yield from self._post_norm.parameters(prefix)
        yield from self._mlp.parameters(f"{prefix}mlp.")

    def pack(self) -> None:
        self._attention.pack()
        self._mlp.pack()


class Decoder(ABC):
    """A causal language model; an architecture says what its attention and feed-forward blocks are."""

    def __init__(self, card: ModelCard, dtype: torch.dtype, device: torch.device) -> None:
        """Makes uninitialised weights: `load` or random filling must follow, then `pack`."""
        self.card = card
        place = Placement(dtype, device)
        self._embedding = Embedding("embed_tokens", card.vocab_size, card.hidden_size, place)
        self._rotary = Rotary(card.head_dim, card.rope_theta, card.rope_scaling, device)
        self._layers = [
            DecoderLayer(card, self.attention(index, place), self.mlp(place), place) for index in range(card.num_layers)
        ]
        self._norm = RMSNorm("norm", card.hidden_size, card.rms_norm_eps, place)
        tied = self._embedding if card.tie_word_embeddings else None
        self._head = Head("lm_head", card.vocab_size, card.hidden_size, tied, place)

    @abstractmethod
    def attention(self, index: int, place: Placement) -> SelfAttention:
        """The attention block of layer `index`."""

    def mlp(self, place: Placement) -> GatedMLP:
        """The feed-forward block of a layer."""
        return GatedMLP(self.card.hidden_size, self.card.intermediate_size, self.card.mlp_bias, place)

    def forward(self, input_ids: Tensor, ctx: ForwardContext) -> Tensor:
        """input_ids: int64 [T], the tokens of `ctx.batch`'s rows. Returns [T, hidden_size], after the last norm."""
        residual = self._embedding(input_ids)
        cos, sin = self._rotary.tables(ctx.batch.positions)
        delta: Tensor | None = None
        for layer in self._layers:
            delta = layer(delta, residual, cos, sin, ctx)
        return self._norm(residual) if delta is None else self._norm.add(delta, residual)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [L, hidden_size], rows of what `forward` returned. Returns float32 [L, vocab_size]."""
        return self._head(hidden)

    def raw_logits(self, hidden: Tensor) -> Tensor:
        """`logits` in the model's own dtype, which is what they were computed in."""
        return self._head.raw(hidden)

    def parameters(self) -> Iterator[Parameter]:
        """Every tensor that a checkpoint must bring; valid until `pack`."""
        yield from self._embedding.parameters("model.")
        for index, layer in enumerate(self._layers):
            yield from layer.parameters(f"model.layers.{index}.")
        yield from self._norm.parameters("model.")
        yield from self._head.parameters("")

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy (checkpoint name, tensor) pairs to their places, casting to the model's dtype.

        ModelError names tensors that are missing, unexpected or of another shape.
        """
        waiting = {parameter.name: parameter for parameter in self.parameters()}
        unexpected = []
        for name, tensor in weights:
            parameter = waiting.pop(name, None)
            if parameter is None:
                if not self._redundant(name):
                    unexpected.append(name)
                continue
            if tensor.shape != parameter.data.shape:
                have, want = list(tensor.shape), list(parameter.data.shape)
                raise ModelError(f"the weights do not fit the configuration: {name} is {have}, expected {want}")
            parameter.data.copy_(tensor)
        if waiting:
            raise ModelError(f"the weights lack {_listing(waiting)}")
        if unexpected:
            raise ModelError(f"{self.card.architecture} has no use for these weights: {_listing(unexpected)}")

    def pack(self) -> None:
        """Lay the weights out for running; to be called once, after loading."""
        for layer in self._layers:
            layer.pack()
        self._head.pack()

    def _redundant(self, name: str) -> bool:
        """Whether a checkpoint may hold this tensor though it says nothing new."""
        tied_head = self.card.tie_word_embeddings and name == "lm_head.weight"
        return tied_head or name.endswith(".rotary_emb.inv_freq")


def _listing(names: Iterable[str], shown: int = 4) -> str:
    names = list(names)
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
