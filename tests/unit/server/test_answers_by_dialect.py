"""Thinking, text and tool calls in the shapes of each dialect: a stream builds what the whole answer says."""

import json
import re

import anthropic
import pytest

from radixlm.frontend.choice import Choice, Update
from radixlm.parsers.events import Answer, Content, Reasoning, ToolArguments, ToolOpen
from radixlm.protocol.messages import Finished, FinishReason
from radixlm.server.anthropic.view import MessageView
from radixlm.server.generation import Transcript
from radixlm.server.ollama.view import LineView, said_in_chat
from radixlm.server.openai.responses.body import ResponsesBody
from radixlm.server.openai.responses.reply import Reply
from radixlm.server.openai.responses.view import ResponseView
from tests.wire.fake_manager import FakeManager
from tests.wire.serving import make_services

SERVICES = make_services(FakeManager())


EVENTS = {
    "r": Reasoning("hm "),
    "c": Content("So "),
    "f": ToolOpen(0, "f", "call_1"),
    "g": ToolOpen(1, "g"),
    "1": ToolArguments(0, '{"a": '),
    "2": ToolArguments(0, "1}"),
    "3": ToolArguments(1, '{"b'),
}


class Scripted:
    """In place of parsers and the parser they begin: each character of the text stands for one event."""

    def feed(self, text):
        return [EVENTS[one] for one in text]

    def finish(self):
        return []

    def begin(self):
        return self

    def counter(self):
        return None


def play(make_view, text, reason):
    """The stream's messages and the whole answer of a choice that said `text`."""
    choice = Choice("r", 1, [5, 6, 7], True, 100.0, lambda key: None)
    transcript = Transcript(0, choice)
    view, streamed = make_view(), []
    for index, one in enumerate([*text, ""]):
        finished = Finished(1, reason, 3, len(text), 0, 0) if index == len(text) else None
        choice.finished = finished
        update = Update(one, [9], finished)
        transcript.take(update)
        streamed += view.events(transcript, update)
    streamed += view.closing([transcript])
    return streamed, make_view().whole([transcript])


STOP, LENGTH = FinishReason("stop", matched=2), FinishReason("length", length=9)
TEXTS = ["", "ccc", "rrc", "rf12", "cf12g3", "f12c", "rcr"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("reason", [STOP, LENGTH], ids=["stop", "length"])
def test_anthropic(text, reason):
    events, whole = play(lambda: MessageView(SERVICES, "m", Scripted()), text, reason)
    message = anthropic.types.Message.model_validate(whole)
    shown = re.sub(r"(r|c)\1+", r"\1", re.sub("[123]", "", text)) or "c"
    kinds = {"r": "thinking", "c": "text", "f": "tool_use", "g": "tool_use"}
    assert [block.type for block in message.content] == [kinds[one] for one in shown]
    expected = "max_tokens" if reason is LENGTH else "tool_use" if "f" in text else "end_turn"
    assert message.stop_reason == expected
    assert _rebuilt(events) == [
        {key: value for key, value in block.items() if key != "id"} for block in whole["content"]
    ]
    assert events[0]["type"] == "message_start" and events[0]["message"]["content"] == []
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert events[-2]["delta"]["stop_reason"] == expected


def _rebuilt(events):
    """The blocks that a client makes of the events, without ids."""
    blocks, texts = [], []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
            texts.append("")
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            texts[-1] += next(value for key, value in event["delta"].items() if key != "type")
    opened = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert opened == list(range(len(blocks)))
    for block, text in zip(blocks, texts, strict=True):
        if block["type"] == "tool_use":
            del block["id"]
            block["input"] = json.loads(text) if text.endswith("}") else {}
        else:
            block[{"text": "text", "thinking": "thinking"}[block["type"]]] = text
    return blocks


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("reason", [STOP, LENGTH], ids=["stop", "length"])
def test_responses(text, reason):
    ended = []

    def make():
        body = ResponsesBody(input="x")
        return ResponseView(Reply(SERVICES, body, "resp_1", False), Scripted(), ended.append)

    events, whole = play(make, text, reason)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = events[-1]
    assert final["type"] == ("response.completed" if reason is STOP else "response.incomplete")
    plain = json.dumps([_without_ids(item) for item in whole["output"]])
    assert json.dumps([_without_ids(item) for item in final["response"]["output"]]) == plain
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == final["response"]["output"]
    for item in done:
        deltas = [e["delta"] for e in events if e.get("item_id") == item["id"] and e["type"].endswith(".delta")]
        assert "".join(deltas) == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
    assert done and len(ended) == 2


def _without_ids(item):
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


@pytest.mark.parametrize("text", TEXTS)
def test_ollama(text):
    lines, whole = play(lambda: LineView("m", said_in_chat, Scripted()), text, STOP)
    joined = {key: "".join(line["message"].get(key, "") for line in lines) for key in ("content", "thinking")}
    assert joined == {key: whole["message"].get(key, "") for key in ("content", "thinking")}
    calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
    assert calls == whole["message"].get("tool_calls", [])
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    said = Answer()
    said.take(Scripted().feed(text))
    assert [call["function"]["name"] for call in calls] == [call.name for call in said.calls]
