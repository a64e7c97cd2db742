"""The command line of `radixlm serve`: spellings, prefixes, YAML, refusals, help."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from radixlm.base.errors import ConfigError
from radixlm.config.cli import parse_serve, read_serve
from radixlm.config.flags import option_of
from radixlm.config.groups import fields_by_name, sections
from radixlm.config.manifest import rows

ATTENTION = "auto, triton, native_cpu, torch_native, flashinfer"


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line on stderr with which `argv` is refused."""
    with pytest.raises(SystemExit) as caught:
        parse_serve(argv)
    captured = capsys.readouterr()
    assert caught.value.code == 2 and captured.out == ""
    assert captured.err.startswith("radixlm: ") and captured.err.count("\n") == 1
    return captured.err.removeprefix("radixlm: ").rstrip("\n")


@pytest.mark.parametrize("model", ["demo", "Qwen/Qwen3-0.6B", "./folder", "/models/x.gguf"])
def test_model_in_every_position(model: str) -> None:
    lines = [
        [model, "--port", "1"],
        ["--port", "1", model],
        ["--enable-metrics", model, "--port", "1"],
        ["--port", "1", "--", model],
        ["--model-path", model, "--port=1"],
        ["--model", model, "--port=1"],
        [model, "--model", model, "--port", "1"],
    ]
    for line in lines:
        config = read_serve(line)
        assert (config.model.model_path, config.server.port) == (model, 1)


def test_the_manuals_command() -> None:
    line = "--model-path m --host 0.0.0.0 --port 1 --enable-cache-report --enable-metrics --mem-fraction-static 0.85"
    config = read_serve(line.split())
    assert config.server.host == "0.0.0.0" and config.server.enable_cache_report
    assert config.observe.enable_metrics and config.cache.mem_fraction_static == 0.85


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--mem-fraction 0.8", "mem_fraction_static", 0.8),
        ("--max-running 64", "max_running_requests", 64),
        ("--served me", "served_model_name", "me"),
        ("--context-length 1.5k", "context_length", 1500),
        ("--max-total-tokens 2Mi", "max_total_tokens", 2 * 2**20),
        ("--max-prefill-tokens 8k", "max_prefill_tokens", 8000),
        ("--chunked-prefill-size -1", "chunked_prefill_size", -1),
        ("--page-size 4 --page-size 8", "page_size", 8),
        ("--bucket-time-to-first-token 0.1 1 10", "bucket_time_to_first_token", (0.1, 1.0, 10.0)),
        ('--extra-metric-labels {"a":"b"}', "extra_metric_labels", {"a": "b"}),
        ("--tp 1 --dp 1 --ep 1", "page_size", None),
        ("--enable-mixed-chunk --disable-cuda-graph --sleep-on-idle", "page_size", None),
        ("--no-dcp-replicate-q-proj --dllm-fdfo", "page_size", None),
        ("--kv-cache-dtype auto --grammar-backend none", "page_size", None),
    ],
)
def test_accepted(words: str, name: str, value: object) -> None:
    assert read_serve(["m", *words.split()]).flat()[name] == value


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--prefill-delayer-max-delay-passes 3", "needs --enable-prefill-delayer"),
        ("--enable-prefill-delayer --prefill-delayer-max-delay-ms 5", "needs --prefill-delayer-queue-min-ratio"),
        ("--disable-priority-preemption", "needs --enable-priority-scheduling"),
        ("--default-priority-value 0", "needs --enable-priority-scheduling"),
        ("--disable-radix-cache --radix-eviction-policy slru", "does nothing with --disable-radix-cache"),
        ("--disable-radix-cache --kv-events-config {}", "does nothing with --disable-radix-cache"),
        ("--retraction-policy priority", "--retraction-policy priority needs --enable-priority-scheduling"),
        ("--otlp-service-name x", "needs --enable-trace"),
    ],
)
def test_what_would_do_nothing_is_refused(words: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_serve(["m", *words.split()])


@pytest.mark.parametrize(
    "words",
    [
        "--radix-eviction-policy priority",  # prefixes have priorities, whoever starts first
        "--disable-radix-cache --radix-eviction-policy lru --schedule-policy lpm",
        "--chunked-prefill-size 4096 --max-prefill-tokens 8192 --max-total-tokens 4k --mem-fraction-static 0.8",
    ],
)
def test_what_sglang_lines_have_together_is_accepted(words: str) -> None:
    read_serve(["m", *words.split()])


def test_every_working_flag_can_be_given() -> None:
    """One word of each flag's type reaches the flat view through every spelling."""
    words = {int: ["5"], float: ["0.5"], str: ["text"], bool: []}
    own_words = {
        "json_model_override_args": ["{}"],
        "default_chat_template_kwargs": ["{}"],
        "extra_metric_labels": ['{"a": "b"}'],
        "radix_eviction_policy_config": ['{"threshold": 2}'],
        "kv_events_config": ['{"publisher": "zmq"}'],
        "watchdog_timeout": ["7"],
        "log_requests_level": ["1"],
        "detokenizer_worker_num": ["1"],
        "fastapi_root_path": ["/prefix"],
        "retraction_policy": ["length"],  # the other one needs priority scheduling
    }
    companions = {"export_metrics_to_file": ["--export-metrics-to-file-dir", "/tmp"]}
    companions["prefill_delayer_max_delay_ms"] = [
        "--prefill-delayer-queue-min-ratio", "0.5", "--enable-prefill-delayer",
    ]  # fmt: skip
    for item in fields_by_name().values():
        if item.flag.needs is not None:
            companions.setdefault(item.name, [option_of(item.flag.needs)])
        given = own_words.get(item.name) or (list(item.flag.choices[-1:]) if item.flag.choices else words[item.base])
        for spelling in item.spellings:
            model = [] if item.name == "model_path" else ["m"]
            config = read_serve([*model, spelling, *given, *companions.get(item.name, [])])
            assert config.flat()[item.name] == item.read(given) != (item.default if item.kind == "switch" else object())


@pytest.mark.parametrize(
    "prefix", ["--pp", "--quant", "--context", "--trust", "--cuda-graph-max-bs", "--cuda-graph-bs"]
)
def test_ambiguous_prefixes(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "m", prefix, "1").startswith(f"ambiguous option: {prefix} could match --")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--tp-size 2", "--tp-size is planned (parallelism), not available yet"),
        ("--tp 2", "--tp-size is planned (parallelism), not available yet"),
        ("--tensor-parallel-size=2", "--tp-size is planned (parallelism), not available yet"),
        ("--dp 2", "--dp-size is planned (parallelism), not available yet"),
        ("--speculative-algo EAGLE", "--speculative-algorithm is planned (speculative decoding), not available yet"),
        ("--lora-paths a=b c", "--lora-paths is planned (LoRA), not available yet"),
        ("--model-checksum", "--model-checksum is planned (weight loading), not available yet"),
        ("--enable-lora", "--enable-lora is planned (LoRA), not available yet"),
        ("--trust-remote-code", "--trust-remote-code is refused: code from model repositories is never run"),
        (
            "--num-continuous-decode-steps 2",
            "--num-continuous-decode-steps is refused: nothing reads it in SGLang either",
        ),
    ],
)
def test_planned_and_refused(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "m", *words.split()) == line


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("", "--model-path is required"),
        ("m --port x", "--port: 'x' is not an integer"),
        ("m --port 70000", "--port: must lie between 0 and 65535, not 70000"),
        ("m --port", "--port: expected one argument"),
        ("m --context-length 4K", "--context-length: '4K' is not an integer such as"),
        ("m --mem-fraction-static 1.5", "--mem-fraction-static: must be above 0 and below 1, not 1.5"),
        ("m --mem-fraction-static nan", "--mem-fraction-static: must be above 0"),
        ("m --dtype int8", "--dtype: 'int8' is not one of: auto, half"),
        ("m --bucket-e2e-request-latency 2 1", "--bucket-e2e-request-latency: must be strictly increasing"),
        ("m --json-model-override-args {", "--json-model-override-args: not valid JSON"),
        ("m --no-such 3", "unknown flag --no-such"),
        ("m -x", "unknown flag -x"),
        ("m --enable-ep-moe", "unknown flag --enable-ep-moe (gone; --ep-size)"),
        ("m n", "one model is served, but arguments are: m n"),
        ("m --model n", "two models are named: m and --model-path n"),
        ("m --tp 2 --trust-remote-code", "not available yet; --trust-remote-code is refused"),
    ],
)
def test_bad_lines(words: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert part in refused(capsys, *words.split())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--attention-backend nosuch", f"'nosuch' is not one of: {ATTENTION}, full"),
        ("--prefill-attention-backend full", f"'full' is not one of: {ATTENTION}, fa4"),
        ("--decode-attention-backend full", f"'full' is not one of: {ATTENTION}"),
        ("--attention-backend fa4", "'fa4' is for prompts: --prefill-attention-backend fa4"),
        ("--decode-attention-backend fa4", "'fa4' is for prompts: --prefill-attention-backend fa4"),
        *(
            (f"{option} fa3", "'fa3' is on no package index; flashinfer runs FlashAttention-3 on Hopper")
            for option in ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
        ),
    ],
)
def test_attention_backends_that_do_not_exist(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "m", *words.split()) == f"{words.split()[0]}: {line}"


# ---- YAML -------------------------------------------------------------------------------------------------------


def yaml_file(folder: Path, text: str) -> str:
    path = folder / "server.yaml"
    path.write_text(text, "utf-8")
    return str(path)


def test_yaml_is_under_the_command_line(tmp_path: Path) -> None:
    path = yaml_file(
        tmp_path,
        "model: from/file\nport: 1\nhost: 0.0.0.0\ncontext-length: 8k\nenable_metrics: true\n"
        "bucket-time-to-first-token: [1, 2]\nextra_metric_labels: {a: b}\njson-model-override-args: '{}'\n"
        "tp-size: 1\ntrust-remote-code: false\n",
    )
    config = read_serve(["--config", path, "--port", "2"])
    assert config.model.model_path == "from/file" and config.model.context_length == 8000
    assert (config.server.host, config.server.port) == ("0.0.0.0", 2)
    assert config.observe.enable_metrics and config.observe.bucket_time_to_first_token == (1.0, 2.0)
    assert config.observe.extra_metric_labels == {"a": "b"}
    assert read_serve(["other", "--port", "2", "--config", path]).model.model_path == "other"
    assert read_serve(["m", "--config", yaml_file(tmp_path, "")]) == read_serve(["m"])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("port: x", ": port: --port: 'x' is not an integer"),
        ("port: -1", ": port: --port: must lie between"),
        ("enable-metrics: 1", ": enable-metrics: --enable-metrics: must be true or false, not 1"),
        ("tp-size: 2", ": tp-size: --tp-size is planned (parallelism), not available yet"),
        ("no-such: 1", ": no-such: unknown flag --no-such"),
        ("no-dllm-fdfo: true", ": no-dllm-fdfo: unknown flag --no-dllm-fdfo"),
        ("model: a\nmodel-path: b", ": model-path: given twice"),
        ("config: other.yaml", ": config: "),
        ("- a", "must be a mapping of options, not a list"),
        ("a: [", "not valid YAML"),
    ],
)
def test_bad_yaml_names_file_and_key(text: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = yaml_file(tmp_path, text)
    line = refused(capsys, "m", "--config", path)
    assert line.startswith(f"--config {path}: ") and part in line


def test_one_yaml_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = yaml_file(tmp_path, "port: 1")
    assert refused(capsys, "m", "--config", path, "--config", path) == "--config may be given once only"
    missing = str(tmp_path / "none.yaml")
    assert refused(capsys, "m", "--config", missing) == f"--config {missing}: No such file or directory"


# ---- help and start ---------------------------------------------------------------------------------------------


def test_help_shows_what_works_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_serve(["--help"])
    text = capsys.readouterr().out
    shown = set(re.findall(r"^  (--[a-z0-9-]+)", text, re.MULTILINE))
    assert caught.value.code == 0
    assert shown == {item.option for item in fields_by_name().values()} | {"--config"}
    assert [text.index(f"\n{title}:") for title in sections()] == sorted(text.index(f"\n{t}:") for t in sections())
    assert not any(f"  {row.option} " in text for row in rows() if row.status != "works")


def test_the_parser_is_light() -> None:
    code = (
        "import time, sys; start = time.perf_counter(); import radixlm.config.cli; "
        "print(time.perf_counter() - start, *({'torch', 'numpy', 'transformers', 'yaml'} & {*sys.modules}))"
    )
    # The best of three: another process may hold the machine's cores.
    outputs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    words = [output.stdout.split() for output in outputs]
    assert all(len(line) == 1 for line in words), words
    assert min(float(line[0]) for line in words) < 0.15
