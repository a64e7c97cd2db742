"""/v1/responses through the official openai client."""

import openai
import pytest

from radixlm.protocol.messages import FinishReason
from radixlm.server import limits
from tests.wire.fake_manager import Script
from tests.wire.serving import eventually, live_server

TEXT = "Hello wörld"


@pytest.fixture(scope="module")
def server():
    with live_server(enable_response_store=True, enable_cache_report=True) as live:
        yield live


@pytest.fixture
def live(server):
    server.manager.script = lambda request: Script(cached_tokens=3)
    return server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="x", max_retries=0) as client:
        yield client


def test_a_response(client, live):
    answer = client.responses.create(model="m", input="hi", instructions="Be brief.", max_output_tokens=9, top_p=0.5)
    assert (answer.output_text, answer.status, answer.model) == (TEXT, "completed", "m")
    assert answer.usage is not None
    assert (answer.usage.output_tokens, answer.usage.input_tokens_details.cached_tokens) == (12, 3)
    request = live.manager.requests[-1]
    assert request.text == "<system>Be brief.<user>hi<assistant>" and request.rid == answer.id
    assert request.sampling_params == {"max_new_tokens": 9, "top_p": 0.5, "temperature": 0.7}


def test_without_any_optional_field(live):
    answer = live.http.post("/v1/responses", json={"model": "m", "input": "hi"})
    assert answer.status_code == 200 and answer.json()["output"][0]["content"][0]["text"] == TEXT
    assert live.manager.requests[-1].sampling_params["max_new_tokens"] is None


def test_a_stream_builds_the_same_response(client, live):
    with client.responses.stream(model="m", input="hi") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == TEXT
    assert final.output_text == TEXT and final.usage is not None and final.usage.output_tokens == 12
    raw = live.http.post("/v1/responses", json={"input": "hi", "stream": True}).text
    assert raw.startswith("event: response.created\ndata: {") and "[DONE]" not in raw


def test_ends(client, live):
    live.manager.script = lambda request: Script(["a"], FinishReason("length", length=1))
    answer = client.responses.create(model="m", input="hi")
    assert answer.status == "incomplete" and answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens" and answer.output_text == "a"
    live.manager.script = lambda request: Script(
        ["a"], FinishReason("abort", message="It broke.", status_code=500), 0.01
    )
    events = list(client.responses.create(model="m", input="hi", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None and events[-1].response.error.message == "It broke."


def test_retrieve_and_continue(client, live):
    first = client.responses.create(model="m", input="hi", instructions="Be brief.")
    assert client.responses.retrieve(first.id).output_text == TEXT
    second = client.responses.create(
        model="m", input=[{"role": "user", "content": "more"}], previous_response_id=first.id
    )
    assert live.manager.requests[-1].text == f"<user>hi<assistant>{TEXT}<user>more<assistant>"
    assert client.responses.retrieve(second.id).previous_response_id == first.id
    unstored = client.responses.create(model="m", input="hi", store=False)
    for lost in (unstored.id, "resp_unknown"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(lost)
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="m", input="hi", previous_response_id=lost)


def test_in_the_background(client, live):
    live.manager.script = lambda request: Script(pause_s=0.02)
    started = client.responses.create(model="m", input="hi", background=True)
    assert started.status == "queued" and started.output == []
    with pytest.raises(openai.BadRequestError, match="only a completed one"):
        client.responses.create(model="m", input="hi", previous_response_id=started.id)
    eventually(lambda: client.responses.retrieve(started.id).status == "completed")
    assert client.responses.retrieve(started.id).output_text == TEXT
    assert client.responses.cancel(started.id).status == "completed"
    with pytest.raises(openai.BadRequestError, match="context length"):
        client.responses.create(model="m", input="p" * 2000, background=True)


def test_cancel(client, live):
    live.manager.script = lambda request: Script(["x"], endless=True, pause_s=0.005)
    started = client.responses.create(model="m", input="hi", background=True)
    assert client.responses.cancel(started.id).status == "cancelled"
    assert not live.manager.live and client.responses.retrieve(started.id).status == "cancelled"
    live.manager.script = lambda request: Script()
    plain = client.responses.create(model="m", input="hi")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(plain.id)


def test_a_deadline_ends_work_in_the_background(client, live):
    live.manager.script = lambda request: Script(["x"], endless=True, pause_s=0.005)
    headers = {"x-request-timeout": "0.05"}
    started = client.responses.create(model="m", input="hi", background=True, extra_headers=headers)
    eventually(lambda: client.responses.retrieve(started.id).status == "failed")
    eventually(lambda: not live.manager.live)


def test_the_store_forgets_the_oldest(monkeypatch):
    monkeypatch.setattr("radixlm.server.openai.responses.store.MAX_STORED_RESPONSES", 2)
    with live_server(enable_response_store=True) as live:
        for name in ("a", "b", "c"):
            live.http.post("/v1/responses", json={"input": "hi", "request_id": name})
        found = [live.http.get(f"/v1/responses/{name}").status_code for name in ("a", "b", "c")]
    assert found == [404, 200, 200] and limits.MAX_STORED_RESPONSES == 1024


def test_without_a_store(live):
    with live_server() as plain:
        for body in ({"background": True}, {"previous_response_id": "x"}):
            refused = plain.http.post("/v1/responses", json={"input": "hi"} | body)
            assert refused.status_code == 400 and "--enable-response-store" in refused.json()["error"]["message"]
        kept = plain.http.post("/v1/responses", json={"input": "hi", "store": True}).json()
        assert kept["store"] is False
        assert plain.http.get(f"/v1/responses/{kept['id']}").status_code == 400
        assert plain.http.post(f"/v1/responses/{kept['id']}/cancel").status_code == 400


def test_items(live):
    items = [
        {"role": "developer", "content": "Obey."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
    ]
    assert live.http.post("/v1/responses", json={"input": items, "reasoning": {"effort": "none"}}).status_code == 200
    kwargs = "enable_thinking=False;reasoning_effort=none;thinking=False;"
    assert live.manager.requests[-1].text == kwargs + "<system>Obey.<user>hi<assistant><tool>42<assistant>"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"input": "p" * 2000, "stream": True}, "input"),
        ({"input": []}, "messages"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "file_search_call"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": "a", "tools": [{"type": "function"}]}, "tools[0].function.name"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": "a", "tool_choice": "required"}, "tool_choice"),
        ({"input": "a", "include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "a", "background": True, "stream": True}, "background"),
        ({"input": "a", "text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"input": "a", "n": 2}, "n"),
    ],
)
def test_refusals_name_the_field(live, body, param):
    refused = live.http.post("/v1/responses", json=body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param
