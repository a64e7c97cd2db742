"""Both parsers in a row, choosing them from a template, and what tools demand of an answer."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from radixlm.base.errors import ConfigError
from radixlm.config.parser_names import REASONING_PARSERS, TOOL_CALL_PARSERS
from radixlm.parsers import detect
from radixlm.parsers.constraint import constraint_of
from radixlm.parsers.events import Answer, Content, Reasoning, ToolArguments, ToolOpen, merged
from radixlm.parsers.pipeline import AnswerParser
from radixlm.parsers.reasoning.table import REASONING
from radixlm.parsers.tools.table import TOOL_CALLS
from radixlm.parsers.tools.toolbox import KINDS, Tool, Toolbox
from radixlm.parsers.tools.values import json_text
from tests.unit.parsers.corpus import PARIS, TOOLS, WEATHER, harmony, hermes


def parser(reasoning: str | None, tools: str | None, inside: bool = True, **options: bool) -> AnswerParser:
    form = None if tools is None else TOOL_CALLS.load(tools)
    interrupts = () if form is None else form.openers
    return AnswerParser(
        None if reasoning is None else REASONING.load(reasoning).parser(inside, interrupts),
        None if form is None else form(TOOLS),
        **options,
    )


def run(machine: AnswerParser, text: str, by: int) -> Answer:
    answer = Answer()
    for at in range(0, len(text), by):
        answer.take(machine.feed(text[at : at + by]))
    answer.take(machine.finish())
    return answer


@pytest.mark.parametrize("by", [1, 7, 1000])
def test_reasoning_then_a_call(by: int) -> None:
    answer = run(parser("qwen3", "qwen"), "Hm.\n</think>\n\n" + hermes(*WEATHER), by)
    assert (answer.reasoning, answer.content) == ("Hm.\n", "")
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [WEATHER]


@pytest.mark.parametrize("by", [1, 7, 1000])
def test_a_call_that_interrupts_thinking(by: int) -> None:
    answer = run(parser("qwen3", "qwen"), "Hm " + hermes(*WEATHER), by)
    assert answer.reasoning == "Hm " and len(answer.calls) == 1
    assert run(parser("qwen3", None), "Hm " + hermes(*WEATHER), by).calls == []


@pytest.mark.parametrize("by", [1, 7, 1000])
def test_harmony_in_both_stages(by: int) -> None:
    text = "<|channel|>analysis<|message|>Hm<|end|>" + harmony(*WEATHER, end="")
    answer = run(parser("gpt-oss", "gpt-oss", False), text, by)
    assert (answer.reasoning, answer.content) == ("Hm", "")
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [WEATHER]


def test_without_parsers_text_is_content() -> None:
    assert run(parser(None, None), "<think>a</think>", 3) == Answer("<think>a</think>")


def test_held_reasoning_comes_in_one_piece() -> None:
    machine = parser("qwen3", None, hold_reasoning=True)
    assert machine.feed("Hm") == machine.feed(", well") == []
    assert machine.feed("</think>Yes") == [Reasoning("Hm, well"), Content("Yes")]
    machine = parser("qwen3", None, hold_reasoning=True)
    assert machine.feed("Hm") == []
    assert machine.finish() == [Reasoning("Hm")]


@pytest.mark.parametrize("by", [1, 100])
def test_an_answer_that_is_only_thinking_can_be_promoted(by: int) -> None:
    assert run(parser("qwen3", None, never_empty=True), "Hm</think>\n", by) == Answer("\nHm", "Hm")
    assert run(parser("qwen3", None, never_empty=True), "Hm</think>Yes", by) == Answer("Yes", "Hm")
    assert run(parser("qwen3", "qwen", never_empty=True), "Hm</think>" + hermes("ping", {}), by).content == ""


def test_neighbours_are_merged() -> None:
    events = [Content("a"), Content("b"), ToolOpen(0, "f"), ToolArguments(0, "x"), ToolArguments(0, "y"), Content("")]
    assert merged([*events, ToolArguments(1, "z")]) == [
        *[Content("ab"), ToolOpen(0, "f"), ToolArguments(0, "xy"), ToolArguments(1, "z")]
    ]


@pytest.mark.parametrize(
    ("template", "reasoning", "tools"),
    [
        ("{{ messages[0].content }}", None, None),
        ("{% if enable_thinking %}<think></think>{% endif %}<tool_call>{'arguments'}", "qwen3", "qwen"),
        ("<tool_call><function=x><parameter=y> arguments", None, "qwen3_coder"),
        ("<think></think><｜Assistant｜>{{ thinking }}<｜tool▁calls▁begin｜>", "deepseek-v3", "deepseekv3"),
        ("<think></think><｜Assistant｜>", "deepseek-r1", None),
        ("<|observation|></think><tool_call><arg_key> arguments", "glm45", "glm"),
        ("</think><|tool_calls_section_begin|>", "kimi_k2", "kimi_k2"),
        ("<|channel|><|message|><think></think>", "gpt-oss", "gpt-oss"),
        ("[THINK][/THINK][TOOL_CALLS]", "mistral", "mistral"),
        ("<|start_header_id|> parameters <|python_tag|>", None, "llama3"),
        ("</think> and nothing else", "qwen3-thinking", None),
        ("<minimax:tool_call></think>", "qwen3-thinking", "minimax-m2"),
        ("<｜tool_calls_begin｜><steptml:invoke", None, "step3"),
        ("<|channel>thought<channel|><|tool_call><tool_call|>", "gemma4", "gemma4"),
    ],
)
def test_auto_reads_the_template(template: str, reasoning: str | None, tools: str | None) -> None:
    assert detect.reasoning_parser("auto", template) == reasoning
    assert detect.tool_call_parser("auto", template) == tools


def test_the_flags_take_the_tables_names() -> None:
    assert set(REASONING_PARSERS) == {"auto", *REASONING.names()}
    assert set(TOOL_CALL_PARSERS) == {"auto", *TOOL_CALLS.names()}


def test_every_name_is_in_the_users_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "tools.md").read_text("utf-8")
    thinking, calls = page.split("## `--tool-call-parser`")
    assert [name for name in REASONING.names() if f"`{name}`" not in thinking] == []
    assert [name for name in TOOL_CALLS.names() if f"`{name}`" not in calls] == []


def test_a_name_is_taken_at_its_word() -> None:
    assert detect.reasoning_parser("qwen3", "") == "qwen3" and detect.tool_call_parser(None, "<tool_call>") is None
    with pytest.raises(ConfigError, match="unknown reasoning parser"):
        REASONING.load("nope")


# ---- what tools demand


STRICT = Tool("add", parameters={"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"],
                                 "$defs": {"n": {"type": "integer"}}}, strict=True)  # fmt: skip
LOOSE = Tool("ping")


def test_a_free_answer_demands_nothing() -> None:
    qwen = TOOL_CALLS.load("qwen")
    assert constraint_of([STRICT], "none", form=qwen) is None
    assert constraint_of([], "auto", form=qwen) is None
    assert constraint_of([LOOSE], "auto", form=qwen) is None
    assert constraint_of([STRICT], "auto", form=TOOL_CALLS.load("glm45")) is None


def test_strict_tools_are_framed_in_the_models_format() -> None:
    found = constraint_of([STRICT, LOOSE], "auto", form=TOOL_CALLS.load("qwen"))
    assert found is not None and found.kind == "structural_tag"
    strict, loose = found.value["structures"]
    assert strict == {
        "begin": '<tool_call>\n{"name":"add", "arguments":',
        "schema": STRICT.parameters,
        "end": "}\n</tool_call>",
    }
    assert loose["schema"] == {"type": "object"} and found.value["triggers"] == ["<tool_call>"]
    assert found.value["at_least_one"] is False


@pytest.mark.parametrize("name", [n for n in TOOL_CALLS.names() if TOOL_CALLS.load(n).frame is not None])
def test_what_a_frame_makes_a_model_say_is_read_back(name: str) -> None:
    found = constraint_of(TOOLS.tools, "get_weather", form=TOOL_CALLS.load(name))
    assert found is not None and found.value["at_least_one"] is True
    [structure] = found.value["structures"]
    assert structure["begin"].startswith(found.value["triggers"][0])
    answer = run(parser(None, name), structure["begin"] + json.dumps(PARIS) + structure["end"], 5)
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [WEATHER]


@pytest.mark.parametrize("parallel", [True, False])
def test_required_calls_as_a_schema(parallel: bool) -> None:
    found = constraint_of([STRICT, LOOSE], "required", parallel)
    assert found is not None and found.kind == "json_schema"
    Draft202012Validator.check_schema(found.value)
    validator = Draft202012Validator(found.value)
    call, other = {"name": "add", "parameters": {"a": 1}}, {"name": "ping", "parameters": {}}
    assert validator.is_valid([call]) and validator.is_valid([call, other]) is parallel
    for wrong in ([], [{"name": "add", "parameters": {"a": "x"}}], [{"name": "nope", "parameters": {}}], call):
        assert not validator.is_valid(wrong)
    named = constraint_of([STRICT, LOOSE], "ping", parallel)
    assert named is not None and not Draft202012Validator(named.value).is_valid([call])


# ---- values


@pytest.mark.parametrize(
    ("text", "kinds", "shown"),
    [
        ("3", {"integer"}, "3"),
        (" 3 ", {"number"}, "3"),
        ("3.0", {"integer"}, "3.0"),
        ("3.5", {"integer"}, '"3.5"'),
        ("3", {"string"}, '"3"'),
        ("true", {"boolean"}, "true"),
        ("False", {"boolean", "string"}, "false"),
        ("None", KINDS, "null"),
        ('{"a": [1]}', {"object"}, '{"a": [1]}'),
        ("{'a'", {"object"}, "\"{'a'\""),
        ("NaN", KINDS, '"NaN"'),
        ("[" * 100_000, KINDS, '"' + "[" * 100_000 + '"'),
        ("né \"x\"", KINDS, '"né \\"x\\""'),
    ],
)  # fmt: skip
def test_values_become_json(text: str, kinds: set[str], shown: str) -> None:
    assert json_text(text, kinds) == shown


def test_kinds_follow_the_schema() -> None:
    def kinds(schema: object) -> frozenset[str]:
        return Toolbox([Tool("f", parameters={"properties": {"p": schema}})]).kinds("f", "p")

    assert kinds({"type": "string"}) == {"string"}
    assert kinds({"type": ["integer", "null"]}) == {"integer", "null"}
    assert kinds({"oneOf": [{"const": 1}, {"enum": ["a", None]}]}) == {"integer", "string", "null"}
    for unclear in ({}, True, {"$ref": "#/nowhere"}, {"$ref": "#/properties/p"}, {"type": "banana"}):
        assert kinds(unclear) == KINDS
