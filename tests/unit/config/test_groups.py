"""The whole configuration: flat view, JSON, replacement, secrets."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.base.errors import ConfigError
from radixlm.config.groups import Config, canonical_name, fields_by_name, group_types

FULL: dict[str, Any] = {
    "model_path": "some/model",
    "context_length": "32k",
    "json_model_override_args": {"rope_theta": 5e5},
    "api_key": "s3cret",
    "port": 1234,
    "max_total_tokens": "64Ki",
    "mem_fraction_static": 0.85,
    "bucket_time_to_first_token": [0.1, 1],
    "extra_metric_labels": {"site": "a"},
    "disable_radix_cache": True,
}


def test_flat_names_are_unique() -> None:
    names = [item.name for group in group_types().values() for item in dataclasses.fields(group)]
    assert len(names) == len(set(names)) == len(fields_by_name())


def test_values_reach_their_groups() -> None:
    config = Config.from_flat(FULL)
    assert config.model.context_length == 32_000
    assert config.model.json_model_override_args == '{"rope_theta": 500000.0}'
    assert config.server.port == 1234
    assert config.cache.max_total_tokens == 65_536
    assert config.cache.disable_radix_cache
    assert config.observe.bucket_time_to_first_token == (0.1, 1.0)
    assert config.schedule.max_prefill_tokens == 16_384


def test_json_round_trip() -> None:
    config = Config.from_flat(FULL)
    assert Config.from_json(config.to_json()) == config
    minimal = Config.from_flat({"model_path": "demo"})
    assert Config.from_json(minimal.to_json()) == minimal != config


@settings(max_examples=50, deadline=None)
@given(
    st.fixed_dictionaries(
        {"model_path": st.text(min_size=1)},
        optional={
            "port": st.integers(1, 65535),
            "mem_fraction_static": st.floats(0.01, 0.99),
            "chunked_prefill_size": st.integers(-1, 10**6),
            "enable_metrics": st.booleans(),
            "bucket_inter_token_latency": st.lists(st.floats(0, 100), unique=True).map(sorted),
            "extra_metric_labels": st.dictionaries(st.text(), st.text()),
        },
    )
)
def test_any_configuration_survives_json(values: dict[str, Any]) -> None:
    config = Config.from_flat(values)
    assert Config.from_json(config.to_json()) == config


def test_replace_checks_and_leaves_the_rest() -> None:
    config = Config.from_flat(FULL)
    changed = config.replace(page_size=16, port=80)
    assert (changed.cache.page_size, changed.server.port) == (16, 80)
    assert changed.replace(page_size=None, port=1234) == config
    with pytest.raises(ConfigError, match="--port"):
        config.replace(port=-1)
    with pytest.raises(ConfigError, match="unknown flag --prot"):
        config.replace(prot=1)


def test_secrets_are_never_shown() -> None:
    config = Config.from_flat(FULL)
    assert config.flat()["api_key"] == "s3cret"
    assert "s3cret" not in str(config.shown()) and "s3cret" not in repr(config)
    assert Config.from_flat({"model_path": "x"}).shown()["api_key"] is None


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "--model-path is required"),
        ({"model_path": ""}, "--model-path: may not be empty"),
        ({"model_path": "x", "tp_size": 2}, r"--tp-size is planned \(parallelism\), not available yet"),
        ({"model_path": "x", "tensor_parallel_size": 2}, "--tp-size is planned"),
        ({"model_path": "x", "trust_remote_code": True}, "--trust-remote-code is refused: "),
        ({"model_path": "x", "no_such": 1}, "unknown flag --no-such"),
        ({"model_path": "x", "model": "y"}, "--model-path is given twice"),
        ({"model_path": "x", "dtype": "fp8"}, "--dtype: 'fp8' is not one of"),
        ({"model_path": "x", "served_model_name": "a:b"}, "':'"),
    ],
)
def test_refusals(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Config.from_flat(values)


def test_defaults_of_planned_flags_are_accepted() -> None:
    values = {"model_path": "x", "tp_size": 1, "trust_remote_code": False, "kv_cache_dtype": "auto", "lora_paths": None}
    assert Config.from_flat(values) == Config.from_flat({"model_path": "x"})


def test_names_of_every_spelling() -> None:
    assert {canonical_name(name) for name in ("tp-size", "tp_size", "--tensor-parallel-size")} == {"tp_size"}
    assert canonical_name("model") == "model_path"
    assert canonical_name("no-such") == "no_such"


@pytest.mark.parametrize(
    "values,line",
    [
        ({"enable_priority_scheduling": True, "schedule_policy": "lpm"}, "needs fcfs or lof, not lpm"),
        ({"retraction_policy": "priority"}, "needs --enable-priority-scheduling"),
        *(
            (
                {f"cuda_graph_backend_{phase}": kind, off: True},
                f"--cuda-graph-backend-{phase} {kind} contradicts --disable-",
            )
            for phase, kind in (("decode", "full"), ("prefill", "breakable"))
            for off in ("disable_cuda_graph", f"disable_{phase}_cuda_graph")
        ),
        *(
            (
                {f"cuda_graph_max_bs_{phase}": 8, f"cuda_graph_bs_{phase}": [64, 1]},
                f"--cuda-graph-max-bs-{phase} 8 contradicts --cuda-graph-bs-{phase} up to 64",
            )
            for phase in ("decode", "prefill")
        ),
        (
            {"disable_cuda_graph_padding": True, "cuda_graph_bs_decode": [1]},
            "--disable-cuda-graph-padding does nothing with --cuda-graph-bs-decode",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        Config.from_flat({"model_path": "demo", **values})


@pytest.mark.parametrize(
    "values",
    [
        {
            "cuda_graph_backend_decode": "full",
            "disable_prefill_cuda_graph": True,
            "cuda_graph_backend_prefill": "disabled",
        },
        {"cuda_graph_backend_decode": "disabled", "disable_cuda_graph": True},
        {"cuda_graph_max_bs_decode": 8, "cuda_graph_bs_decode": [8, 1], "cuda_graph_max_bs_prefill": 4},
    ],
)
def test_settings_of_graphs_that_agree_are_taken(values: dict[str, Any]) -> None:
    Config.from_flat({"model_path": "demo", **values})
