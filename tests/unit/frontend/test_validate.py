"""The table of sampling parameters, row by row, and the lengths."""

import math
from typing import Any

import pytest

from radixlm.base.errors import RequestError
from radixlm.config.card import GenerationDefaults
from radixlm.frontend.constraints import Constraint
from radixlm.frontend.lengths import CODE, Fit, Limits, fit
from radixlm.frontend.validate import FIELDS, NOT_YET, parse

VOCAB = 100
BIG = 10**400

REFUSED: list[tuple[str, Any]] = [
    *(("temperature", value) for value in (-1, -1e-9, math.nan, math.inf, BIG, "0.5", True, [1])),
    *(("top_p", value) for value in (0, 0.0, 7, 1.01, math.nan, "1")),
    *(("top_k", value) for value in (0, -5, 1.0, True, "3", math.nan)),
    *(("min_p", value) for value in (2, -0.1, math.nan, None.__class__)),
    *(("frequency_penalty", value) for value in (-2.1, 2.1, math.nan)),
    *(("presence_penalty", value) for value in (-2.1, 2.1, "x")),
    *(("repetition_penalty", value) for value in (0, 2.1, -1)),
    *(("max_new_tokens", value) for value in (-1, 1.5, True, "3", 2**63)),
    *(("min_new_tokens", value) for value in (-1, 129, "3")),
    *(("n", value) for value in (0, 1.0, "2")),
    *(("sampling_seed", value) for value in (2**63, -(2**63) - 1, 1.0, "7")),
    *(("stop", value) for value in ("", ["a", ""], ["a"] * 33, [1], {"a": 1}, "x" * 1025, "\ud800", [None])),
    *(("stop_regex", value) for value in ("(((", "[", "a" * 257, "é" * 129, ["a"] * 33, 5, r"(a)\1")),
    *(("stop_token_ids", value) for value in (5, [-1], [VOCAB], [1.0], ["1"], [True], list(range(99)) * 11)),
    *(("logit_bias", value) for value in ({"99999999": 5}, {"cat": -100}, {"-1": 1}, {"1.0": 1}, {"²": 1})),
    *(("logit_bias", value) for value in ({"1": "x"}, {"1": math.nan}, {"1": None}, {"1": True}, [1], "x", {True: 1})),
    *((name, value) for name in ("ignore_eos", "skip_special_tokens", "no_stop_trim") for value in (1, "true", 0)),
    ("spaces_between_special_tokens", "no"),
    *(("json_schema", value) for value in ({}, "{", "[]", "7", "[" * 500 + "]" * 500, '"' + "x" * 300_000 + '"')),
    *(("regex", value) for value in (7, "(" * 200, "a{1000000}", "x" * 20_000, "\ud800")),
    *(("ebnf", value) for value in (True, ["root"])),
    *(("structural_tag", value) for value in ("x", "true")),
    *(("beam_width", value) for value in (2, 0, True)),
    *(("custom_params", value) for value in ("x", [1], {"a": [[1]]}, {"a": {"b": {}}}, {"a": "x" * 70_000})),
    ("watermark", {"enabled": True}),
    *(("stream_interval", value) for value in (0, 1.5, "2")),
    ("max_tokens", 3),
    ("x" * 1000, 3),
]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=lambda value: repr(value)[:30])
def test_a_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        parse({name: value}, VOCAB)
    assert caught.value.field == name
    assert caught.value.status == 400
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize("name", [*FIELDS, *NOT_YET])
def test_null_means_default(name: str) -> None:
    sampling = parse({name: None}, VOCAB)
    expected = parse({}, VOCAB)
    assert sampling.text == expected.text
    assert sampling.params.top_k == -1 and sampling.params.temperature == 1.0
    assert sampling.max_new_tokens == (None if name == "max_new_tokens" else 128)


def test_an_unknown_key_gets_the_list_of_keys() -> None:
    with pytest.raises(RequestError, match="unknown field `max_tokens`, expected one of `max_new_tokens`, ") as caught:
        parse({"max_tokens": 3}, VOCAB)
    assert all(f"`{name}`" in caught.value.message for name in (*FIELDS, *NOT_YET))


def test_known_keys_that_are_not_served_say_so() -> None:
    with pytest.raises(RequestError, match="watermark is not supported yet"):
        parse({"watermark": {"enabled": True}}, VOCAB)
    parse({"watermark": None, "beam_width": 1, "n": 4}, VOCAB)


def test_at_most_one_grammar() -> None:
    assert parse({"json_schema": "", "regex": None, "custom_params": {}}, VOCAB).constraint is None
    sampling = parse({"regex": "a+", "ebnf": "", "custom_params": {"ids": [1, 2], "n": None}}, VOCAB)
    assert sampling.constraint == Constraint("regex", "a+") and sampling.custom_params == {"ids": [1, 2], "n": None}
    with pytest.raises(RequestError, match="Only one of json_schema, regex, ebnf, or structural_tag can be set"):
        parse({"regex": "a+", "json_schema": "{}"}, VOCAB)


def test_accepted_values_arrive() -> None:
    sampling = parse(
        {
            "max_new_tokens": 5,
            "min_new_tokens": 5,
            "temperature": 0,
            "top_p": 1,
            "top_k": VOCAB * 10,
            "min_p": 1,
            "repetition_penalty": 2,
            "frequency_penalty": -2,
            "logit_bias": {"7": -100, "0": 1.5},
            "sampling_seed": -7,
            "stop": "END",
            "stop_regex": [r"\d+$"],
            "stop_token_ids": [3, None, 3, 99],
            "ignore_eos": True,
            "skip_special_tokens": False,
            "no_stop_trim": True,
        },
        VOCAB,
    )
    params = sampling.params
    assert sampling.max_new_tokens == 5 and sampling.max_new_tokens_given and params.min_new_tokens == 5
    assert params.greedy and params.top_p == 1.0 and params.top_k == -1 and params.min_p == 1.0
    assert params.penalized and params.ignore_eos and params.seed == -7
    assert params.logit_bias == {7: -100.0, 0: 1.5}
    assert params.stop == sampling.text.stop == ("END",)
    assert params.stop_regex == (r"\d+$",) and params.stop_token_ids == (3, 99)
    assert not sampling.text.skip_special_tokens and sampling.text.no_stop_trim


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (9e-7, True), (1e-6, False), (1, False)])
def test_a_tiny_temperature_is_greedy(temperature: float, greedy: bool) -> None:
    assert parse({"temperature": temperature}, VOCAB).params.greedy is greedy


def test_requests_without_a_seed_get_different_ones() -> None:
    seeds = {parse({}, VOCAB).params.seed for _ in range(20)}
    assert len(seeds) == 20 and all(0 <= seed < 2**63 for seed in seeds)


def test_the_authors_defaults_lie_under_the_request() -> None:
    defaults = GenerationDefaults(temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.1)
    params = parse({"top_p": 0.5, "temperature": None}, VOCAB, defaults).params
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (0.6, 0.5, 20, 1.1)
    assert parse({}, VOCAB, GenerationDefaults(top_k=0)).params.top_k == -1
    assert parse({}, VOCAB, GenerationDefaults(top_k=VOCAB)).params.top_k == -1


CONTEXT = Limits(100)


@pytest.mark.parametrize(
    ("prompt", "new", "given", "limits", "expected"),
    [
        (10, 5, True, CONTEXT, Fit(10, 5)),
        (10, None, True, CONTEXT, Fit(10, 90)),
        (10, 90, True, CONTEXT, Fit(10, 90)),
        (10, 0, True, CONTEXT, Fit(10, 0)),
        (99, 128, False, CONTEXT, Fit(99, 1)),
        (10, 90, True, Limits(100, 50), Fit(10, 40)),
        (49, None, True, Limits(100, 50), Fit(49, 1)),
        (300, 8, True, Limits(100, allow_auto_truncate=True), Fit(92, 8)),
        (300, None, True, Limits(100, 50, True), Fit(49, 1)),
        (300, 80, True, Limits(100, allow_auto_truncate=True), Fit(50, 50)),
        (60, 80, True, Limits(100, allow_auto_truncate=True), Fit(60, 40)),
        (60, 8, True, Limits(100, 1000, allow_auto_truncate=True), Fit(60, 8)),
    ],
)
def test_lengths_that_fit(prompt: int, new: int | None, given: bool, limits: Limits, expected: Fit) -> None:
    assert fit(prompt, new, given, limits, "text") == expected


def test_lengths_that_do_not_fit_name_their_limit() -> None:
    with pytest.raises(RequestError) as caught:
        fit(100, None, False, CONTEXT, "text")
    assert caught.value.message == "The input (100 tokens) is longer than the model's context length (100 tokens)."
    assert (caught.value.code, caught.value.field) == (CODE, "text")
    with pytest.raises(
        RequestError, match=r"exceeds the model's maximum context length of 100 tokens\. You req"
    ) as caught:
        fit(90, 11, True, CONTEXT, "text")
    assert "a total of 101 tokens" in caught.value.message
    assert (caught.value.code, caught.value.field) == (CODE, "max_new_tokens")
    with pytest.raises(RequestError) as caught:
        fit(1000, 5, True, Limits(4096, 512), "input_ids")
    assert caught.value.message.startswith(
        "Input length (1000 tokens) exceeds the maximum allowed length (511 tokens). The limit is this server's KV "
    )
    assert "512" in caught.value.message and caught.value.code == CODE
    with pytest.raises(RequestError, match="empty") as caught:
        fit(0, 5, True, CONTEXT, "text")
    assert caught.value.field == "text"
