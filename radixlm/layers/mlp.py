"""The gated feed-forward block. Knows no model."""

from collections.abc import Iterator

from torch import Tensor

from radixlm.kernels.activation import Activation
from radixlm.layers.linear import Linear
from radixlm.layers.parameter import Layer, Parameter, Placement, Shard


class GatedMLP(Layer):
    """down(activation(gate(x)) * up(x)), gate and up in one multiplication (arXiv 2002.05202)."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, bias: bool, activation: Activation, place: Placement
    ) -> None:
        self._activation = activation
        halves = (("gate_proj", intermediate_size), ("up_proj", intermediate_size))
        self._gate_up = Linear(hidden_size, halves, bias, Shard.OUTPUT, place)
        self._down = Linear(intermediate_size, (("down_proj", hidden_size),), bias, Shard.INPUT, place)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, hidden_size]. Returns the same shape."""
        return self._down(self._gate_up.gated(x, self._activation))

    def parameters(self, prefix: str) -> Iterator[Parameter]:
        yield from self._gate_up.parameters(prefix)
        yield from self._down.parameters(prefix)

    def pack(self) -> None:
        self._gate_up.pack()
        self._down.pack()
