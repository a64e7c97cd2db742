"""What attention backends of a device share: new keys and values go to the pool first, then attention reads only it."""

from abc import abstractmethod
from typing import Any

from torch import Tensor

from radixlm.attention.base import AttentionBackend, RowBatch
from radixlm.kernels.rotary import HeadNorms, rotate_and_store


class DeviceAttention(AttentionBackend):
    """Rotates and stores in one launch, and leaves the attending to `attend`."""

    @abstractmethod
    def attend(self, layer: int, q: Tensor, scale: float, batch: RowBatch, meta: Any) -> Tensor:
        """`forward` for tokens whose keys and values already are in the pool. q: [T, num_heads, head_dim]."""

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, batch: RowBatch, meta: Any) -> Tensor:
        self.pool.write(layer, batch.kv_index, k, v)
        return self.attend(layer, q, scale, batch, meta)

    def forward_projected(
        self,
        layer: int,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        norms: HeadNorms | None,
        scale: float,
        batch: RowBatch,
        meta: Any,
    ) -> Tensor:
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        q = rotate_and_store(qkv, cos, sin, norms, keys, values, batch.kv_index)
        return self.attend(layer, q, scale, batch, meta)
