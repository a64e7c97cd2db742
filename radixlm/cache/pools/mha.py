"""Key and value tensors of all layers, by page. Owns the memory; knows neither requests nor which pages are in use."""

import torch
from torch import Tensor


class MHAPool:
    """Keys and values for multi-head and grouped-query attention.

    Pages are numbered 1..num_pages; page 0 is the null page, where padded rows write and nobody reads. Token t of page
    p lies at index p * page_size + t. `keys[layer]` and `values[layer]` are [(num_pages + 1) * page_size, kv_heads,
    head_dim] in `dtype`. The memory is not initialised, so the operating system hands it out as it is first used.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        num_layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.dtype = dtype
        shape = ((num_pages + 1) * page_size, kv_heads, head_dim)
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(num_layers)]

    def write(self, layer: int, index: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v [T, kv_heads, head_dim] of `layer` at token indices `index` (int64 [T]), rounded to `dtype`."""
        self.keys[layer].index_copy_(0, index, k.to(self.dtype))
        self.values[layer].index_copy_(0, index, v.to(self.dtype))
