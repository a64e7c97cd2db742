"""Resolution over a table of machines and models, and each rule's own cases."""

from typing import Any

import msgspec
import pytest

from radixlm.base.errors import ConfigError
from radixlm.config.card import EncoderCard
from radixlm.config.facts import HardwareFacts
from radixlm.config.groups import Config
from radixlm.config.resolve import Decision, Resolved, resolve
from tests.unit.config.machines import LAPTOP, LONG_FP32, MACHINES, MODELS, QWEN3_8B, SERVER_CPU, SMOLLM2


def run(facts: HardwareFacts = LAPTOP, model: str = "smollm2", **flags: Any) -> Resolved:
    return resolve(Config.from_flat({"model_path": "m", **flags}), facts, MODELS[model])


# device, dtype, page size, chunk, running requests, run-ahead, memory share, pool cap
SNAPSHOT = {
    ("laptop", "smollm2"): ("cpu", "float32", 16, 512, 64, 0, 0.5, 262_144),
    ("laptop", "qwen3-8b"): ("cpu", "float32", 16, 512, 64, 0, 0.5, 1_310_720),
    ("laptop", "long-fp32"): ("cpu", "float32", 16, 512, 64, 0, 0.5, 4_194_304),
    ("server", "smollm2"): ("cpu", "bfloat16", 16, 512, 64, 0, 0.5, 262_144),
    ("server", "qwen3-8b"): ("cpu", "bfloat16", 16, 512, 64, 0, 0.5, 1_310_720),
    ("server", "long-fp32"): ("cpu", "float32", 16, 512, 64, 0, 0.5, 4_194_304),
    ("t4", "smollm2"): ("cuda", "float16", 1, 2048, None, 1, 0.757, None),
    ("t4", "qwen3-8b"): ("cuda", "float16", 1, 2048, None, 1, 0.757, None),
    ("4090", "qwen3-8b"): ("cuda", "bfloat16", 1, 4096, None, 1, 0.72, None),
    ("a100-40", "qwen3-8b"): ("cuda", "bfloat16", 1, 4096, None, 1, 0.833, None),
    ("h100", "qwen3-8b"): ("cuda", "bfloat16", 1, 8192, None, 1, 0.835, None),
    ("h100", "long-fp32"): ("cuda", "float16", 1, 8192, None, 1, 0.835, None),
    ("h200", "qwen3-8b"): ("cuda", "bfloat16", 1, 8192, None, 1, 0.907, None),
    ("l4", "qwen3-8b"): ("cuda", "bfloat16", 1, 4096, None, 1, 0.701, None),
    ("gb10", "qwen3-8b"): ("cuda", "bfloat16", 1, 8192, None, 1, 0.892, None),
    ("b200", "qwen3-8b"): ("cuda", "bfloat16", 1, 16_384, None, 1, 0.857, None),
}


@pytest.mark.parametrize(("machine", "model"), SNAPSHOT)
def test_snapshot(machine: str, model: str) -> None:
    state = run(MACHINES[machine], model)
    config = state.config
    assert (
        config.device.device,
        config.model.dtype,
        config.cache.page_size,
        config.schedule.chunked_prefill_size,
        config.schedule.max_running_requests,
        state.run_ahead,
        config.cache.mem_fraction_static,
        state.pool_cap_tokens,
    ) == SNAPSHOT[machine, model]
    assert state.kv_dtype == config.model.dtype
    assert state.context_len == MODELS[model].context_len


def test_resolution_is_pure_and_settles_itself() -> None:
    """Twice the same; and a resolved configuration resolves to itself."""
    first, second = run(SERVER_CPU), run(SERVER_CPU)
    assert first == second
    again = resolve(first.config, SERVER_CPU, SMOLLM2)
    assert again.config == first.config
    assert Config.from_json(first.config.to_json()) == first.config


def test_every_decision_has_a_reason_and_what_was_asked_stands() -> None:
    flags: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "page_size": 8,
        "chunked_prefill_size": 64,
        "max_running_requests": 3,
        "mem_fraction_static": 0.7,
        "random_seed": 11,
        "served_model_name": "me",
        "tokenizer_path": "t",
        "log_level_http": "error",
    }
    state = run(MACHINES["h100"], **flags)
    assert {name: state.config.flat()[name] for name in flags} == flags
    assert [item.name for item in state.decisions] == ["context_len", "run_ahead", "kv_dtype"]
    assert state.pool_cap_tokens is None
    assert all(item.reason for item in run().decisions)


def test_names_and_seed() -> None:
    config = resolve(Config.from_flat({"model_path": "C:/m"}), LAPTOP, SMOLLM2).config
    assert config.model.tokenizer_path == "C:/m"
    assert config.server.served_model_name == "C_/m"
    assert config.server.log_level_http == "info"
    assert config.device.random_seed == 7


def test_memory_of_one_chip_is_said_to_be_shared() -> None:
    for asked, reason in (("auto", "GB10 was found"), ("cuda", "as asked")):
        state = run(MACHINES["gb10"], device=asked)
        shared = f"{reason}; its memory is shared with the CPU"
        assert state.decision("device") == Decision("device", "cuda", shared)
    assert run(MACHINES["l4"], device="cuda").decision("device") is None


def test_device() -> None:
    with pytest.raises(ConfigError, match="--device cuda: no CUDA device was found"):
        run(device="cuda")
    assert run(MACHINES["h100"], device="cpu").config.device.device == "cpu"


@pytest.mark.parametrize(
    ("asked", "got"),
    [("half", "float16"), ("float16", "float16"), ("float", "float32"), ("bfloat16", "bfloat16")],
)
def test_explicit_dtypes_on_the_cpu(asked: str, got: str) -> None:
    assert run(dtype=asked).config.model.dtype == got


def test_bfloat16_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="--dtype bfloat16: T4 has no bfloat16; set --dtype float16"):
        run(MACHINES["t4"], dtype="bfloat16")
    assert run(MACHINES["t4"], dtype="bfloat16", device="cpu").config.model.dtype == "bfloat16"
    assert run(MACHINES["l4"], dtype="bfloat16").config.model.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("machine", "flag", "name", "device"),
    [
        ("laptop", "attention_backend", "triton", "cuda, not on cpu"),
        ("laptop", "prefill_attention_backend", "fa4", "cuda, not on cpu"),
        ("h100", "decode_attention_backend", "native_cpu", "cpu, not on cuda"),
    ],
)
def test_attention_backends_of_another_device(machine: str, flag: str, name: str, device: str) -> None:
    with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')} {name} runs on {device}"):
        run(MACHINES[machine], **{flag: name})
    run(MACHINES[machine], **{flag: "torch_native"})


def test_a_backend_that_does_all_of_a_step_does_it_alone() -> None:
    def taken(**flags: str) -> tuple[str | None, str | None]:
        device = run(LAPTOP, **flags).config.device
        return device.decode_attention_backend, device.prefill_attention_backend

    assert taken(decode_attention_backend="torch_native") == ("torch_native", "torch_native")
    assert taken(prefill_attention_backend="native_cpu") == ("native_cpu", "native_cpu")
    assert taken(attention_backend="torch_native") == (None, None)
    both = "--decode-attention-backend native_cpu and --prefill-attention-backend torch_native cannot work together"
    with pytest.raises(ConfigError, match=both):
        taken(decode_attention_backend="native_cpu", prefill_attention_backend="torch_native")
    with pytest.raises(ConfigError, match="--decode-attention-backend torch_native and --attention-backend native_cpu"):
        taken(attention_backend="native_cpu", decode_attention_backend="torch_native")


@pytest.mark.parametrize(
    ("flags", "encoder", "complaint"),
    [
        ({"attention_backend": "full"}, False, "--attention-backend full is for encoders"),
        (
            {"attention_backend": "torch_native"},
            True,
            "--attention-backend torch_native is not for encoders; theirs: full",
        ),
        (
            {"decode_attention_backend": "torch_native"},
            True,
            "--decode-attention-backend: an encoder has one kind of step",
        ),
        ({"prefill_attention_backend": "auto"}, True, "--prefill-attention-backend: an encoder has one kind of step"),
    ],
)
def test_attention_backends_of_encoders_and_of_others(flags: dict[str, Any], encoder: bool, complaint: str) -> None:
    card = msgspec.structs.replace(SMOLLM2, encoder=EncoderCard(layer_norm_eps=1e-12) if encoder else None)
    with pytest.raises(ConfigError, match=complaint):
        resolve(Config.from_flat({"model_path": "m", **flags}), LAPTOP, card)
    fitting = {"attention_backend": "full" if encoder else "auto"}
    resolve(Config.from_flat({"model_path": "m", **fitting}), LAPTOP, card)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("facts", [LAPTOP, SERVER_CPU])
def test_the_cpu_never_gets_float16_unasked(model: str, facts: HardwareFacts) -> None:
    assert run(facts, model).config.model.dtype in ("float32", "bfloat16")


def test_context_length() -> None:
    assert run(context_length=100).context_len == 100
    assert run(context_length=8192).context_len == 8192
    with pytest.raises(ConfigError, match="--context-length 8193 is more than the 8192 tokens") as caught:
        run(context_length=8193)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("page", "asked", "got"),
    [
        (16, 500, 496),
        (16, 512, 512),
        (16, 3, 16),
        (1, 7, 7),
        (48, None, 480),
        (1024, None, 1024),
        (16, -1, -1),
        (16, 0, -1),
        (16, -5, -1),
    ],
)
def test_chunks_are_whole_pages(page: int, asked: int | None, got: int) -> None:
    state = run(page_size=page, chunked_prefill_size=asked)
    assert state.config.schedule.chunked_prefill_size == got
    assert (state.decision("chunked_prefill_size") is None) == (asked == got)


def test_without_chunks_a_step_holds_the_longest_prompt() -> None:
    assert run(model="qwen3-8b", chunked_prefill_size=-1).config.schedule.max_prefill_tokens == 40_960
    assert run(model="smollm2", chunked_prefill_size=-1).config.schedule.max_prefill_tokens == 16_384
    assert run(model="qwen3-8b").config.schedule.max_prefill_tokens == 16_384


def test_run_ahead() -> None:
    assert run(MACHINES["h100"]).run_ahead == 1
    assert run(MACHINES["h100"], disable_overlap_schedule=True).run_ahead == 0


def test_memory_share_on_cuda_follows_the_chunk() -> None:
    """512 + 1.5 x tokens of a step + 128 + 2 x graph rows MiB, and never less than 10 GiB on a large device."""
    total = 81_559
    assert run(MACHINES["h100"], chunked_prefill_size=2048).config.cache.mem_fraction_static == round(
        (total - 10_240) / total, 3
    )
    assert run(MACHINES["h100"], "qwen3-8b", chunked_prefill_size=-1).config.cache.mem_fraction_static == round(
        max((total - 512 - 1.5 * 40_960 - 128 - 2 * 256) / total, 0.05), 3
    )
    assert run(MACHINES["h100"], "qwen3-8b", chunked_prefill_size=-1, disable_cuda_graph=True).decision(
        "mem_fraction_static"
    ) == Decision("mem_fraction_static", 0.239, "62,080 of 81,559 MiB are kept for activations")


@pytest.mark.parametrize(
    ("machine", "flags", "backend", "rows"),
    [
        ("h200", {}, "full", 4096),
        ("4090", {}, "full", 1024),
        ("t4", {}, "full", 128),
        ("h200", {"cuda_graph_max_bs_decode": 7}, "full", 7),
        ("h200", {"cuda_graph_bs_decode": [9, 3]}, "full", 9),
        ("h200", {"disable_cuda_graph_padding": True}, "full", 256),
        ("t4", {"disable_cuda_graph_padding": True}, "full", 128),
        ("h200", {"disable_cuda_graph": True}, "disabled", None),
        ("h200", {"disable_decode_cuda_graph": True}, "disabled", None),
        ("h200", {"cuda_graph_backend_decode": "disabled"}, "disabled", None),
        ("server", {}, None, None),
    ],
)
def test_decode_graphs(machine: str, flags: dict[str, Any], backend: str | None, rows: int | None) -> None:
    state = run(MACHINES[machine], **flags)
    assert state.config.device.cuda_graph_backend_decode == backend
    assert state.config.device.cuda_graph_max_bs_decode == rows
    assert state.decode_graphs == (backend == "full")


def test_no_one_waits_for_thousands_of_captures() -> None:
    many: dict[str, Any] = {"disable_cuda_graph_padding": True, "cuda_graph_max_bs_decode": 4096}
    with pytest.raises(ConfigError, match="--cuda-graph-max-bs-decode 4096 captures 4,096 graphs, one for each size"):
        run(MACHINES["h200"], **many)
    with pytest.raises(ConfigError, match="captures 2,000 graphs"):
        run(MACHINES["h200"], **many, max_running_requests=2000)
    for fewer in ({"max_running_requests": 64}, {"disable_cuda_graph": True}, {"cuda_graph_max_bs_decode": 1024}):
        run(MACHINES["h200"], **{**many, **fewer})
    run(LAPTOP, **many)


@pytest.mark.parametrize(
    ("card", "flags", "backend", "tokens"),
    [
        ("qwen3-8b", {}, "breakable", 2560),
        ("smollm2", {}, "breakable", 8192),
        ("smollm2", {"chunked_prefill_size": -1, "max_prefill_tokens": 50_000}, "breakable", 50_000),
        ("qwen3-8b", {"cuda_graph_max_bs_prefill": 7000}, "breakable", 7000),
        ("qwen3-8b", {"cuda_graph_bs_prefill": [9, 300]}, "breakable", 300),
        ("qwen3-8b", {"disable_cuda_graph": True}, "disabled", None),
        ("qwen3-8b", {"disable_prefill_cuda_graph": True}, "disabled", None),
        ("qwen3-8b", {"disable_decode_cuda_graph": True}, "breakable", 2560),
        ("qwen3-8b", {"device": "cpu"}, None, None),
    ],
)
def test_prefill_graphs(card: str, flags: dict[str, Any], backend: str | None, tokens: int | None) -> None:
    state = run(MACHINES["h200"], card, **flags)
    assert state.config.device.cuda_graph_backend_prefill == backend
    assert state.config.device.cuda_graph_max_bs_prefill == tokens
    assert state.prefill_graphs == (backend == "breakable")


def test_cards_are_distinct() -> None:
    """The table means something only if its models differ in what the rules read."""
    assert {card.dtype for card in (SMOLLM2, QWEN3_8B, LONG_FP32)} == {"float16", "bfloat16", "float32"}
