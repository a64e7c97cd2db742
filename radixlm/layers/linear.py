"""Linear layers, several checkpoint matrices fused into one. Knows names of projections only as it is told them."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from radixlm.kernels.activation import Activation
from radixlm.kernels.linear import PackedLinear, pack_linear
from radixlm.layers.parameter import Layer, Parameter, Placement, Shard


class Linear(Layer):
    """One matrix multiplication for one or more projections of the same input, their outputs side by side."""

    def __init__(
        self, in_features: int, parts: Sequence[tuple[str, int]], bias: bool, shard: Shard, place: Placement
    ) -> None:
        """`parts`: (checkpoint name, out_features) of each projection, in the order of the output."""
        out_features = sum(size for _, size in parts)
        self._parts = tuple(parts)
        self._shard = shard
        self._invariant = place.invariant
        self._run = PackedLinear(place.empty(out_features, in_features), place.empty(out_features) if bias else None)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, in_features]. Returns [T, out_features of all parts]."""
        return self._run(x)

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        """x: [T, in_features]. Returns activation(first half) * second half of the output: [T, out_features / 2]."""
        return self._run.gated(x, activation)

    def parameters(self, prefix: str) -> Iterator[Parameter]:
        # With the input divided, every rank adds to the same outputs: the bias is one rank's to add, hence whole.
        bias_shard = Shard.OUTPUT if self._shard is Shard.OUTPUT else Shard.NONE
        start = 0
        for name, size in self._parts:
            yield Parameter(f"{prefix}{name}.weight", self._run.weight[start : start + size], self._shard)
            if self._run.bias is not None:
                yield Parameter(f"{prefix}{name}.bias", self._run.bias[start : start + size], bias_shard)
            start += size

    def pack(self) -> None:
        self._run = pack_linear(self._run.weight, self._run.bias, self._invariant)
