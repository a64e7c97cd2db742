"""Every metric has a definition; these are the sums that must come out."""

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from radixlm.base.errors import ConfigError
from radixlm.observability import buckets
from radixlm.observability.metrics import BucketOverrides, Metrics, NullMetrics
from radixlm.observability.record import RequestRecord
from radixlm.observability.rows import ROWS
from radixlm.protocol.messages import Finished, FinishReason, SchedulerReady, SchedulerStats

BASE = {"model_name": "m", "engine_type": "unified"}
RANKS = BASE | {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}


def samples(metrics):
    """{(sample name, frozenset of labels): value} of a scrape."""
    text = metrics.render().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics, name, **labels):
    return samples(metrics)[name, frozenset((BASE | labels).items())]


def finished(kind="stop", prompt=10, output=4, cached=0, status=None):
    return Finished(1, FinishReason(kind, status_code=status), prompt, output, cached, 0)


def test_counts_and_sums_of_a_mixed_load():
    metrics = Metrics("m")
    for stream in (True,) * 7 + (False,) * 5:
        metrics.received(stream)
        metrics.first_token(stream, 0.3)
        metrics.inter_token(0.03, 3)
        metrics.finished(finished(cached=6), stream, e2e_s=0.6, first_token_s=0.3, tokens=4, queue_time_s=0.002)
    for _ in range(2):
        metrics.finished(finished("abort", status=400, output=0), False, 0.1, None, 0, None)
    metrics.received(True)
    metrics.first_token(True, 0.3)
    metrics.aborted()
    metrics.finished(finished("abort", output=1), True, 0.5, 0.3, 1, 0.002)
    got = samples(metrics)

    def total(name, **labels):
        return got[name, frozenset((BASE | labels).items())]

    streamed, plain = {"is_streaming": "true"}, {"is_streaming": "false"}
    assert total("radixlm:num_requests_received_total", **streamed) == 8
    assert total("sglang:num_requests_total", **streamed) == 8
    assert total("sglang:num_requests_total", **plain) == 5
    assert total("sglang:num_aborted_requests_total") == 1
    assert total("sglang:prompt_tokens_total", **streamed) == 80
    assert total("sglang:prompt_tokens_total", **plain) == 50
    assert total("sglang:generation_tokens_total", **streamed) == 7 * 4 + 1
    assert total("sglang:cached_tokens_total", cache_source="device") == 72
    assert total("sglang:time_to_first_token_seconds_count", **streamed) == 8
    assert total("sglang:time_to_first_token_seconds_count", **plain) == 5
    assert total("sglang:time_to_first_token_seconds_sum", **plain) == pytest.approx(1.5)
    assert total("sglang:inter_token_latency_seconds_count") == 36
    assert total("sglang:inter_token_latency_seconds_sum") == pytest.approx(12 * 0.03)
    assert total("sglang:e2e_request_latency_seconds_count", **streamed) == 8
    assert total("sglang:request_time_per_output_token_seconds_count", **streamed) == 7
    assert total("sglang:request_time_per_output_token_seconds_sum", **plain) == pytest.approx(5 * 0.1)
    assert total("sglang:prompt_tokens_histogram_count") == 13
    assert total("sglang:prompt_tokens_histogram_sum") == 130
    assert total("sglang:uncached_prompt_tokens_histogram_sum") == 130 - 72
    assert total("sglang:generation_tokens_histogram_sum") == 49
    assert got["sglang:queue_time_seconds_count", frozenset(RANKS.items())] == 13


def test_tokens_that_all_came_at_once_have_no_time_per_token():
    metrics = Metrics("m")
    metrics.finished(finished(), False, e2e_s=0.6, first_token_s=0.6, tokens=4, queue_time_s=0.0)
    name = "sglang:request_time_per_output_token_seconds_count"
    assert value(metrics, name, is_streaming="false") == 0


def test_buckets_are_cumulative_and_edges_inclusive():
    metrics = Metrics("m")
    for seconds in (0.1, 0.15, 500.0):
        metrics.first_token(False, seconds)
    name = "sglang:time_to_first_token_seconds_bucket"
    below = {edge: value(metrics, name, is_streaming="false", le=edge) for edge in ("0.1", "0.2", "400.0", "+Inf")}
    assert below == {"0.1": 1, "0.2": 2, "400.0": 2, "+Inf": 3}


def test_the_pulse_and_the_start_up_facts():
    metrics = Metrics("m")
    facts = {"context_len": 4096, "weights_bytes": 1 << 30, "kv_cache_bytes": 1 << 29, "load_weight_s": 1.5}
    metrics.ready(SchedulerReady(900, 1024, 8, 16, [], facts))
    metrics.startup("tokenizer_e2e", 3.0)
    pulse = SchedulerStats(
        time=0.0,
        step=3,
        num_running_reqs=2,
        num_queue_reqs=1,
        kv_available_tokens=512,
        kv_evictable_tokens=256,
        kv_used_tokens=256,
        max_total_num_tokens=1024,
        cache_hit_rate=0.5,
        prefill_compute_tokens_total=11,
        prefill_cache_tokens_total=12,
        decode_tokens_total=13,
        evicted_tokens_total=14,
    )
    metrics.stats(pulse)
    expected = {
        "num_running_reqs": 2,
        "num_queue_reqs": 1,
        "token_usage": 0.25,
        "full_token_usage": 0.25,
        "num_used_tokens": 256,
        "kv_available_tokens": 512,
        "kv_evictable_tokens": 256,
        "kv_used_tokens": 256,
        "cache_hit_rate": 0.5,
        "max_total_num_tokens": 1024,
        "page_size": 16,
        "num_pages": 64,
        "context_len": 4096,
        "weight_memory_usage_gb": 1.0,
        "kv_cache_memory_usage_gb": 0.5,
    }
    got = samples(metrics)
    assert {name: got["sglang:" + name, frozenset(RANKS.items())] for name in expected} == expected
    tokens = {mode: value(metrics, "sglang:realtime_tokens_total", **RANKS, mode=mode) for mode in ("decode",)}
    assert tokens == {"decode": 13}
    assert value(metrics, "sglang:realtime_tokens_total", **RANKS, mode="prefill_compute") == 11
    assert value(metrics, "sglang:realtime_tokens_total", **RANKS, mode="prefill_cache") == 12
    tree = {"cache_type": "radix", "tp_rank": "0", "pp_rank": "0", "dp_rank": "0"}
    assert got["sglang:evicted_tokens_total", frozenset(tree.items())] == 14
    assert value(metrics, "sglang:startup_time_seconds", phase="load_weight") == 1.5
    assert value(metrics, "sglang:startup_time_seconds", phase="tokenizer_e2e") == 3.0


def test_every_row_can_have_a_value_and_names_are_unique():
    metrics = Metrics("m")
    metrics.stats(SchedulerStats(time=0.0, step=0, stage_s_total={"idle|none": 1.0}, passes_total={"decode_none": 1}))
    sizes = ("context_len", "weights_bytes", "kv_cache_bytes", "startup_available_bytes")
    graphs = ("decode_cuda_graph_s", "decode_cuda_graph_memory_gb")
    metrics.ready(SchedulerReady(1, 1, 1, 1, [], dict.fromkeys((*sizes, *graphs, "load_weight_s"), 1)))
    metrics.record(RequestRecord(rid="r", stream=True, created=0.0, sent_s=0.1, prompt_tokens=1))
    metrics.loads(0.001)
    metrics.http_request("/generate", "POST")
    metrics.http_response("/generate", "POST", 200)
    names = {name for name, _ in samples(metrics)}
    for row in ROWS:
        assert row.full_name + ("_count" if row.kind == "histogram" else "") in names
    assert len({row.full_name for row in ROWS}) == len(ROWS)


def test_stages_passes_and_retractions_of_the_scheduler():
    metrics = Metrics("m")
    metrics.stats(SchedulerStats(time=0.0, step=1, num_retracted_requests_total=3))
    spent = {"idle|none": 2.0, "idle|full": 0.5, "run_batch|full": 7.0}
    passes = {"decode_cuda_graph": 5, "prefill_none": 2}
    pulse = SchedulerStats(
        time=1.0,
        step=9,
        num_retracted_requests_total=4,
        stage_s_total=spent,
        passes_total=passes,
        effective_input_tokens_total=40,
        prefill_cache_tokens_total=30,
        process_cpu_s_total=1.5,
    )
    metrics.stats(pulse)
    got = samples(metrics)
    stages = {"category": "run_batch", "forward_overlap": "full"}
    assert got["sglang:scheduler_stage_seconds_total", frozenset((RANKS | stages).items())] == 7.0
    assert got["sglang:scheduler_idle_seconds_total", frozenset(RANKS.items())] == 2.5
    assert got["sglang:num_retracted_reqs", frozenset(RANKS.items())] == 1
    assert value(metrics, "sglang:cuda_graph_passes_total", **RANKS, mode="decode_cuda_graph") == 5
    assert value(metrics, "sglang:prefill_effective_tokens_total", **RANKS, mode="input") == 40
    assert value(metrics, "sglang:prefill_effective_tokens_total", **RANKS, mode="device_hit") == 30
    assert got["sglang:process_cpu_seconds_total", frozenset({"component": "scheduler"}.items())] == 1.5


def test_the_stages_of_a_request():
    metrics = Metrics("m")
    times = {"sent_s": 0.01, "queue_time_s": 0.02, "first_token_s": 0.08, "ended_s": 1.0}
    for stream in (True, False):
        metrics.record(RequestRecord(rid="r", stream=stream, created=5.0, prompt_tokens=3, **times))
    name = "sglang:per_stage_req_latency_seconds"
    assert value(metrics, f"{name}_count", **RANKS, stage="request_process") == 2
    assert value(metrics, f"{name}_count", **RANKS, stage="prefill_forward") == 1
    assert value(metrics, f"{name}_sum", **RANKS, stage="prefill_forward") == pytest.approx(0.05)


def test_http_counts():
    metrics = Metrics("m")
    metrics.http_request("/generate", "POST")
    metrics.http_request("/generate", "POST")
    metrics.http_response("/generate", "POST", 499)
    got = samples(metrics)
    labels = {"endpoint": "/generate", "method": "POST"}
    assert got["sglang:http_requests_total", frozenset(labels.items())] == 2
    assert got["sglang:http_responses_total", frozenset((labels | {"status_code": "499"}).items())] == 1
    assert got["sglang:http_requests_active", frozenset()] == 1


def test_a_faulty_call_is_logged_once_and_goes_no_further(caplog):
    metrics = Metrics("m")
    for _ in range(3):
        metrics.inter_token("not a number", 1)  # type: ignore[arg-type]
    assert caplog.text.count("inter_token failed") == 1
    metrics.inter_token(0.01, 0)
    assert value(metrics, "sglang:inter_token_latency_seconds_count") == 0


def test_extra_labels_and_bucket_overrides():
    overrides = BucketOverrides(time_to_first_token=(2.0, 1.0), prompt_tokens=["custom", "5", "10"])
    metrics = Metrics("m", buckets=overrides, extra_labels={"zone": "a"})
    metrics.first_token(True, 1.5)
    name = "sglang:time_to_first_token_seconds_bucket"
    edges = {dict(labels)["le"] for sample, labels in samples(metrics) if sample == name}
    assert edges == {"1.0", "2.0", "+Inf"}
    assert value(metrics, name, is_streaming="true", le="2.0", zone="a") == 1
    assert value(metrics, "sglang:prompt_tokens_histogram_bucket", le="5.0", zone="a") == 0


def test_token_rules():
    assert buckets.token_count_edges(None, "--x") == buckets.TOKEN_COUNTS
    assert buckets.token_count_edges(["tse", "1000", "2", "4"], "--x") == (
        992,
        996,
        998,
        999,
        1000,
        1001,
        1002,
        1004,
        1008,
    )
    assert buckets.token_count_edges(["tse", "4", "2", "4"], "--x") == (2, 3, 4, 5, 6, 8, 12)
    for bad in (["custom"], ["custom", "a"], ["tse", "1"], ["tse", "1", "1", "3"], ["custom", "-1"], ["other"]):
        with pytest.raises(ConfigError, match="--x"):
            buckets.token_count_edges(bad, "--x")


def test_the_twin_has_the_same_hooks():
    hooks = {name for name in dir(Metrics) if not name.startswith("_")} - {"families", "report_fault"}
    assert hooks == {name for name in dir(NullMetrics) if not name.startswith("_")}
    assert NullMetrics().render() == b""


def test_inter_token_costs_little():
    metrics = Metrics("m")
    started = time.perf_counter()
    for _ in range(20_000):
        metrics.inter_token(0.02, 1)
    assert (time.perf_counter() - started) / 20_000 < 20e-6  # about 1 µs on an idle machine
