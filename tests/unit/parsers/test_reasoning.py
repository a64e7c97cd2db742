"""Reasoning formats: where thinking begins, where it ends, and that no tag is removed before it is complete."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.parsers.events import Answer
from radixlm.parsers.reasoning.table import REASONING
from tests.unit.parsers.test_tool_calls import cut

INTERRUPTS = ("<tool_call>", "<|tool_calls_section_begin|>")
HARMONY_CALL = "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
HARMONY = (
    "<|channel|>analysis<|message|>First.<|end|><|start|>assistant<|channel|>analysis<|message|>Second.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>" + HARMONY_CALL +
    "<|start|>assistant<|channel|>final<|message|>Done.<|return|>"
)  # fmt: skip

# parser, begins inside thinking, text, reasoning, content
CASES = [
    ("deepseek-r1", True, "Hm, 2 < 3.</think>\n\nYes.", "Hm, 2 < 3.", "\n\nYes."),
    ("deepseek-r1", True, "<think>\nHm</think>Yes", "\nHm", "Yes"),
    ("deepseek-r1", True, "\n<think>Hm", "Hm", ""),
    ("deepseek-r1", False, "No thoughts about </think> today", "", "No thoughts about </think> today"),
    ("deepseek-r1", True, "a <tool_call> b</think>c", "a <tool_call> b", "c"),
    ("deepseek-v3", True, "Hm</think>Yes", "Hm", "Yes"),
    ("qwen3", False, "<think>\nHm\n</think>\n\nYes", "\nHm\n", "\n\nYes"),
    ("qwen3", False, "Yes, <think> is a tag, </think> too.", "", "Yes, <think> is a tag, </think> too."),
    ("qwen3", True, "Hm, I call <tool_call>{}</tool_call>", "Hm, I call ", "<tool_call>{}</tool_call>"),
    ("qwen3", True, "only thoughts </thin", "only thoughts </thin", ""),
    ("qwen3", False, "  <thin", "", "  <thin"),
    ("qwen3", False, "", "", ""),
    ("qwen3-thinking", True, "Hm</think>Yes</think>", "Hm", "Yes</think>"),
    ("glm45", False, "\n<think>Hm</think>\nYes", "Hm", "\nYes"),
    ("kimi", False, "◁think▷Hm◁/think▷Yes", "Hm", "Yes"),
    ("kimi_k2", True, "Hm<|tool_calls_section_begin|>x", "Hm", "<|tool_calls_section_begin|>x"),
    ("mistral", False, "[THINK]Hm[/THINK]Yes [x]", "Hm", "Yes [x]"),
    ("step3", True, "Hm</think>Yes", "Hm", "Yes"),
    ("minimax", True, "Hm</think>Yes", "Hm", "Yes"),
    ("minimax-append-think", True, "Hm</think>Yes", "", "<think>Hm</think>Yes"),
    ("minimax-append-think", True, "<think>Hm</think>Yes", "", "<think>Hm</think>Yes"),
    ("minimax-append-think", False, "Yes", "", "Yes"),
    ("nemotron_3", True, "Hm</think>Yes", "Hm", "Yes"),
    ("granite_thinking_parser", True, "Hm</think>\n\nYes\n", "Hm", "Yes\n"),
    ("interns1", False, "<think>Hm</think>Yes", "Hm", "Yes"),
    ("gemma4", False, "<|channel>thought\nHm<channel|>Yes", "Hm", "Yes"),
    ("gemma4", False, "<|channel>thoughtful", "", "<|channel>thoughtful"),
    ("cohere_command4", True, "Hm<|END_THINKING|><|START_TEXT|>Yes<|END_TEXT|>", "Hm", "Yes"),
    ("gpt-oss", False, HARMONY, "First.\nSecond.", "Wait." + HARMONY_CALL + "\nDone."),
    ("gpt-oss", False, "<|channel|>analysis<|message|>Hm", "Hm", ""),
    ("gpt-oss", False, "<|channel|>analysis<|mess", "", "<|channel|>analysis<|mess"),
    ("gpt-oss", False, "no headers at all", "", "no headers at all"),
]  # fmt: skip


def parse(name: str, inside: bool, pieces: Iterable[str]) -> Answer:
    machine = REASONING.load(name).parser(inside, INTERRUPTS)
    answer = Answer()
    for piece in pieces:
        answer.take(machine.feed(piece))
    answer.take(machine.finish())
    return answer


@pytest.mark.parametrize(("name", "inside", "text", "reasoning", "content"), CASES)
def test_whole_and_one_character_at_a_time(name: str, inside: bool, text: str, reasoning: str, content: str) -> None:
    answer = parse(name, inside, [text])
    assert (answer.reasoning, answer.content) == (reasoning, content)
    assert parse(name, inside, text) == answer


@given(st.sampled_from(CASES), st.lists(st.integers(0, 1000), max_size=8))
@settings(max_examples=200, deadline=None)
def test_random_cuts(case: tuple[str, bool, str, str, str], places: list[int]) -> None:
    name, inside, text, reasoning, content = case
    answer = parse(name, inside, cut(text, places))
    assert (answer.reasoning, answer.content) == (reasoning, content)


@pytest.mark.parametrize(("name", "inside", "text", "reasoning", "content"), CASES)
def test_truncated_anywhere(name: str, inside: bool, text: str, reasoning: str, content: str) -> None:
    for size in range(len(text)):
        answer = parse(name, inside, [text[:size]])
        assert parse(name, inside, text[:size]) == answer
        for word in ("Hm", "Yes", "First", "Second", "Done", "only"):
            if word in text[:size]:
                assert word in answer.reasoning + answer.content


@pytest.mark.parametrize(
    ("name", "prompt", "continued", "inside"),
    [
        ("deepseek-r1", "<｜User｜>hi<｜Assistant｜><think>\n", "", True),
        ("deepseek-r1", "<｜User｜>hi<｜Assistant｜>", "", False),
        ("qwen3", "<|im_start|>assistant\n", "", False),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "", False),
        ("qwen3", "user: what is <think>?\nassistant: ", "", False),
        ("qwen3", "assistant\n<think>\nSo I was", "<think>\nSo I was", True),
        ("qwen3", "assistant\n<think>\n<think>a</think>b", "<think>a</think>b", False),
        ("qwen3", "assistant\n<think>\nOnce upon", "Once upon", True),
        ("qwen3", "assistant\nOnce <think> upon", "Once <think> upon", False),
        ("gemma4", "model\n<|channel>thought\n", "", True),
        ("mistral", "[INST]a[/INST][THINK]", "", True),
        ("minimax-append-think", "ai\n<think>\n", "", True),
        ("gpt-oss", "<|start|>assistant", "", False),
    ],
)
def test_the_prompt_says_where_an_answer_begins(name: str, prompt: str, continued: str, inside: bool) -> None:
    assert REASONING.load(name).inside(prompt, continued) is inside


@pytest.mark.parametrize(
    ("name", "inside", "text", "marked"),
    [
        ("qwen3", True, "Hm</think>Yes", ["Hm</think>"]),
        ("qwen3", False, "\n<think>Hm</think>Yes", ["\n<think>Hm</think>"]),
        ("qwen3", True, "Hm<tool_call>", ["Hm"]),
        ("qwen3", False, "Yes", []),
        ("qwen3", True, "Hm", ["Hm"]),
        ("gpt-oss", False, HARMONY, ["<|channel|>analysis<|message|>First.<|end|>",
                                     "<|start|>assistant<|channel|>analysis<|message|>Second.<|end|>"]),
    ],
)  # fmt: skip
def test_spans_of_thinking(name: str, inside: bool, text: str, marked: list[str]) -> None:
    for pieces in ([text], list(text)):
        machine = REASONING.load(name).parser(inside, INTERRUPTS)
        for piece in pieces:
            machine.feed(piece)
        machine.finish()
        assert [text[start:end] for start, end in machine.spans] == marked


@pytest.mark.parametrize("name", REASONING.names())
def test_every_name_can_be_used(name: str) -> None:
    form = REASONING.load(name)
    assert parse(name, form.inside_without_prompt, "x") == parse(name, form.inside_without_prompt, ["x"])
