"""/v1/completions over a real socket."""

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
    live.manager.script = lambda request: Script(cached_tokens=2)
    body = live.completions(prompt="abc", model="echoed").json()
    rid = body.pop("id")
    assert rid and body.pop("created") > 0
    assert body == {
        "object": "text_completion",
        "model": "echoed",
        "choices": [{"index": 0, "text": "Hello wörld", "logprobs": None, "finish_reason": "stop", "matched_stop": 2}],
        "usage": {
            "prompt_tokens": 3,
            "total_tokens": 15,
            "completion_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 2},
            "reasoning_tokens": 0,
        },
        "metadata": {
            "weight_version": "default",
            "weight_versions": [{"version": "default", "start": 0, "end": 12}],
        },
    }


def test_no_model_is_answered_with_the_served_name(live):
    assert live.completions(prompt="abc").json()["model"] == "fake-model"


@pytest.mark.parametrize(
    ("prompt", "texts", "ids"),
    [
        ("a", ["a"], [None]),
        (["a", "b"], ["a", "b"], [None, None]),
        ([1, 2], [None], [[1, 2]]),
        ([[1, 2], [3]], [None, None], [[1, 2], [3]]),
    ],
)
def test_the_four_forms_of_prompts(live, prompt, texts, ids):
    body = live.completions(prompt=prompt, n=2).json()
    assert [request.text for request in live.manager.requests[::2]] == texts
    assert [request.input_ids for request in live.manager.requests[::2]] == ids
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(texts)))


def test_parameters_reach_the_engine_under_native_names(live):
    live.completions(
        prompt="a",
        max_tokens=5,
        temperature=0.5,
        top_k=3,
        min_tokens=2,
        stop=["x"],
        stop_regex="y",
        logit_bias={"7": -1},
        ignore_eos=True,
        best_of=1,
        user="me",
        top_p=None,
    )
    assert live.manager.requests[0].sampling_params == {
        "max_new_tokens": 5,
        "temperature": 0.5,
        "top_k": 3,
        "min_new_tokens": 2,
        "stop": ["x"],
        "stop_regex": "y",
        "logit_bias": {"7": -1.0},
        "ignore_eos": True,
    }
    live.completions(prompt="a", cache_salt="s", extra_key="k", rid="mine", priority=3)
    request = live.manager.requests[1]
    assert request.sampling_params == {"max_new_tokens": 16}
    assert (request.namespace.cache_salt, request.namespace.extra_key) == ("s", "k")
    assert (request.rid, request.priority) == ("mine", 3)
    assert not request.apply_generation_defaults


@pytest.mark.parametrize("prompt", ["abc", [97, 98, 99]])
@pytest.mark.parametrize("stream", [False, True])
def test_echo(live, prompt, stream):
    response = live.completions(prompt=prompt, echo=True, n=2, stream=stream)
    if stream:
        texts = ["", ""]
        for chunk in events(response):
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    else:
        texts = [choice["text"] for choice in response.json()["choices"]]
    assert texts == ["abcHello wörld"] * 2


def test_stream_transcript(live):
    live.manager.script = lambda request: Script(["He", "", "y"], pause_s=0.01, cached_tokens=1)
    chunks = events(live.completions(prompt="abc", stream=True, rid="r1", stream_options={"include_usage": True}))
    created = chunks[0]["created"]

    def chunk(text, finish_reason=None, matched_stop=None):
        choice = {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "matched_stop": matched_stop,
        }
        head = {"id": "r1", "object": "text_completion", "created": created, "model": "fake-model"}
        return head | {"choices": [choice], "usage": None}

    usage = {
        "prompt_tokens": 3,
        "total_tokens": 7,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 1},
        "reasoning_tokens": 0,
    }
    head = {"id": "r1", "object": "text_completion", "created": created, "model": "fake-model"}
    assert chunks == [chunk("He"), chunk("y"), chunk("", "stop", 2), head | {"choices": [], "usage": usage}]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_no_usage_unless_asked(live, options):
    chunks = events(live.completions(prompt="abc", stream=True, stream_options=options))
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)


def test_continuous_usage(live):
    live.manager.script = lambda request: Script(pause_s=0.01)
    chunks = events(live.completions(prompt="abc", stream=True, stream_options={"continuous_usage_stats": True}))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [3, 6, 11, 12]


def test_siblings_count_their_prompt_once_and_cached_tokens_stay_below_it(live):
    cached = iter([0, 49, 49, 49])
    live.manager.script = lambda request: Script(cached_tokens=next(cached))
    usage = live.completions(prompt="p" * 50, n=4).json()["usage"]
    assert usage["prompt_tokens"] == 50
    assert usage["completion_tokens"] == 48
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_an_error_after_the_first_byte_is_an_error_event(live):
    reason = FinishReason("abort", message="out of memory", status_code=500)
    live.manager.script = lambda request: Script(["some"], reason, pause_s=0.01)
    chunks = events(live.completions(prompt="a", stream=True))
    error = {
        "object": "error",
        "message": "out of memory",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
    assert chunks[-1] == {"error": error}
    assert not any(choice["finish_reason"] for chunk in chunks[:-1] for choice in chunk["choices"])


def test_a_stop_string_is_shown_as_matched(live):
    live.manager.script = lambda request: Script(["alph"], FinishReason("stop", matched="a-be"))
    choice = live.completions(prompt="a", stop=["a-be"]).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["matched_stop"]) == ("alph", "stop", "a-be")
