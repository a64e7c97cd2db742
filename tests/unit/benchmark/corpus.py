"""Result files as the three clients write them: one good run of each, made here, to be spoiled by the tests."""

from typing import Any

REQUESTS = 1200
TTFTS = [0.05 + 0.0001 * (i % 7) for i in range(REQUESTS)]
LATENCIES = {
    f"{stat}_{name}_ms": value
    for name, values in {
        "e2e_latency": (1300.0, 1290.0, 40.0, 1350.0, 1360.0, 1380.0),
        "ttft": (50.3, 50.3, 0.2, 50.6, 50.6, 50.6),
        "tpot": (9.8, 9.8, 0.1, 9.9, 10.0, 10.1),
        "itl": (9.8, 9.8, 0.1, 9.8, 9.8, 9.8),
    }.items()
    for stat, value in zip(("mean", "median", "std", "p90", "p95", "p99"), values, strict=True)
}


def sglang() -> dict[str, Any]:
    """SGLang's line, native backend, with details: 10 requests/s for two minutes."""
    duration = 120.0
    return {
        "tag": None,
        "backend": "sglang",
        "dataset_name": "random-ids",
        "request_rate": 10.0,
        "max_concurrency": None,
        "sharegpt_output_len": None,
        "random_input_len": 512,
        "random_output_len": 128,
        "random_range_ratio": 1.0,
        "server_info": {"mem_fraction_static": 0.85, "load_format": "auto", "internal_states": [{}]},
        "duration": duration,
        "completed": REQUESTS,
        "total_input_tokens": 512 * REQUESTS,
        "total_input_text_tokens": 512 * REQUESTS,
        "total_input_vision_tokens": 0,
        "total_output_tokens": 128 * REQUESTS,
        "total_output_tokens_retokenized": 128 * REQUESTS - 40,
        "request_throughput": REQUESTS / duration,
        "input_throughput": 512 * REQUESTS / duration,
        "output_throughput": 128 * REQUESTS / duration,
        "total_throughput": 640 * REQUESTS / duration,
        **LATENCIES,
        "concurrency": REQUESTS / duration * 1.3,
        "accept_length": None,
        "max_output_tokens_per_s": 1400.0,
        "max_concurrent_requests": 18,
        "cache_report": {"total_prompt_tokens": 512 * REQUESTS, "total_cached_tokens": 0, "cache_hit_rate_pct": 0.0},
        "input_lens": [512] * REQUESTS,
        "output_lens": [128] * REQUESTS,
        "ttfts": list(TTFTS),
        "itls": [[0.0098] * 127] * REQUESTS,
        "generated_texts": [""] * REQUESTS,
        "errors": [""] * REQUESTS,
    }


def radixlm() -> dict[str, Any]:
    """Our line, without details."""
    line = {key: value for key, value in sglang().items() if key not in ("cache_report", "itls", "generated_texts")}
    return line | {
        "client": "radixlm",
        "model": "m",
        "num_prompts": REQUESTS,
        "failed": 0,
        "errors_sample": [],
        "seed": 42,
        "warmup_requests": 1,
        "flush_cache": True,
        "stream": True,
        "ignore_eos": True,
        "tokenize_prompt": True,
        "client_cpu_percent": 21.0,
        "client_processes": 1,
        "max_itl_ms": 30.0,
        "mean_client_queue_ms": 0.2,
        "max_client_queue_ms": 2.0,
        "total_requested_output_tokens": 128 * REQUESTS,
        "output_lens_assumed": 0,
        "server_prompt_tokens": 512 * REQUESTS,
        "cache_hit_rate": 0.0,
        "cache_reported_requests": REQUESTS,
    }


def vllm() -> dict[str, Any]:
    """One object as `vllm bench serve --save-result --save-detailed` writes it."""
    duration = 120.0
    latencies = {key.replace("e2e_latency", "e2el"): value for key, value in LATENCIES.items()}
    return {
        "date": "20260301-120000",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": "m",
        "tokenizer_id": "m",
        "num_prompts": REQUESTS,
        "request_rate": 10.0,
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": duration,
        "completed": REQUESTS,
        "failed": 0,
        "total_input_tokens": 512 * REQUESTS,
        "total_output_tokens": 128 * REQUESTS,
        "request_throughput": REQUESTS / duration,
        "request_goodput": None,
        "output_throughput": 128 * REQUESTS / duration,
        "total_token_throughput": 640 * REQUESTS / duration,
        "input_lens": [512] * REQUESTS,
        "output_lens": [128] * REQUESTS,
        "ttfts": list(TTFTS),
        "itls": [[0.0098] * 127] * REQUESTS,
        "generated_texts": [""] * REQUESTS,
        "errors": [""] * REQUESTS,
        **latencies,
        "max_output_tokens_per_s": 1400.0,
        "max_concurrent_requests": 18,
    }


MAKERS = {"sglang": sglang, "radixlm": radixlm, "vllm": vllm}
