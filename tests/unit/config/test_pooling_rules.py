"""What resolution and sizing make of models that pool: no cache where none can be, no pool where nothing is kept."""

from typing import Any

import msgspec
import pytest

from radixlm.base.errors import CapacityError, ConfigError
from radixlm.config.capacity import budget_report, kv_pool_tokens, settle
from radixlm.config.card import EncoderCard, ModelCard, PoolingCard
from radixlm.config.facts import HardwareFacts
from radixlm.config.groups import Config
from radixlm.config.resolve import Resolved, resolve
from tests.unit.config.machines import GIB, LAPTOP, MACHINES, SMOLLM2

LAST = msgspec.structs.replace(SMOLLM2, pooling=PoolingCard(modes=("lasttoken",)))
MEAN = msgspec.structs.replace(SMOLLM2, pooling=PoolingCard(modes=("mean",)))
ENCODER = msgspec.structs.replace(
    SMOLLM2, context_len=512, pooling=PoolingCard(modes=("cls",)), encoder=EncoderCard(layer_norm_eps=1e-12)
)


def run(card: ModelCard, facts: HardwareFacts = LAPTOP, **flags: Any) -> Resolved:
    return resolve(Config.from_flat({"model_path": "m", **flags}), facts, card)


def test_the_prefix_cache_serves_last_token_pooling_only() -> None:
    assert run(LAST).config.cache.disable_radix_cache is False
    state = run(MEAN)
    assert state.config.cache.disable_radix_cache is True
    decision = state.decision("disable_radix_cache")
    assert decision is not None and "mean pooling" in decision.reason


def test_nothing_is_captured_on_a_device() -> None:
    for card in (LAST, ENCODER):
        state = run(card, MACHINES["h100"])
        assert not state.decode_graphs and not state.prefill_graphs


def test_an_encoder_reads_prompts_whole() -> None:
    state = run(ENCODER, page_size=16, chunked_prefill_size=64)
    assert state.config.cache.disable_radix_cache is True
    assert (state.config.schedule.chunked_prefill_size, state.page_size) == (-1, 512)
    assert state.config.schedule.max_prefill_tokens == 2048
    assert run(ENCODER, max_prefill_tokens=4096).config.schedule.max_prefill_tokens == 4096
    assert run(ENCODER, MACHINES["h100"]).config.schedule.max_prefill_tokens == 16_384
    assert resolve(state.config, LAPTOP, ENCODER).config == state.config
    with pytest.raises(ConfigError, match="--max-total-tokens: an encoder has no KV pool"):
        run(ENCODER, max_total_tokens=1000)


def test_an_encoder_has_pages_for_all_that_may_run_and_no_pool() -> None:
    state = run(ENCODER)
    pool = kv_pool_tokens(state, ENCODER, GIB, 10 * GIB, 2)
    assert pool.bytes == 0 and pool.pages == 64 + 2
    settled = settle(state, pool)
    assert settled.config.schedule.max_running_requests == 64
    report = budget_report(settled, pool, GIB)
    assert "KV pool: none (an encoder keeps no keys and values)" in report
    assert "context length: 512 tokens" in report
    with pytest.raises(CapacityError, match="not enough memory"):
        kv_pool_tokens(state, ENCODER, 11 * GIB, 10 * GIB, 2)
