"""Thinking and tool calls through the clients of Anthropic, Responses and Ollama, whole and streamed."""

import json

import anthropic
import ollama
import openai
import pytest

from tests.wire.fake_manager import Script
from tests.wire.serving import live_server

CALL = '{"name": "weather", "arguments": {"city": "Brno"}}'
SAID = f"<think>\nhm hm\n</think>\n\nLet me see.\n<tool_call>\n{CALL}\n</tool_call>"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "the weather", "input_schema": SCHEMA}
FUNCTION = {"name": "weather", "description": "the weather", "parameters": SCHEMA}
ASKED = [{"role": "user", "content": "rain?"}]


@pytest.fixture(scope="module")
def live():
    with live_server(reasoning_parser="qwen3", tool_call_parser="qwen25", enable_response_store=True) as server:
        pieces = [SAID[start : start + 7] for start in range(0, len(SAID), 7)]
        server.manager.script = lambda request: Script(pieces, pause_s=0.001)
        yield server


def test_anthropic(live):
    asked = {"model": "m", "max_tokens": 500, "messages": ASKED, "tools": [TOOL, {"type": "web_search_20250305"}]}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with anthropic.Anthropic(base_url=live.base, api_key="x", max_retries=0) as client:
        whole = client.messages.create(**asked, thinking=thinking)
        with client.messages.stream(**asked, thinking=thinking) as stream:
            events = list(stream)
            streamed = stream.get_final_message()
    for message in (whole, streamed):
        thought, text, call = message.content
        assert (thought.type, thought.thinking.strip()) == ("thinking", "hm hm")
        assert (text.type, text.text.strip()) == ("text", "Let me see.")
        assert (call.type, call.name, call.input) == ("tool_use", "weather", {"city": "Brno"})
        assert message.stop_reason == "tool_use" and call.id
    assert sum(event.type == "content_block_start" for event in events) == 3
    request = live.manager.requests[-1]
    assert request.sampling_params["skip_special_tokens"] is False and "thinking=True" in request.text


def test_responses(live):
    asked = {"model": "m", "input": "rain?", "tools": [{"type": "function", **FUNCTION, "strict": False}]}
    with openai.OpenAI(base_url=f"{live.base}/v1", api_key="x", max_retries=0) as client:
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            events = list(stream)
            streamed = stream.get_final_response()
        for answer in (whole, streamed):
            thought, message, call = answer.output
            assert thought.type == "reasoning" and thought.content[0].text.strip() == "hm hm"
            assert message.type == "message" and message.content[0].text.strip() == "Let me see."
            assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"city": "Brno"})
            assert answer.usage.output_tokens_details.reasoning_tokens > len("hm hm")
            assert answer.status == "completed"
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
        live.manager.requests.clear()
        client.responses.create(model="m", input=[result], previous_response_id=whole.id)
        assert live.manager.requests[-1].text.endswith("Let me see.<tool>sun<assistant>")
    kinds = [event.type for event in events]
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 3
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == streamed.output[2].arguments


def test_ollama(live):
    client = ollama.Client(host=live.base)
    asked = {"model": "m", "messages": ASKED, "tools": [{"type": "function", "function": FUNCTION}], "think": True}
    whole = client.chat(**asked).message
    parts = [part.message for part in client.chat(**asked, stream=True)]
    assert whole.thinking.strip() == "".join(part.thinking or "" for part in parts).strip() == "hm hm"
    assert whole.content.strip() == "".join(part.content or "" for part in parts).strip() == "Let me see."
    [call] = whole.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Brno"})
    assert [call for part in parts for call in part.tool_calls or ()] == [call]


def test_tokenize_shows_what_the_model_is_told(live):
    body = {"messages": ASKED, "tools": [{"type": "function", "function": FUNCTION}]}
    told = live.http.post("/tokenize", json=body)
    assert told.status_code == 200 and told.json()["count"] == len("<user>rain?<assistant>")
