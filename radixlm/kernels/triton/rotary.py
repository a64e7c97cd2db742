"""From a projection's output to rotated queries and a filled cache, in one launch. Knows tensors only."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixlm.kernels.triton.device import early_launch

HEADS_PER_PROGRAM = 8


def rotate_and_store(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    keys: Tensor,
    values: Tensor,
    index: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """`radixlm.kernels.rotary.rotate_and_store` for qkv whose heads lie side by side within a token."""
    tokens, all_heads, head_dim = qkv.shape
    kv_heads = keys.shape[1]
    heads = all_heads - 2 * kv_heads
    shape = (tokens, heads, head_dim)
    q = torch.empty(shape, dtype=qkv.dtype, device=qkv.device) if out is None else out
    if tokens == 0:
        return q
    block_h = min(HEADS_PER_PROGRAM, triton.next_power_of_2(max(heads, kv_heads)))
    q_blocks, kv_blocks = triton.cdiv(heads, block_h), triton.cdiv(kv_heads, block_h)
    _rotate_and_store[(q_blocks + 2 * kv_blocks, tokens)](
        qkv,
        cos,
        sin,
        qkv if q_weight is None else q_weight,
        qkv if k_weight is None else k_weight,
        q,
        keys,
        values,
        index,
        qkv.stride(0),
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        BLOCK_H=block_h,
        Q_BLOCKS=q_blocks,
        KV_BLOCKS=kv_blocks,
        NORM=q_weight is not None,
        num_warps=4,
        **early_launch(qkv.device),
    )
    return q


@triton.jit(do_not_specialize_on_alignment=["cos", "sin", "index"])
def _rotate_and_store(
    qkv,
    cos,
    sin,
    q_weight,
    k_weight,
    q,
    keys,
    values,
    index,
    stride,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_H: tl.constexpr,
    Q_BLOCKS: tl.constexpr,
    KV_BLOCKS: tl.constexpr,
    NORM: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    part, token = tl.program_id(0), tl.program_id(1).to(tl.int64)
    HALF: tl.constexpr = HEAD_DIM // 2
    half = tl.arange(0, BLOCK_HALF)
    if part < Q_BLOCKS:
        head = part * BLOCK_H + tl.arange(0, BLOCK_H)
        mask = (head < HEADS)[:, None] & (half < HALF)[None, :]
        at = head[:, None] * HEAD_DIM + half[None, :]
        low, high = _rotated(qkv + token * stride + at, mask, cos, sin, q_weight, token, half, eps, HEAD_DIM, NORM)
        to = q + token * (HEADS * HEAD_DIM) + at
        tl.store(to, low.to(q.dtype.element_ty), mask=mask)
        tl.store(to + HALF, high.to(q.dtype.element_ty), mask=mask)
    else:
        where = tl.load(index + token) * (KV_HEADS * HEAD_DIM)
        head = (part - Q_BLOCKS) % KV_BLOCKS * BLOCK_H + tl.arange(0, BLOCK_H)
        mask = (head < KV_HEADS)[:, None] & (half < HALF)[None, :]
        at = head[:, None] * HEAD_DIM + half[None, :]
        if part < Q_BLOCKS + KV_BLOCKS:
            source = qkv + token * stride + HEADS * HEAD_DIM + at
            low, high = _rotated(source, mask, cos, sin, k_weight, token, half, eps, HEAD_DIM, NORM)
            # Rounded to the model's dtype first, whatever the cache holds.
            low, high = low.to(qkv.dtype.element_ty), high.to(qkv.dtype.element_ty)
            tl.store(keys + where + at, low.to(keys.dtype.element_ty), mask=mask)
            tl.store(keys + where + at + HALF, high.to(keys.dtype.element_ty), mask=mask)
        else:
            source = qkv + token * stride + (HEADS + KV_HEADS) * HEAD_DIM + at
            tl.store(values + where + at, tl.load(source, mask=mask).to(values.dtype.element_ty), mask=mask)
            tl.store(
                values + where + at + HALF, tl.load(source + HALF, mask=mask).to(values.dtype.element_ty), mask=mask
            )


@triton.jit
def _rotated(source, mask, cos, sin, weight, token, half, eps, HEAD_DIM: tl.constexpr, NORM: tl.constexpr):
    """Both halves of some heads of a token, float32, normalised and turned by its angles."""
    HALF: tl.constexpr = HEAD_DIM // 2
    dtype = source.dtype.element_ty
    low = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    real = half < HALF
    if NORM:
        scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / HEAD_DIM + eps)[:, None]
        w_low = tl.load(weight + half, mask=real, other=0.0).to(tl.float32)[None, :]
        w_high = tl.load(weight + HALF + half, mask=real, other=0.0).to(tl.float32)[None, :]
        low = (low * scale * w_low).to(dtype).to(tl.float32)
        high = (high * scale * w_high).to(dtype).to(tl.float32)
    c = tl.load(cos + token * HEAD_DIM + half, mask=real, other=0.0)[None, :]
    s = tl.load(sin + token * HEAD_DIM + HALF + half, mask=real, other=0.0)[None, :]
    return low * c - high * s, high * c + low * s
