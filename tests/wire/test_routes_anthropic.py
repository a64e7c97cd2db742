"""/v1/messages through the official anthropic client, and its body's translation."""

import anthropic
import httpx
import pytest

from radixlm.protocol.messages import FinishReason
from tests.wire.fake_manager import Script
from tests.wire.serving import live_server

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server():
    with live_server(api_key="sesame", enable_cache_report=True) as live:
        yield live


@pytest.fixture
def live(server):
    server.manager.script = lambda request: Script(cached_tokens=3)
    return server


@pytest.fixture(scope="module")
def client(server):
    with anthropic.Anthropic(base_url=server.base, api_key="sesame", max_retries=0) as client:
        yield client


def test_a_message(client, live):
    message = client.messages.create(
        model="m",
        max_tokens=20,
        system=[{"type": "text", "text": "Be brief."}],
        messages=[*HELLO, {"role": "assistant", "content": "Well"}],
        stop_sequences=["END"],
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 7},
    )
    assert [block.text for block in message.content] == ["Hello wörld"]
    assert (message.role, message.model, message.stop_reason, message.stop_sequence) == (
        "assistant",
        "m",
        "end_turn",
        None,
    )
    prompt = "<system>Be brief.<user>hi<assistant>Well"
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (len(prompt) - 3, 3)
    assert message.usage.output_tokens == 12
    request = live.manager.requests[-1]
    assert request.text == prompt and not request.add_special_tokens and request.apply_generation_defaults
    assert request.sampling_params == {
        "max_new_tokens": 20,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "stop": ["END"],
    }


def test_a_stream_builds_the_same_message(client, live):
    with client.messages.stream(model="m", max_tokens=20, messages=HELLO) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert message.content[0].text == "Hello wörld" and message.stop_reason == "end_turn"
    assert message.usage.output_tokens == 12
    own = [kind for kind in kinds if kind != "text"]
    assert own[:2] == ["message_start", "content_block_start"]
    assert own[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert kinds.count("text") == own.count("content_block_delta") >= 1


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (FinishReason("stop", matched="END"), ("stop_sequence", "END")),
        (FinishReason("length", length=5), ("max_tokens", None)),
        (FinishReason("abort", message="Aborted"), ("end_turn", None)),
    ],
)
def test_stop_reasons(client, live, reason, expected):
    live.manager.script = lambda request: Script([], reason)
    message = client.messages.create(model="m", max_tokens=5, messages=HELLO)
    assert (message.stop_reason, message.stop_sequence) == expected
    assert message.content[0].text == ""
    with client.messages.stream(model="m", max_tokens=5, messages=HELLO) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.content[0].text) == (expected[0], "")


def test_errors_reach_the_client_as_its_own_types(client, live):
    with pytest.raises(anthropic.BadRequestError) as error:
        client.messages.create(model="m", max_tokens=0, messages=HELLO)
    assert error.value.body["error"] == {"type": "invalid_request_error", "message": "max_tokens must be at least 1"}
    with (
        pytest.raises(anthropic.BadRequestError, match="context length"),
        client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "p" * 2000}]),
    ):
        pass
    with pytest.raises(anthropic.AuthenticationError) as denied:
        anthropic.Anthropic(base_url=live.base, api_key="wrong", max_retries=0).messages.create(
            model="m", max_tokens=9, messages=HELLO
        )
    assert denied.value.body["error"]["type"] == "authentication_error"
    live.manager.fatal = "it broke"
    try:
        with pytest.raises(anthropic.InternalServerError) as down:
            client.messages.create(model="m", max_tokens=9, messages=HELLO)
        assert down.value.status_code == 503 and down.value.body["error"]["type"] == "overloaded_error"
    finally:
        live.manager.fatal = None


def test_an_error_inside_a_stream_is_an_event(client, live):
    reason = FinishReason("abort", message="The logits are not finite.", status_code=500)
    live.manager.script = lambda request: Script(["a"], reason, pause_s=0.01)
    with (
        pytest.raises(anthropic.APIStatusError, match="not finite"),
        client.messages.stream(model="m", max_tokens=9, messages=HELLO) as stream,
    ):
        stream.until_done()


def test_count_tokens(client):
    assert client.messages.count_tokens(model="m", messages=HELLO).input_tokens == len("<user>hi<assistant>")


def test_earlier_thoughts_calls_and_results_are_rendered(live):
    content = [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}]},
        {"type": "text", "text": "so?"},
    ]
    body = {
        "model": "m",
        "max_tokens": 5,
        "messages": [*HELLO, {"role": "assistant", "content": content}, {"role": "user", "content": results}],
        "thinking": {"type": "disabled"},
    }
    answer = httpx.post(f"{live.base}/v1/messages", json=body, headers={"x-api-key": "sesame"})
    assert answer.status_code == 200
    kwargs = "enable_thinking=False;thinking=False;"
    assert live.manager.requests[-1].text == kwargs + "<user>hi<assistant><tool>42<user>so?<assistant>"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": ""}]}]}, "redacted"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "web_search_20250305"}], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "'f' not found"),
        ({"tool_choice": {"type": "perhaps"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5000}}, "--reasoning-parser"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "budget_tokens"),
        ({"thinking": {"type": "maybe"}}, "thinking"),
        ({"output_config": {"effort": "huge"}}, "effort"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"max_tokens": None}, "max_tokens"),
    ],
)
def test_refusals_name_the_field(live, change, field):
    body = {"model": "m", "max_tokens": 5, "messages": HELLO} | change
    refused = httpx.post(f"{live.base}/v1/messages", json=body, headers={"x-api-key": "sesame"})
    assert refused.status_code == 400 and refused.json()["type"] == "error"
    assert field in refused.json()["error"]["message"]
