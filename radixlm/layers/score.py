"""The head of a model that pools: from one hidden vector per prompt to scores of classes, or nothing at all."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from radixlm.layers.linear import Linear
from radixlm.layers.parameter import Layer, Parameter, Placement, Shard

Activation = Callable[[Tensor], Tensor]


class ScoreHead(Layer):
    """Linear maps one after another with `activation` between them; without any it gives back what it is given."""

    def __init__(
        self,
        in_features: int,
        maps: Sequence[tuple[str, int]],
        place: Placement,
        *,
        bias: bool = True,
        activation: Activation = torch.relu,
    ) -> None:
        """`maps`: (checkpoint name, out_features) of each, in order."""
        sizes = (in_features, *(size for _, size in maps))
        self._maps = [Linear(sizes[i], (part,), bias, Shard.NONE, place) for i, part in enumerate(maps)]
        self._activation = activation

    def raw(self, hidden: Tensor) -> Tensor:
        """hidden: [L, in_features]. Returns [L, scores] in its dtype."""
        for index, linear in enumerate(self._maps):
            hidden = linear(self._activation(hidden) if index else hidden)
        return hidden

    def parameters(self, prefix: str) -> Iterator[Parameter]:
        for linear in self._maps:
            yield from linear.parameters(prefix)

    def pack(self) -> None:
        for linear in self._maps:
            linear.pack()
