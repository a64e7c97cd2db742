"""Which tokens a row may sample, as bits, laid over logits. Torch reference; knows tensors, not grammars."""

from functools import cache

import torch
from torch import Tensor

from radixlm.kernels import triton


def apply_token_masks(logits: Tensor, where: Tensor, bits: Tensor) -> None:
    """Set logits float32 [L, V] to -inf in place where a row's bit is 0: bit t % 32 of word t // 32 is token t's.

    where: int64 [M], the rows that are masked, rising; bits: int32 [M, ceil(V / 32)].
    """
    if logits.is_cuda and triton.available():
        from radixlm.kernels.triton.masks import apply_token_masks as fused

        fused(logits, where, bits)
        return
    apply_token_masks_reference(logits, where, bits)


def apply_token_masks_reference(logits: Tensor, where: Tensor, bits: Tensor) -> None:
    """`apply_token_masks` in plain torch: a table has the eight addends of every byte, which is fastest on a CPU."""
    vocab = logits.shape[1]
    octets = bits.contiguous().view(torch.uint8).to(torch.int32)
    addends = torch.nn.functional.embedding(octets, _addends(bits.device)).flatten(1)[:, :vocab]
    if len(where) == len(logits):
        logits += addends
    else:
        logits.index_add_(0, where, addends)


@cache
def _addends(device: torch.device) -> Tensor:
    """float32 [256, 8]: 0 where bit i of the byte is 1, -inf where it is 0."""
    octets = torch.arange(256, device=device)[:, None]
    allowed = (octets >> torch.arange(8, device=device)) & 1
    return torch.zeros(256, 8, device=device).masked_fill_(allowed == 0, -torch.inf)
