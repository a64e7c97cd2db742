"""What the loader and the runner ask of every model: a forward pass, a head, and weights by name. Knows no family."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from radixlm.attention.base import ForwardContext
from radixlm.base.errors import ModelError
from radixlm.config.card import ModelCard
from radixlm.layers.parameter import Parameter, Placement


class Part(Protocol):
    """Anything that has parameters."""

    def parameters(self, prefix: str) -> Iterator[Parameter]: ...


class Model(ABC):
    """A transformer, from token ids to hidden states and from these, by its head, to what is asked of it.

    Attributes:
        prefix: what the names of all tensors but the head's begin with in a checkpoint that has a head.
    """

    prefix: ClassVar[str]

    def __init__(self, card: ModelCard, dtype: torch.dtype, device: torch.device, invariant: bool = False) -> None:
        """Makes empty weights: `load` or random filling must follow, then `pack`; `invariant`: see Placement."""
        self.card = card
        self.place = Placement(dtype, device, invariant)

    @abstractmethod
    def forward(self, input_ids: Tensor, ctx: ForwardContext) -> Tensor:
        """input_ids: int64 [T], the tokens of `ctx.batch`'s rows. Returns [T, hidden_size], after the last norm.

        Of `ctx.wanted` tokens alone, where it says which: [L, hidden_size].
        """

    @abstractmethod
    def raw_logits(self, hidden: Tensor) -> Tensor:
        """`logits` as they were computed: in the model's own dtype, or float32."""

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [L, hidden_size], rows of what `forward` returned, or what was pooled of them.

        Returns float32 [L, card.outputs]: of the vocabulary, or of the classes; an embedding model's are its input.
        """
        return self.raw_logits(hidden).float()

    @abstractmethod
    def parts(self) -> Iterator[tuple[str, Part]]:
        """Everything that has parameters, with the prefix of their names."""

    @abstractmethod
    def pack(self) -> None:
        """Lay the weights out for running; to be called once, after loading."""

    @abstractmethod
    def redundant(self, name: str) -> bool:
        """Whether a checkpoint may hold this tensor though it says nothing new, or nothing that is used."""

    def own_name(self, name: str) -> str:
        """What a checkpoint's tensor is called here, where old checkpoints call it otherwise."""
        return name

    def parameters(self) -> Iterator[Parameter]:
        """Every tensor that a checkpoint must bring; after `pack` some are copies, and writing to them is in vain."""
        for prefix, part in self.parts():
            yield from part.parameters(prefix)

    def weight(self, name: str) -> Tensor | None:
        """A weight by its checkpoint name, None for an unknown one; packed ones are laid out anew for it."""
        for prefix, part in self.parts():
            if name.startswith(prefix):
                for parameter in part.parameters(prefix):
                    if parameter.name == name:
                        return parameter.data
        return None

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy (checkpoint name, tensor) pairs to their places, casting to the model's dtype.

        Checkpoints of a bare trunk leave `prefix` out. ModelError names tensors that are missing, unexpected or of
        another shape.
        """
        waiting = {parameter.name: parameter for parameter in self.parameters()}
        known = frozenset(waiting)
        unexpected = []
        for name, tensor in weights:
            own = self.own_name(name)
            full = own if own in known or self.prefix + own not in known else self.prefix + own
            parameter = waiting.pop(full, None)
            if parameter is None:
                if not self.redundant(full):
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


def _listing(names: Iterable[str], shown: int = 4) -> str:
    names = list(names)
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
