"""The skeleton of a post-norm encoder (arXiv 1810.04805): embeddings, layers, head. Knows no family."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from radixlm.attention.base import AttentionLayer, ForwardContext
from radixlm.config.card import EncoderCard, ModelCard
from radixlm.layers.embedding import Embedding
from radixlm.layers.linear import Linear
from radixlm.layers.norm import LayerNorm
from radixlm.layers.parameter import Layer, Parameter, Placement, Shard
from radixlm.layers.score import ScoreHead
from radixlm.models.base import Model, Part

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


@dataclass(frozen=True)
class LayerNames:
    """What a family calls the parts of a layer in its checkpoints."""

    query: str
    key: str
    value: str
    attention_output: str
    attention_norm: str
    up: str
    down: str
    output_norm: str


class EncoderLayer(Layer):
    """Attention and feed-forward, each added to its input and then normalised."""

    def __init__(self, card: ModelCard, encoder: EncoderCard, names: LayerNames, index: int, place: Placement) -> None:
        size, inner = card.hidden_size, card.intermediate_size
        self._layer = AttentionLayer(index, card.attention_scale)
        self._heads = card.num_heads
        self._activation = ACTIVATIONS[card.hidden_act]
        parts = ((names.query, size), (names.key, size), (names.value, size))
        self._qkv = Linear(size, parts, True, Shard.OUTPUT, place)
        self._out = Linear(size, ((names.attention_output, size),), True, Shard.INPUT, place)
        self._attention_norm = LayerNorm(names.attention_norm, size, encoder.layer_norm_eps, place)
        self._up = Linear(size, ((names.up, inner),), True, Shard.OUTPUT, place)
        self._down = Linear(inner, ((names.down, size),), True, Shard.INPUT, place)
        self._output_norm = LayerNorm(names.output_norm, size, encoder.layer_norm_eps, place)

    def __call__(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """x: [T, hidden_size]. Returns the same shape."""
        q, k, v = self._qkv(x).view(x.shape[0], 3, self._heads, -1).unbind(1)
        attended = ctx.attention.forward(self._layer, q, k, v, ctx.batch, ctx.meta)
        x = self._attention_norm(x + self._out(attended))
        return self._output_norm(x + self._down(self._activation(self._up(x))))

    def parameters(self, prefix: str) -> Iterator[Parameter]:
        for layer in (self._qkv, self._out, self._attention_norm, self._up, self._down, self._output_norm):
            yield from layer.parameters(prefix)

    def pack(self) -> None:
        for layer in (self._qkv, self._out, self._up, self._down):
            layer.pack()


class Encoder(Model):
    """A bidirectional model with learned absolute positions; a family says what things are called, and its head."""

    layer_prefix: ClassVar[str]  # under `prefix`; the layer's number follows
    layer_names: ClassVar[LayerNames]
    unused: ClassVar[tuple[str, ...]] = ()  # beginnings of names of tensors that are not needed here

    def __init__(self, card: ModelCard, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(card, dtype, device)
        facts = card.encoder
        if facts is None:
            raise ValueError(f"{card.architecture} needs the facts of an encoder")
        place, size = self.place, card.hidden_size
        self._first_position = facts.first_position
        self._words = Embedding("word_embeddings", card.vocab_size, size, place)
        self._positions = Embedding("position_embeddings", facts.first_position + card.context_len, size, place)
        self._types = (Embedding("token_type_embeddings", facts.token_types, size, place),) * (facts.token_types > 0)
        self._norm = LayerNorm("LayerNorm", size, facts.layer_norm_eps, place)
        self._layers = [EncoderLayer(card, facts, self.layer_names, i, place) for i in range(card.num_layers)]
        labels = card.pooling.labels if card.pooling is not None else ()
        self._head = self.head(len(labels)) if labels else ScoreHead(size, (), place)

    @abstractmethod
    def head(self, labels: int) -> ScoreHead:
        """What makes the scores of so many classes."""

    def forward(self, input_ids: Tensor, ctx: ForwardContext) -> Tensor:
        batch = ctx.batch
        x = self._words(input_ids).add_(self._positions(batch.positions + self._first_position))
        for table in self._types:
            x += table.weight[0] if batch.token_types is None else table(batch.token_types)
        x = self._norm(x)
        for layer in self._layers:
            x = layer(x, ctx)
        return x

    def raw_logits(self, hidden: Tensor) -> Tensor:
        return self._head.raw(hidden)

    def parts(self) -> Iterator[tuple[str, Part]]:
        for part in (self._words, self._positions, *self._types, self._norm):
            yield f"{self.prefix}embeddings.", part
        for index, layer in enumerate(self._layers):
            yield f"{self.prefix}{self.layer_prefix}.{index}.", layer
        yield "", self._head

    def pack(self) -> None:
        for layer in self._layers:
            layer.pack()
        self._head.pack()

    def own_name(self, name: str) -> str:
        stem, _, last = name.rpartition(".")
        renamed = {"gamma": "weight", "beta": "bias"}.get(last)  # as the first BERT checkpoints have it
        return name if renamed is None else f"{stem}.{renamed}"

    def redundant(self, name: str) -> bool:
        return name.endswith(".position_ids") or name.removeprefix(self.prefix).startswith(self.unused)
