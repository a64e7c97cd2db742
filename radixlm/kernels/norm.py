"""Root-mean-square normalisation, alone and with the residual sum: torch's, native and Triton's. Knows tensors only."""

import torch.nn.functional as F
from torch import Tensor

from radixlm.kernels import triton
from radixlm.kernels.native import elementwise as native


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """x / sqrt(mean(x², last axis) + eps) * weight, computed in float32 and returned in x's dtype (arXiv 1910.07467).

    x: [..., n] in any float dtype; weight: [n] in the same dtype or float32. Returns `out`, where it is given, or a
    new tensor.
    """
    if x.is_cuda and triton.available():
        from radixlm.kernels.triton import elementwise as device

        y = device.rms_norm(x, weight, eps)
        return y if out is None else out.copy_(y)
    native_y = native.rms_norm(x, weight, eps, out)
    if native_y is not None:
        return native_y
    y = _rms_norm(x, weight, eps)
    return y if out is None else out.copy_(y)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x in place (rounded to its dtype), then `rms_norm(residual, weight, eps)`.

    x, residual: [T, n]; weight: [n], as `rms_norm` takes it. Returns a new [T, n]; x is not changed.
    """
    if x.is_cuda and triton.available():
        from radixlm.kernels.triton import elementwise as device

        return device.add_rms_norm(x, residual, weight, eps)
    y = native.add_rms_norm(x, residual, weight, eps)
    if y is not None:
        return y
    residual.add_(x)
    return _rms_norm(residual, weight, eps)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)
