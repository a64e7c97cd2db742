"""/v1/chat/completions over a real socket."""

import pytest

from radixlm.protocol.messages import FinishReason
from tests.wire.fake_manager import Script
from tests.wire.serving import live_server
from tests.wire.test_routes_generate import events


@pytest.fixture(scope="module")
def server():
    with live_server(enable_cache_report=True) as live:
        yield live


@pytest.fixture
def live(server):
    server.manager.script = lambda request: Script()
    server.manager.requests.clear()
    return server


def test_whole_answer(live):
    body = live.chat("hi", rid="mine").json()
    assert body.pop("created") > 0
    assert body == {
        "id": "mine",
        "object": "chat.completion",
        "model": "fake-model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello wörld", "reasoning_content": None},
                "logprobs": None,
                "finish_reason": "stop",
                "matched_stop": 2,
            }
        ],
        "usage": {
            "prompt_tokens": 19,
            "total_tokens": 31,
            "completion_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 0},
            "reasoning_tokens": 0,
        },
        "metadata": {
            "weight_version": "default",
            "weight_versions": [{"version": "default", "start": 0, "end": 12}],
        },
    }


def test_the_prompt_is_rendered_and_brings_its_own_special_tokens(live):
    live.chat("hi", chat_template_kwargs={"tone": "warm"}, reasoning_effort="none")
    [request] = live.manager.requests
    assert request.text == "enable_thinking=False;reasoning_effort=none;thinking=False;tone=warm;<user>hi<assistant>"
    assert not request.add_special_tokens
    assert request.apply_generation_defaults


def test_openai_sampling_defaults():
    with live_server(sampling_defaults="openai") as live:
        live.chat("hi")
        assert not live.manager.requests[0].apply_generation_defaults


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 0}, None),
    ],
)
def test_token_limits(live, fields, limit):
    live.chat("hi", **fields)
    assert live.manager.requests[0].sampling_params["max_new_tokens"] == limit


def test_continuing_the_final_message(live):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once"}]
    body = {"messages": messages, "continue_final_message": True}
    assert live.http.post("/v1/chat/completions", json=body).status_code == 200
    assert live.manager.requests[0].text == "<user>hi<assistant>Once"


def test_prompt_ids_skip_the_template(live):
    live.chat("hi", input_ids=[5, 6])
    assert live.manager.requests[0].input_ids == [5, 6] and live.manager.requests[0].text is None


def test_long_histories_are_rendered_too(live):
    assert live.chat(*["x"] * 3000).status_code == 400  # longer than the context, and longer than a body kept inline
    assert live.chat("y", user="z" * 100_000).status_code == 200


def test_stream_transcript(live):
    live.manager.script = lambda request: Script(["He", "", "y"], pause_s=0.01)
    chunks = events(live.chat("hi", stream=True, rid="r1", stream_options={"include_usage": True}))
    head = {
        "id": "r1",
        "object": "chat.completion.chunk",
        "created": chunks[0]["created"],
        "model": "fake-model",
    }

    def chunk(delta, finish_reason=None, matched_stop=None):
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": None,
            "finish_reason": finish_reason,
            "matched_stop": matched_stop,
        }
        return head | {"choices": [choice]}

    usage = {
        "prompt_tokens": 19,
        "total_tokens": 23,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
        "reasoning_tokens": 0,
    }
    assert chunks == [
        chunk({"reasoning_content": None, "role": "assistant", "content": ""}),
        chunk({"reasoning_content": None, "content": "He"}),
        chunk({"reasoning_content": None, "content": "y"}),
        chunk({"reasoning_content": None}, "stop", 2),
        head | {"choices": [], "usage": usage},
    ]


def test_siblings_stream_under_one_id_and_finish_together(live):
    live.manager.script = lambda request: Script(pause_s=0.01)
    chunks = events(live.chat("hi", stream=True, n=3))
    assert len({chunk["id"] for chunk in chunks}) == 1
    texts, begun, finished = ["", "", ""], set(), []
    for chunk in chunks:
        [choice] = chunk["choices"]
        assert "usage" not in chunk
        index, delta = choice["index"], choice["delta"]
        if "role" in delta:
            assert index not in begun
            begun.add(index)
        assert index in begun
        texts[index] += delta.get("content", "")
        if choice["finish_reason"]:
            finished.append(index)
        else:
            assert not finished
    assert texts == ["Hello wörld"] * 3
    assert finished == [0, 1, 2]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_no_usage_unless_asked(live, options):
    assert not any("usage" in chunk for chunk in events(live.chat("hi", stream=True, stream_options=options)))


def test_usage_by_default_when_the_server_says_so():
    with live_server(stream_response_default_include_usage=True) as live:
        assert events(live.chat("hi", stream=True))[-1]["usage"]["completion_tokens"] == 12


def test_usage_without_cache_report():
    with live_server() as live:
        assert live.chat("hi").json()["usage"]["prompt_tokens_details"] is None


def test_an_abort_by_the_user_ends_normally_and_an_error_does_not(live):
    live.manager.script = lambda request: Script(["x"], FinishReason("abort", message="Aborted"), pause_s=0.01)
    assert events(live.chat("hi", stream=True))[-1]["choices"][0]["finish_reason"] == "abort"
    reason = FinishReason("abort", message="broken", status_code=500)
    live.manager.script = lambda request: Script(["x"], reason, pause_s=0.01)
    chunks = events(live.chat("hi", stream=True))
    assert chunks[-1]["error"]["code"] == 500
    assert not any(choice["finish_reason"] for chunk in chunks[:-1] for choice in chunk["choices"])


def test_a_model_without_template():
    with live_server(template=None) as live:
        refused = live.chat("hi")
        assert refused.status_code == 400 and "template" in refused.json()["message"]
