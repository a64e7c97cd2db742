"""Ollama's routes through its own client, and by bytes where the client hides them."""

import json

import httpx
import ollama
import pytest

from radixlm.protocol.messages import FinishReason
from tests.wire.fake_manager import Script
from tests.wire.serving import live_server

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server():
    with live_server() as live:
        yield live


@pytest.fixture
def live(server):
    server.manager.script = lambda request: Script()
    return server


@pytest.fixture(scope="module")
def client(server):
    return ollama.Client(host=server.base)


def test_chat(client, live):
    options = {
        "temperature": 0.5,
        "top_k": 0,
        "num_predict": 9,
        "seed": 3,
        "repeat_penalty": 1.1,
        "stop": ["x"],
        "num_ctx": 1,
    }
    answer = client.chat(model="m", messages=HELLO, options=options, think=False)
    assert (answer.message.role, answer.message.content) == ("assistant", "Hello wörld")
    assert (answer.model, answer.done, answer.done_reason) == ("m", True, "stop")
    assert answer.eval_count == 12 and answer.total_duration >= answer.eval_duration >= 0
    request = live.manager.requests[-1]
    assert request.text == "enable_thinking=False;thinking=False;<user>hi<assistant>"
    assert request.sampling_params == {
        "max_new_tokens": 9,
        "temperature": 0.5,
        "top_k": -1,
        "repetition_penalty": 1.1,
        "stop": ["x"],
        "sampling_seed": 3,
    }


def test_streams_lose_nothing(client, live):
    parts = list(client.chat(model="m", messages=HELLO, stream=True))
    assert "".join(part.message.content for part in parts) == "Hello wörld"
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert live.manager.requests[-1].sampling_params["max_new_tokens"] == 2048
    parts = list(client.generate(model="m", prompt="hi", system="Be brief.", stream=True, options={"num_predict": -1}))
    assert "".join(part.response for part in parts) == "Hello wörld" and parts[-1].eval_count == 12
    assert live.manager.requests[-1].text == "Be brief.\n\nhi"
    assert live.manager.requests[-1].sampling_params["max_new_tokens"] is None


def test_streams_are_lines_of_json_and_the_default(live):
    answer = live.http.post("/api/generate", json={"prompt": "a"})
    assert answer.headers["content-type"] == "application/x-ndjson" and answer.text.endswith("\n")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert len(lines) > 1 and lines[-1]["done"] and "error" not in lines[-1]


def test_done_reasons(client, live):
    live.manager.script = lambda request: Script(["a"], FinishReason("length", length=1))
    assert client.generate(model="m", prompt="a").done_reason == "length"
    before = len(live.manager.requests)
    assert client.generate(model="m").done_reason == client.chat(model="m").done_reason == "load"
    assert len(live.manager.requests) == before


def test_errors(client, live):
    with pytest.raises(ollama.ResponseError, match="context length") as error:
        list(client.generate(model="m", prompt="p" * 2000, stream=True))
    assert error.value.status_code == 400
    live.manager.script = lambda request: Script(
        ["a"], FinishReason("abort", message="It broke.", status_code=500), 0.01
    )
    with pytest.raises(ollama.ResponseError, match=r"It broke\."):
        list(client.generate(model="m", prompt="a", stream=True))


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "images"),
        ("/api/chat", {"messages": HELLO, "tools": [{"type": "function"}]}, "tools[0].function"),
        ("/api/chat", {"messages": HELLO, "format": "xml"}, "format"),
        ("/api/chat", {"messages": HELLO, "think": "huge"}, "reasoning_effort"),
        ("/api/chat", {}, "messages"),
        ("/api/generate", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/api/generate", {"prompt": "a", "options": {"num_predict": -1}, "template": "x"}, "template"),
        ("/api/generate", {"prompt": 1}, "prompt"),
    ],
)
def test_refusals_name_the_field(live, path, body, field):
    refused = live.http.post(path, json=body)
    assert refused.status_code == 400 and field in refused.json()["error"]


def test_models(client, live):
    [model] = client.list().models
    assert model.model == "fake-model" and model.details.family == "llama"
    shown = client.show("fake-model")
    assert shown.modelinfo["llama.context_length"] == 1000 and shown.capabilities == ["completion"]
    with live_server(strict_model_name=True) as strict, pytest.raises(ollama.ResponseError, match="fake-model"):
        ollama.Client(host=strict.base).show("nobody")


def test_a_client_that_leaves_ends_its_request(live):
    live.manager.script = lambda request: Script(["x"], endless=True, pause_s=0.005)
    with httpx.stream("POST", f"{live.base}/api/generate", json={"prompt": "a"}) as answer:
        next(answer.iter_lines())
    from tests.wire.serving import eventually

    eventually(lambda: not live.manager.live, within_s=2)
