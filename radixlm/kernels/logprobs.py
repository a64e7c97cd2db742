"""Log probabilities of tokens: torch's and Triton's. Knows tensors only."""

import torch
from torch import Tensor

from radixlm.kernels import triton


def log_sums(logits: Tensor) -> Tensor:
    """The logarithm of each row's sum of exponentials, float32 [L], of logits [L, V] of any floating dtype."""
    if logits.is_cuda and triton.available():
        from radixlm.kernels.triton import logprobs as device

        return device.log_sums(logits)
    return logits.float().logsumexp(-1)


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """The natural logarithm of each row's softmax at its token, float32 [L]; tokens: int64 [L], below 0 read as 0."""
    chosen = logits.gather(1, tokens.clamp(min=0)[:, None]).squeeze(1)
    return chosen.to(torch.float32) - log_sums(logits)
