"""Every tool-call format: the same calls and content however the text is cut, nothing lost in truncated ones."""

import json
import re
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixlm.parsers.events import Answer
from radixlm.parsers.tools.json_calls import JsonArray
from radixlm.parsers.tools.table import TOOL_CALLS
from tests.unit.parsers.corpus import CASES, PARIS, PING, TOOLS, WEATHER, Case, dumps, hermes

IDS = [f"{case.parser}-{number}" for number, case in enumerate(CASES)]


def parse(name: str, pieces: Iterable[str]) -> Answer:
    machine = TOOL_CALLS.load(name)(TOOLS)
    answer = Answer()
    for piece in pieces:
        answer.take(machine.feed(piece))
    answer.take(machine.finish())
    return answer


def cut(text: str, places: Iterable[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_whole(case: Case) -> None:
    answer = parse(case.parser, [case.text])
    assert answer.content == case.content
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == case.calls
    assert [call.id for call in answer.calls] == (case.ids or [None] * len(case.calls))
    assert answer.reasoning == ""


@pytest.mark.parametrize("value", ["1+2", "x", "{1, 2}", "05", "9**9", 'float("inf")', 'b"x"', "-", "__import__('os')"])
def test_pythonic_expressions_are_texts(value: str) -> None:
    call = parse("pythonic", [f"[get_weather(city={value})]"]).calls[0]
    assert json.loads(call.arguments) == {"city": value}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pythonic", '[get_weather(city="\\ud800")]'),
        ("hermes", '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"\\ud800\\"}"}</tool_call>'),
    ],
)
def test_half_a_surrogate_pair_can_be_sent(name: str, text: str) -> None:
    assert "city" in parse(name, [text]).calls[0].arguments.encode().decode()


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_one_character_at_a_time(case: Case) -> None:
    assert parse(case.parser, case.text) == parse(case.parser, [case.text])


@given(st.sampled_from(CASES), st.lists(st.integers(0, 10_000), max_size=12))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_cuts(case: Case, places: list[int]) -> None:
    assert parse(case.parser, cut(case.text, places)) == parse(case.parser, [case.text])


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_truncated_anywhere(case: Case) -> None:
    """A prefix gives prefixes: arguments as far as the model wrote them; every word of a known call comes out."""
    whole = parse(case.parser, [case.text])
    if "nobody" in case.text and case.calls:
        pytest.skip("calls of unknown functions are dropped on purpose")
    for size in range(len(case.text)):
        text = case.text[:size]
        part = parse(case.parser, text if size % 2 else [text])
        assert [call.name for call in part.calls] == [call.name for call in whole.calls[: len(part.calls)]]
        for now, later in zip(part.calls[:-1], whole.calls, strict=False):
            assert now.arguments == later.arguments
        shown = part.content + "".join(call.name + (call.id or "") + call.arguments for call in part.calls)
        for word in re.findall(
            r"(?:Paris|Łódź|Oslo|York|Done|Sure|lat|deep|days|hourly|Alice|oted|Ax|nothing|New)", text
        ):
            assert word in shown, (text, shown)


@given(st.sampled_from(TOOL_CALLS.names()), st.text(alphabet="<>|{}[]()\"'\\:,/=abt_ \n｜▁", max_size=60), st.data())
@settings(max_examples=300, deadline=None)
def test_noise_never_crashes_and_cuts_never_matter(name: str, text: str, data: st.DataObject) -> None:
    openers = [*TOOL_CALLS.load(name).openers, *TOOL_CALLS.load(name).closers, '{"name": "ping", "arguments": ', "ping"]
    parts = data.draw(st.lists(st.sampled_from([*openers, text]), max_size=5))
    joined = "".join(parts)
    whole = parse(name, [joined])
    assert parse(name, joined) == whole
    if not whole.calls:
        assert set(whole.content.split()) <= set(joined.split()) or whole.content.strip() in joined


def test_truncated_arguments_are_not_repaired() -> None:
    answer = parse("qwen", ['<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par'])
    assert answer.calls[0].arguments == '{"city": "Par'
    answer = parse("qwen3_coder", ["<tool_call>\n<function=get_weather>\n<parameter=city>\nPar"])
    assert answer.calls[0].arguments == '{"city": "Par'
    answer = parse(
        "glm45", ["<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>da"]
    )
    assert answer.calls[0].arguments == '{"city": "Paris", "da'


def test_a_call_that_never_began_is_content() -> None:
    text = '<tool_call>\n{"name": "get_weather", "argum'
    assert parse("qwen", [text]).content == text


def test_arguments_stream() -> None:
    machine = TOOL_CALLS.load("qwen")(TOOLS)
    pieces = [machine.feed(piece) for piece in ['<tool_call>{"name": "ping", "arguments": {"a"', ": 1", "2}", "}"]]
    assert [len(events) for events in pieces] == [2, 1, 1, 0]


def test_several_calls_in_one_piece_keep_their_arguments() -> None:
    machine = TOOL_CALLS.load("hermes")(TOOLS)
    answer = Answer()
    answer.take(machine.feed(hermes(*WEATHER) + hermes(*PING) + hermes(*WEATHER)))
    assert [json.loads(call.arguments) for call in answer.calls] == [PARIS, {}, PARIS]


def test_malformed_arguments_go_out_as_they_are() -> None:
    answer = parse("qwen", ['<tool_call>{"name": "ping", "arguments": {"a": <oops>}}</tool_call>after'])
    assert answer.calls[0].arguments == '{"a": <oops>}}'
    assert answer.content == "after"


def test_a_bare_json_array_of_calls() -> None:
    text = dumps([{"name": "get_weather", "parameters": PARIS}, {"name": "ping", "parameters": {}}])
    for pieces in ([text], list(text)):
        machine, answer = JsonArray(TOOLS), Answer()
        for piece in pieces:
            answer.take(machine.feed(piece))
        answer.take(machine.finish())
        assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [WEATHER, PING]


@pytest.mark.parametrize("name", TOOL_CALLS.names())
def test_every_format_is_in_the_corpus(name: str) -> None:
    same = {case.parser for case in CASES if TOOL_CALLS.load(case.parser) is TOOL_CALLS.load(name)}
    assert same, f"no case for {name}"


@pytest.mark.parametrize("name", ["qwen", "qwen3_coder", "pythonic", "gemma4", "kimi_k2"])
def test_time_is_linear_in_the_text(name: str) -> None:
    """100,000 characters, one at a time, inside one value: quadratic work would take minutes."""
    heads = {
        "qwen": '<tool_call>{"name": "get_weather", "arguments": {"city": "',
        "qwen3_coder": "<tool_call><function=get_weather><parameter=where>",
        "pythonic": "[get_weather(city='",
        "gemma4": '<|tool_call>call:get_weather{city:<|"|>',
        "kimi_k2": "",
    }
    machine = TOOL_CALLS.load(name)(TOOLS)
    machine.feed(heads[name])
    size = 0
    for character in "<|t \n" * 20_000:
        size += sum(len(getattr(event, "text", "")) for event in machine.feed(character))
    size += sum(len(getattr(event, "text", "")) for event in machine.finish())
    assert size >= 100_000
