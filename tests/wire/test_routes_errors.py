"""Bad requests: the status, the dialect and the field, on every route; and the server is well afterwards."""

import pytest

from tests.wire.fake_manager import Script
from tests.wire.serving import live_server

USER = [{"role": "user", "content": "hi"}]
GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def server():
    with live_server() as live:
        yield live


@pytest.fixture
def live(server):
    yield server
    assert server.http.get("/health").status_code == 200
    assert server.generate(text="plain").json()["text"] == "Hello wörld"
    assert not server.manager.live


CASES = [
    (GENERATE, {}, "text"),
    (GENERATE, {"text": "a", "return_logprob": True, "top_logprobs_num": 129}, "top_logprobs_num"),
    (GENERATE, {"text": "a", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
    (GENERATE, {"text": "a", "return_logprob": True, "token_ids_logprob": [1, [2]]}, "token_ids_logprob"),
    (GENERATE, {"text": "a", "return_logprob": True, "token_ids_logprob": [5] * 1025}, "token_ids_logprob"),
    (GENERATE, {"text": ["a", "b"], "return_logprob": [True]}, "return_logprob"),
    (GENERATE, {"text": "a", "return_logprob": [True], "sampling_params": {"n": 2}}, "return_logprob"),
    (GENERATE, {"text": "a", "input_embeds": [[0.5]]}, "input_embeds"),
    (GENERATE, {"input_embeds": []}, "input_embeds"),
    (GENERATE, {"input_embeds": [[]]}, "input_embeds"),
    (GENERATE, {"input_embeds": [[0.5], [0.5, 0.5]]}, "input_embeds"),
    (GENERATE, {"input_embeds": [["x"]]}, "input_embeds"),
    (GENERATE, {"input_embeds": [[1e39]]}, "input_embeds"),
    (GENERATE, {"text": "a", "lora_path": "x"}, "lora_path"),
    (GENERATE, {"text": "a", "routed_dp_rank": 1}, "routed_dp_rank"),
    (GENERATE, {"text": "a", "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
    (GENERATE, {"text": "a", "sampling_params": {"n": 10**30}}, "n"),
    (GENERATE, {"text": "p" * 2000}, "input_ids"),
    (GENERATE, {"text": ["fine", "p" * 2000]}, "input_ids"),
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", ""]}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", 5]}, "prompt"),
    (COMPLETIONS, {"prompt": [[]]}, "prompt"),
    (COMPLETIONS, {"prompt": "p" * 2000}, "prompt"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": -1}, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "n": 0}, "n"),
    (COMPLETIONS, {"prompt": "a", "logprobs": -1}, "logprobs"),
    (COMPLETIONS, {"prompt": "a", "logprobs": 129}, "logprobs"),
    (COMPLETIONS, {"prompt": "a", "best_of": 1, "n": 2}, "best_of"),
    (COMPLETIONS, {"prompt": "a", "best_of": 5000}, "best_of"),
    (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix"),
    (COMPLETIONS, {"prompt": "a", "response_format": {"type": "json_schema"}}, "response_format"),
    (COMPLETIONS, {"prompt": "a", "response_format": {"type": "xml"}}, "response_format"),
    (COMPLETIONS, {"prompt": "a", "response_format": {"type": "json_object"}, "json_schema": "{}"}, "response_format"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": "explode"}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": "p" * 2000}]}, "messages"),
    (CHAT, {"messages": USER, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"messages": USER, "max_completion_tokens": -1}, "max_completion_tokens"),
    (CHAT, {"messages": USER, "reasoning_effort": "lots"}, "reasoning_effort"),
    (CHAT, {"messages": USER, "reasoning_effort": 2}, "reasoning_effort"),
    (CHAT, {"messages": USER, "chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs"),
    (CHAT, {"messages": USER, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "field"), CASES)
def test_refusals_are_real_statuses_and_name_the_field(live, path, body, field, stream):
    response = live.http.post(path, json=body | {"stream": stream})
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    error = response.json()
    if path == GENERATE:
        assert set(error) == {"error"} and error["error"]["param"] == field
    else:
        assert error["object"] == "error" and error["type"] == "BadRequestError" and error["code"] == 400
        assert error["param"] == field


def test_wrong_types(live):
    assert live.generate(text="a", stream="yes").json() == {"error": "stream: Expected `bool | null`, got `str`"}
    body = live.completions(prompt="a", temperature="0.5").json()
    assert body["type"] == "Bad Request" and body["param"] == "temperature" and body["code"] == 400


@pytest.mark.parametrize("path", [GENERATE, COMPLETIONS, CHAT])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"n": NaN}', b"[" * 200_000, b'{"text": "\xff"}'])
def test_bodies_that_are_no_objects(live, path, content):
    response = live.http.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "error" in response.text


def test_content_types(live):
    form = {"content-type": "application/x-www-form-urlencoded"}
    refused = live.http.post(COMPLETIONS, content=b'{"prompt": "a"}', headers=form)
    assert refused.status_code == 400 and "Unsupported Media Type" in refused.json()["message"]
    charset = {"content-type": "application/json; charset=utf-8"}
    assert live.http.post(COMPLETIONS, content=b'{"prompt": "a"}', headers=charset).status_code == 200
    assert live.http.post(GENERATE, content=b'{"text": "a"}', headers=form).status_code == 200


def test_bodies_that_are_too_large(live, monkeypatch):
    monkeypatch.setattr("radixlm.server.exchange.MAX_BODY_BYTES", 1000)
    text = b'{"text": "' + b"x" * 2000 + b'"}'
    for content in (text, iter([text[:500], text[500:]])):  # with a content-length, and in chunks
        refused = live.http.post(GENERATE, content=content)
        assert refused.status_code == 413
        assert refused.json()["code"] == 413


def test_a_context_that_is_too_short_has_a_stable_reason(live):
    body = live.completions(prompt="p" * 2000).json()
    assert body["reason"] == "context_length_exceeded"
    assert "maximum" in body["message"] or "context length" in body["message"]


def test_ids_in_use_are_refused_and_come_free(live):
    assert live.generate(text=["a", "b"], rid=["x", "x"]).status_code == 400
    assert live.generate(text="a", rid="x").status_code == 200
    assert live.generate(text="a", rid="x").status_code == 200


def test_nulls_are_never_a_500(live):
    names = ["sampling_params", "rid", "stream", "n", "extra_key", "cache_salt", "priority", "return_logprob"]
    assert live.generate(text="a", **dict.fromkeys(names)).status_code == 200
    assert live.generate(text="a", sampling_params={"n": None}).status_code == 200
    nulls = dict.fromkeys(["n", "stream", "stream_options", "temperature", "seed", "stop", "logprobs", "echo"])
    assert live.completions(prompt="a", **nulls).status_code == 200
    assert live.chat("a", **nulls, tools=None, tool_choice=None, chat_template_kwargs=None).status_code == 200


def test_only_an_assistant_message(live):
    for continues in (False, True):
        body = {"messages": [{"role": "assistant", "content": "I am"}], "continue_final_message": continues}
        assert live.http.post(CHAT, json=body).status_code == 200


def test_unknown_routes_and_methods(live):
    assert live.http.get("/nowhere").json() == {
        "object": "error",
        "message": "Not Found",
        "type": "404",
        "param": None,
        "code": 404,
    }
    refused = live.http.get(GENERATE)
    assert refused.status_code == 405 and refused.json()["code"] == 405


def test_a_fault_of_ours_is_a_500_without_details(server, caplog):
    def broken(request):
        raise ZeroDivisionError("secret inside")

    server.manager.script = broken
    try:
        native = server.generate(text="a")
        flat = server.completions(prompt="a").json()
    finally:
        server.manager.script = lambda request: Script()
        server.manager.live.clear()
    assert native.status_code == 500 and "secret" not in native.text
    assert flat["type"] == "InternalServerError" and flat["message"].startswith("Internal server error: ")
    assert "secret inside" in caplog.text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"draining": True}, "shutting down"),
        ({"fatal": "scheduler died"}, "scheduler died"),
        ({"ready": None}, "start"),
    ],
)
def test_a_server_that_does_not_serve_answers_503(change, text):
    with live_server() as live:
        for name, value in change.items():
            setattr(live.manager, name, value)
        for response in (live.generate(text="a", stream=True), live.completions(prompt="a"), live.chat("a")):
            assert response.status_code == 503 and text in response.text
        for path in ("/health", "/ready", "/health_generate"):
            assert live.http.get(path).status_code == 503
