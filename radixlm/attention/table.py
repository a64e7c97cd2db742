"""The attention backends, one row each."""

from radixlm.attention.base import AttentionBackend
from radixlm.base.registry import Registry, Row

BACKENDS: Registry[type[AttentionBackend]] = Registry(
    "attention backend",
    [
        Row("native_cpu", "radixlm.attention.native_cpu:NativeCPU", rank=10),
        Row("torch_native", "radixlm.attention.torch_native:TorchNative", rank=0),
    ],
)
