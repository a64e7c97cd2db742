"""Random stand-in weights, the same for the same seed, made at memory speed. Knows parameters only."""

from collections.abc import Iterable

import torch

from radixlm.layers.parameter import Parameter

SPREAD = 0.02  # standard deviation: as models are initialised, so that activations stay of order one
BLOCK_ELEMENTS = 1_048_573  # prime, so that rows of a tensor do not repeat each other


def fill_dummy(parameters: Iterable[Parameter], seed: int = 0) -> None:
    """Fill every parameter with one random block, repeated: normal around the parameter's centre.

    Drawing each number afresh would take minutes for 8 billion on a CPU.
    """
    block = torch.randn(BLOCK_ELEMENTS, generator=torch.Generator().manual_seed(seed)).mul_(SPREAD)
    copies: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
    for number, parameter in enumerate(parameters):
        data = parameter.data
        kind = (data.dtype, data.device)
        if kind not in copies:
            copies[kind] = block.to(data.device, data.dtype)
        source = copies[kind].roll(number * 7919)  # or parameters of one shape would be equal
        flat = data.view(-1)
        for first in range(0, len(flat), BLOCK_ELEMENTS):
            piece = flat[first : first + BLOCK_ELEMENTS]
            piece.copy_(source[: len(piece)])
        if parameter.centre:
            data.add_(parameter.centre)
