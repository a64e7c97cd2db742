"""Rotary position embedding of query and key heads: torch's, native and Triton's. Knows tensors only."""

from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.kernels import triton
from radixlm.kernels.native import elementwise as native
from radixlm.kernels.norm import rms_norm


class HeadNorms(NamedTuple):
    """The RMS norm of each query and key head: weights [head_dim] in the model's dtype."""

    query: Tensor
    key: Tensor
    eps: float


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each head's pairs (i, i + head_dim / 2) by its token's angles, in float32 (arXiv 2104.09864).

    x: [T, heads, head_dim], any strides over T; queries and keys may come in one call, as neighbouring heads.
    cos, sin: float32 [T, 1, head_dim], both halves alike but for the sign: sin's first half is negated, so that the
    result is x * cos + swap_halves(x) * sin. Returns [T, heads, head_dim] in x's dtype; x is not changed.
    """
    y = native.rotary(x, cos, sin)
    if y is not None:
        return y
    swapped = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * cos, swapped, sin).to(x.dtype)


def rotate_heads(
    qkv: Tensor, heads: int, kv_heads: int, cos: Tensor, sin: Tensor, norms: HeadNorms | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a fused projection; queries and keys normalised, if there are norms, and rotated.

    qkv: [T, heads + 2 * kv_heads, head_dim], queries first, then keys; cos, sin: as `rotary` takes them.
    """
    rotated = heads + kv_heads
    qk = qkv[:, :rotated]
    if norms is not None:
        normed = torch.empty(qk.shape, dtype=qk.dtype, device=qk.device)
        rms_norm(qk[:, :heads], norms.query, norms.eps, normed[:, :heads])
        rms_norm(qk[:, heads:], norms.key, norms.eps, normed[:, heads:])
        qk = normed
    qk = rotary(qk, cos, sin)
    return qk[:, :heads], qk[:, heads:], qkv[:, rotated:]


def rotate_and_store(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    norms: HeadNorms | None,
    keys: Tensor,
    values: Tensor,
    index: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """`rotate_heads`, then keys and values go to rows `index` (int64 [T]) of a layer's cache. Returns the queries.

    keys, values: [tokens, kv_heads, head_dim], changed in place. Returns [T, heads, head_dim] in qkv's dtype: `out`,
    if it is given, contiguous.
    """
    if qkv.is_cuda and triton.available():
        from radixlm.kernels.triton import rotary as device

        query, key, eps = norms if norms is not None else (None, None, 0.0)
        return device.rotate_and_store(qkv, cos, sin, query, key, eps, keys, values, index, out)
    kv_heads = keys.shape[1]
    q, k, v = rotate_heads(qkv, qkv.shape[1] - 2 * kv_heads, kv_heads, cos, sin, norms)
    keys.index_copy_(0, index, k.to(keys.dtype))
    values.index_copy_(0, index, v.to(values.dtype))
    return q if out is None else out.copy_(q)
