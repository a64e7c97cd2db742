"""Machines and models that resolution is tested on."""

from dataclasses import replace

from radixlm.config.card import ModelCard
from radixlm.config.facts import GpuFacts, HardwareFacts

MIB = 2**20
GIB = 2**30

SMOLLM2 = ModelCard(
    architecture="LlamaForCausalLM",
    model_type="llama",
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    context_len=8192,
    dtype="float16",
)
QWEN3_8B = ModelCard(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    vocab_size=151_936,
    hidden_size=4096,
    intermediate_size=12_288,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    context_len=40_960,
)
LONG_FP32 = ModelCard(
    architecture="LlamaForCausalLM",
    model_type="llama",
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    context_len=1_000_000,
    dtype="float32",
)
MODELS = {"smollm2": SMOLLM2, "qwen3-8b": QWEN3_8B, "long-fp32": LONG_FP32}

LAPTOP = HardwareFacts(cores=4, memory_bytes=16 * GIB, available_bytes=10 * GIB, drawn_seed=7)
SERVER_CPU = replace(LAPTOP, cores=64, available_bytes=200 * GIB, cpu_flags=frozenset({"avx512_bf16", "amx_bf16"}))


def with_gpu(name: str, memory_mib: int, capability: tuple[int, int]) -> HardwareFacts:
    gpu = GpuFacts(name, memory_mib * MIB, (memory_mib - 600) * MIB, sms=100, capability=capability)
    return replace(SERVER_CPU, gpu=gpu)


def one_chip(name: str, memory_mib: int, capability: tuple[int, int]) -> HardwareFacts:
    """Host and GPU with one memory, of which other programs have 6 GiB."""
    available_bytes = (memory_mib - 6 * 1024) * MIB
    gpu = GpuFacts(name, memory_mib * MIB, available_bytes, sms=48, capability=capability, integrated=True)
    return replace(SERVER_CPU, memory_bytes=memory_mib * MIB, available_bytes=available_bytes, gpu=gpu)


MACHINES = {
    "laptop": LAPTOP,
    "server": SERVER_CPU,
    "t4": with_gpu("T4", 15_360, (7, 5)),
    "l4": with_gpu("L4", 23_034, (8, 9)),
    "4090": with_gpu("RTX 4090", 24_564, (8, 9)),
    "a100-40": with_gpu("A100", 40_960, (8, 0)),
    "h100": with_gpu("H100", 81_559, (9, 0)),
    "h200": with_gpu("H200", 143_771, (9, 0)),
    "b200": with_gpu("B200", 183_359, (10, 0)),
    "gb10": one_chip("GB10", 124_610, (12, 1)),
}
