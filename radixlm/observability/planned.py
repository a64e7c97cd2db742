"""SGLang metrics that have no live value here yet, and what each group waits for. Names only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Planned:
    """A group of metrics of one kind; `names` are separated by spaces, without the prefix."""

    kind: str
    waits_for: str
    names: str


PLANNED: tuple[Planned, ...] = (
    Planned(
        "counter",
        "structured output",
        "num_grammar_cache_hit_total num_grammar_aborted_total num_grammar_timeout_total num_grammar_total "
        "num_so_requests_total",
    ),
    Planned(
        "histogram",
        "structured output",
        "grammar_compilation_time_seconds grammar_schema_count grammar_ebnf_size grammar_tree_traversal_time_avg "
        "grammar_tree_traversal_time_max",
    ),
    Planned(
        "gauge",
        "hybrid memory pools",
        "swa_token_usage swa_available_tokens swa_evictable_tokens swa_used_tokens max_total_num_tokens_swa "
        "mamba_usage mamba_available_tokens mamba_evictable_tokens mamba_used_tokens",
    ),
    Planned(
        "gauge",
        "speculative decoding",
        "spec_accept_length spec_accept_rate spec_cap_length spec_block_accept_length spec_num_steps "
        "spec_num_draft_tokens",
    ),
    Planned("counter", "speculative decoding", "spec_verify_calls_total"),
    Planned("gauge", "LoRA adapters", "lora_pool_slots_used lora_pool_slots_total lora_pool_utilization"),
    Planned("gauge", "cache tiers", "hicache_host_used_tokens hicache_host_total_tokens"),
    Planned(
        "counter",
        "cache tiers",
        "load_back_tokens_total load_back_bytes_total hicache_backup_tokens_total hicache_backup_bytes_total "
        "hicache_dropped_tokens_total prefetched_tokens_total backuped_tokens_total "
        "storage_prefetch_hit_tokens_total storage_prefetch_unfulfilled_tokens_total "
        "storage_prefetch_deferred_tokens_total hicache_backup_dropped_tokens_total "
        "hicache_prefetch_aux_alloc_failed_tokens_total",
    ),
    Planned(
        "histogram",
        "cache tiers",
        "load_back_duration_seconds hicache_backup_duration_seconds prefetch_pgs backup_pgs prefetch_bandwidth "
        "backup_bandwidth",
    ),
    Planned("histogram", "tracing inside the processes", "eviction_duration_seconds func_latency_seconds"),
    Planned(
        "counter",
        "device cost estimates",
        "estimated_flops_per_gpu_total estimated_read_bytes_per_gpu_total estimated_write_bytes_per_gpu_total",
    ),
    Planned("counter", "device timers", "forward_execution_seconds_total"),
    Planned("gauge", "device timers", "fwd_occupancy"),
    Planned("gauge", "sessions", "num_streaming_sessions streaming_session_held_tokens"),
    Planned("histogram", "routing keys", "routing_key_running_req_count routing_key_all_req_count"),
    Planned("gauge", "routing keys", "routing_keys_active"),
    Planned("gauge", "start-up tracing", "startup_latency_breakdown_seconds_max"),
    Planned(
        "gauge",
        "prefill/decode disaggregation",
        "num_prefill_bootstrap_queue_reqs num_prefill_inflight_queue_reqs num_decode_prealloc_queue_reqs "
        "num_decode_transfer_queue_reqs num_decode_host_receive_queue_reqs num_decode_deferred_kv_release_reqs",
    ),
    Planned(
        "counter",
        "prefill/decode disaggregation",
        "num_decode_host_receive_reqs_total num_bootstrap_failed_reqs_total num_transfer_failed_reqs_total "
        "num_prefill_retries_total decode_deferred_kv_release_total",
    ),
    Planned(
        "histogram",
        "prefill/decode disaggregation",
        "kv_transfer_speed_gb_s kv_transfer_latency_ms kv_transfer_bootstrap_ms kv_transfer_alloc_ms "
        "kv_transfer_total_mb decode_deferred_kv_release_seconds",
    ),
    Planned(
        "counter",
        "data-parallel attention",
        "dp_cooperation_realtime_tokens_total dp_cooperation_forward_execution_seconds_total "
        "dp_attention_tokens_total dp_attention_steps_total dp_attention_pairs_total "
        "prefill_delayer_outcomes_total",
    ),
    Planned(
        "histogram",
        "data-parallel attention",
        "dp_attention_token_imbalance_ratio dp_attention_sync_wait_seconds prefill_delayer_wait_forward_passes "
        "prefill_delayer_wait_seconds",
    ),
    Planned("summary", "expert parallelism", "eplb_balancedness"),
    Planned("histogram", "expert parallelism", "eplb_gpu_physical_count"),
    Planned(
        "gauge",
        "nothing: SGLang declares these and never sets them",
        "utilization is_cuda_graph num_paused_reqs pending_prealloc_token_usage max_running_requests_under_SLO",
    ),
)
