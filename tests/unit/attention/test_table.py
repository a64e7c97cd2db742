"""Which attention backends are taken: the best of each kind of step, what is asked for, and what cannot be."""

import dataclasses

import pytest
import torch

from radixlm.attention import table
from radixlm.attention.base import AttentionFacts, AttentionPlugin
from radixlm.attention.device import ChunkAttention
from radixlm.attention.fa4 import FlashAttention4
from radixlm.attention.flashinfer import FlashInfer
from radixlm.attention.native_cpu import NativeCPU
from radixlm.attention.table import choose
from radixlm.attention.triton_paged import TritonPaged
from radixlm.base.errors import ConfigError
from radixlm.config import attention_names
from radixlm.config.groups import DeviceConfig

GPU = AttentionFacts("cuda", torch.bfloat16, 1, 32, 8, 128, None)
CPU = AttentionFacts("cpu", torch.float32, 16, 4, 2, 64, None)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Every device backend fits and is ready; undo a part of that with the fixture's value."""
    for kind in (FlashInfer, FlashAttention4, TritonPaged):
        monkeypatch.setattr(kind, "why_not", classmethod(lambda kind, facts: []))
        monkeypatch.setattr(kind, "why_not_unasked", classmethod(lambda kind, facts: []))
    return monkeypatch


def taken(facts: AttentionFacts, **flags: str) -> tuple[str, ...]:
    """The backend's name, or those for decoding and for prompts."""
    maker, why = choose(facts, DeviceConfig(**flags))
    kinds = maker.keywords  # type: ignore[attr-defined]
    found = tuple(kind.name for kind in kinds.values()) or (maker.func.name,)  # type: ignore[attr-defined]
    assert all(name in why for name in found[1:])
    return found


def test_each_kind_of_step_has_its_best(gpu: pytest.MonkeyPatch) -> None:
    assert taken(GPU) == ("triton", "flashinfer")
    slow = classmethod(lambda kind, facts: ["not compiled yet"])
    gpu.setattr(FlashInfer, "why_not_unasked", slow)
    assert taken(GPU) == ("triton", "fa4")
    gpu.setattr(FlashAttention4, "why_not", slow)
    assert taken(GPU) == ("triton",)
    assert taken(GPU, prefill_attention_backend="flashinfer") == ("triton", "flashinfer")
    assert taken(GPU, attention_backend="flashinfer") == ("flashinfer",)


def test_what_is_asked_for_is_taken(gpu: pytest.MonkeyPatch) -> None:
    assert taken(GPU, attention_backend="triton") == ("triton",)
    assert taken(GPU, attention_backend="triton", prefill_attention_backend="fa4") == ("triton", "fa4")
    assert taken(GPU, decode_attention_backend="flashinfer") == ("flashinfer",)
    assert taken(GPU, decode_attention_backend="flashinfer", prefill_attention_backend="triton") == (
        "flashinfer",
        "triton",
    )


def test_what_does_not_fit_says_so(gpu: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"unknown --decode-attention-backend \(else --attention-backend\) 'fa4'"):
        choose(GPU, DeviceConfig(attention_backend="fa4"))
    with pytest.raises(ConfigError, match="torch_native and --prefill-attention-backend fa4 cannot work together"):
        choose(GPU, DeviceConfig(decode_attention_backend="torch_native", prefill_attention_backend="fa4"))


def test_the_flags_take_the_tables_names() -> None:
    assert set(attention_names.DECODE_BACKENDS) == {"auto", *table.DECODE_BACKENDS.names()}
    assert set(attention_names.PREFILL_BACKENDS) == {"auto", *table.PREFILL_BACKENDS.names()}
    assert set(attention_names.ENCODER_BACKENDS) == set(table.ENCODER_BACKENDS.names())


@pytest.mark.parametrize("name", table.PREFILL_BACKENDS.names())
def test_the_flags_know_what_runs_where(name: str) -> None:
    kind = table.PREFILL_BACKENDS.load(name)
    device = attention_names.DEVICES.get(name)
    assert (device == "cuda") == ("runs on CUDA, not cpu" in kind.why_not(CPU))
    assert device == "cuda" or (device == "cpu") == ("runs on the CPU, not cuda" in kind.why_not(GPU))
    assert (name in attention_names.WHOLE) == (not issubclass(kind, ChunkAttention))


def test_on_the_cpu_one_backend_does_both() -> None:
    best = "native_cpu" if not NativeCPU.why_not(CPU) else "torch_native"
    assert taken(CPU) == (best,)
    assert taken(CPU, attention_backend="torch_native") == ("torch_native",)
    kinds: tuple[type[AttentionPlugin], ...] = (FlashInfer, FlashAttention4, TritonPaged)
    assert {tuple(kind.why_not(CPU)) for kind in kinds} == {("runs on CUDA, not cpu",)}


def test_what_a_device_s_kernels_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    odd = dataclasses.replace(GPU, dtype=torch.float64, kv_dtype=torch.float16, num_kv_heads=5)
    shared = {
        "a KV cache in torch.float16 with computation in torch.float64",
        "32 query heads cannot share 5 key-value heads evenly",
        "compute capability 7.5 is below 8.0",
    }
    half = "dtype torch.float64 is not bfloat16 or float16"
    assert shared | {half} < set(FlashInfer.why_not(odd)) and shared | {half} < set(FlashAttention4.why_not(odd))
    assert shared | {"dtype torch.float64 is not float32, bfloat16 or float16"} <= set(TritonPaged.why_not(odd))
    wide = dataclasses.replace(GPU, num_heads=64, num_kv_heads=1)
    assert "64 query heads cannot share 1 key-value heads evenly" in TritonPaged.why_not(wide)
    assert not any("evenly" in reason for reason in FlashInfer.why_not(wide))
