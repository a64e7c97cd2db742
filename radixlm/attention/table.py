"""The attention backends, one row each."""

from radixlm.attention.base import AttentionBackend
from radixlm.base.registry import Registry, Row

BACKENDS: Registry[type[AttentionBackend]] = Registry(
    "attention backend",
    [
        Row("mixed", "radixlm.attention.mixed:Mixed", rank=40),
        Row("triton", "radixlm.attention.triton_paged:TritonPaged", rank=30),
        Row("flashinfer", "radixlm.attention.flashinfer:FlashInfer", rank=20),
        Row("native_cpu", "radixlm.attention.native_cpu:NativeCPU", rank=10),
        Row("torch_native", "radixlm.attention.torch_native:TorchNative", rank=0),
    ],
)

# For models whose tokens see the whole prompt, of which nothing is cached.
ENCODER_BACKENDS: Registry[type[AttentionBackend]] = Registry(
    "attention backend of encoders", [Row("full", "radixlm.attention.full:Full")]
)
