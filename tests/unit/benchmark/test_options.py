"""The command line: SGLang's names and defaults, and what is refused."""

import pytest

from radixlm.base.client_key import KEY_VARIABLES
from radixlm.base.errors import ConfigError
from radixlm.benchmark.backends import BACKENDS, BodySettings, encode_body
from radixlm.benchmark.options import base_url, build_parser, client_processes, headers, parse
from radixlm.benchmark.outcome import Request


def test_defaults_are_sglangs() -> None:
    options = parse([])
    assert (options.target.backend, base_url(options.target)) == ("sglang", "http://0.0.0.0:30000")
    assert options.target.ready_check_timeout_sec == 60
    load = options.load
    assert (load.request_rate, load.max_concurrency, load.warmup_requests, load.seed) == (float("inf"), None, 1, 42)
    assert (load.temperature, load.top_p, load.flush_cache, load.flush_cache_timeout) == (0.0, 1.0, False, 60)
    d = options.dataset
    assert (d.dataset_name, d.num_prompts, d.random_input_len, d.random_output_len) == ("sharegpt", 1000, 1024, 1024)
    assert (d.random_range_ratio, d.gsp_num_groups, d.gsp_prompts_per_group) == (0.0, 64, 16)
    assert (d.gsp_system_prompt_len, d.gsp_question_len, d.gsp_output_len, d.gsp_range_ratio) == (2048, 128, 256, 1.0)


def test_values() -> None:
    words = ["--request-rate", "4.5", "--header", "A=b", "C=d=e", "--extra-request-body", '{"top_k": 3}', "--port", "9"]
    options = parse([*words, "--tokenize-prompt", "--vocab-size", "100"])
    assert options.load.request_rate == 4.5 and options.load.extra_request_body == {"top_k": 3}
    assert base_url(options.target).endswith(":9")
    assert headers(options.target)["A"] == "b" and headers(options.target)["C"] == "d=e"
    assert base_url(parse(["--base-url", "https://x/y"]).target) == "https://x/y"
    assert base_url(parse(["--backend", "vllm"]).target).endswith(":8000")


def test_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "raw")
    for name in KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert headers(parse([]).target) == {"Authorization": "raw"}
    monkeypatch.setenv("OPENAI_API_KEY", "word")
    assert headers(parse([]).target) == {"Authorization": "Bearer word"}
    monkeypatch.setenv("RADIXLM_API_KEY", "ours")
    assert headers(parse([]).target) == {"Authorization": "Bearer ours"}
    assert headers(parse(["--api-key", "given"]).target) == {"Authorization": "Bearer given"}
    assert headers(parse(["--header", "Authorization=mine"]).target) == {"Authorization": "mine"}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--request-rate", "0"], "--request-rate"),
        (["--request-rate", "nan"], "--request-rate"),
        (["--base-url", "foo"], "--base-url: 'foo' is not an http or https URL"),
        (["--base-url", "http://x:port"], "--base-url"),
        (["--output-file", "/nonexist/x.jsonl"], "--output-file: cannot write /nonexist/x.jsonl"),
        (["--num-prompts", "0"], "--num-prompts"),
        (["--num-prompts", "x"], "--num-prompts"),
        (["--random-range-ratio", "1.5"], "--random-range-ratio"),
        (["--backend", "gserver"], "--backend"),
        (["--dataset-name", "mmmu"], "--dataset-name"),
        (["--header", "nothing"], "--header"),
        (["--vocab-size", "10"], "--tokenize-prompt"),
        (["--tokenize-prompt", "--vocab-size", "10", "--tokenizer", "demo"], "--tokenizer"),
        (["--tokenize-prompt", "--backend", "vllm-chat"], "--tokenize-prompt"),
        (["--extra-request-body", "[1]"], "--extra-request-body"),
        (["--sharegpt-output-len", "3"], "--sharegpt-output-len"),
    ],
)
def test_refusals_name_the_flag(words: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse(words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--num-prompt", "1"], "unknown argument --num-prompt"),
        (["--rust-client"], "--client-processes"),
        (["--image-count", "2"], "images are not sent"),
        (["--mooncake-workload", "toolagent"], "--dataset-path"),
        (["--return-logprob", "--backend", "vllm"], "needs the backend sglang"),
        (["--use-trace-timestamps"], "only the dataset mooncake"),
        (["--dataset-name", "openai"], "needs a chat backend"),
        (["--apply-chat-template", "--backend", "vllm-chat"], "--apply-chat-template"),
        (["--lora-zipf-alpha", "1"], "above 1"),
    ],
)
def test_what_does_nothing_here_is_refused_with_a_reason(words: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse(words)


def test_help_names_every_option() -> None:
    text = build_parser().format_help()
    for option in ("--backend", "--cache-report", "--gsp-zipf-alpha", "--client-processes", "--vocab-size"):
        assert option in text


def test_client_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, wanted in ((2, 1), (4, 1), (8, 2), (128, 4)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert client_processes(parse([]).load, 1000) == wanted
    assert client_processes(parse(["--client-processes", "6"]).load, 1000) == 6
    assert client_processes(parse(["--client-processes", "6", "--max-concurrency", "2"]).load, 1000) == 2
    assert client_processes(parse(["--client-processes", "6"]).load, 3) == 3


def body(backend: str, prompt: str | list[int] = "p", **settings: object) -> object:
    import msgspec

    values = BodySettings(model="m", **settings)  # type: ignore[arg-type]
    return msgspec.json.decode(encode_body(BACKENDS[backend], Request(prompt, 1, 8), values))


def test_bodies() -> None:
    assert body("sglang", [1, 2]) == {
        "input_ids": [1, 2],
        "sampling_params": {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": 8},
        "stream": True,
    }
    assert body("sglang", ignore_eos=False, top_p=0.5, extra={"sampling_params": {"top_k": 2}, "rid": "r"}) == {
        "text": "p",
        "sampling_params": {"temperature": 0.0, "top_p": 0.5, "max_new_tokens": 8, "top_k": 2},
        "stream": True,
        "rid": "r",
    }
    assert body("vllm", temperature=0.7, extra={"stream_options": None}) == {
        "model": "m",
        "prompt": "p",
        "temperature": 0.7,
        "ignore_eos": True,
        "max_tokens": 8,
        "stream": True,
        "stream_options": None,
    }
    assert body("sglang-oai-chat", stream=False) == {
        "model": "m",
        "messages": [{"role": "user", "content": "p"}],
        "temperature": 0.0,
        "ignore_eos": True,
        "max_completion_tokens": 8,
        "stream": False,
    }
