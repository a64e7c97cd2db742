"""Log probabilities and hidden states on every route that has them, from a fake engine with known values."""

import json
import random

import pytest

from radixlm.protocol.messages import FinishReason
from tests.wire.fake_extras import logprob
from tests.wire.fake_manager import EOS, Script
from tests.wire.serving import Live, live_server

TEXT = "Hé, wörld ₂!"


@pytest.fixture(scope="module", params=[False, True], ids=["cumulative", "incremental"])
def server(request):
    with live_server(incremental_streaming_output=request.param) as live:
        yield live


@pytest.fixture
def live(server: Live) -> Live:
    server.manager.script = lambda request: Script()
    return server


def events(response) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def cuts(seed: int) -> Script:
    """TEXT in random pieces, ended in one of the ways that answers end."""
    draw = random.Random(seed)
    places = sorted(draw.sample(range(1, len(TEXT)), draw.randrange(6)))
    pieces = [TEXT[a:b] for a, b in zip([0, *places], [*places, len(TEXT)], strict=True)]
    reason = draw.choice([FinishReason("stop", matched=EOS), FinishReason("length", length=len(TEXT))])
    return Script(pieces=pieces, reason=reason)


def triple(token: int, rank: int = 0, text: str | None = None) -> list:
    return [logprob(token, rank), token + rank, text]


def test_generate_has_every_kind_in_meta_info(live):
    asked = {"return_logprob": True, "logprob_start_len": 1, "top_logprobs_num": 2, "token_ids_logprob": [5, 9]}
    meta = live.generate(text="abc", **asked).json()["meta_info"]
    spoken = [*map(ord, "Hello wörld"), EOS]
    assert meta["input_token_logprobs"] == [[None, ord("b"), None], triple(ord("c"))]
    assert meta["output_token_logprobs"] == [triple(token) for token in spoken]
    assert meta["output_token_logprobs_length"] == len(spoken)
    assert meta["input_top_logprobs"] == [None, [triple(ord("c")), triple(ord("c"), 1)]]
    assert meta["output_top_logprobs"][-1] == [triple(EOS), triple(EOS, 1)]
    assert meta["input_token_ids_logprobs"] == [None, [triple(5), triple(9)]]
    assert meta["output_token_ids_logprobs"] == [[triple(5), triple(9)]] * len(spoken)


def test_generate_leaves_out_what_was_not_asked_for(live):
    assert not [key for key in live.generate(text="abc").json()["meta_info"] if "logprob" in key or "hidden" in key]
    meta = live.generate(text="abc", return_logprob=True).json()["meta_info"]
    assert meta["input_token_logprobs"] == []
    assert not [key for key in meta if "top" in key or "ids_logprobs" in key]
    start = live.generate(text="abc", return_logprob=True, logprob_start_len=2).json()["meta_info"]
    assert start["input_token_logprobs"] == [[None, ord("c"), None]]
    texts = live.generate(text="abc", return_logprob=True, return_text_in_logprobs=True).json()["meta_info"]
    assert texts["output_token_logprobs"][1] == triple(ord("e"), text="e")


def test_batches_have_their_own(live):
    body = {"return_logprob": [True, False], "token_ids_logprob": [[5], []], "logprob_start_len": [0, -1]}
    first, second = live.generate(text=["ab", "cd"], **body).json()
    assert len(first["meta_info"]["input_token_logprobs"]) == 2
    assert first["meta_info"]["output_token_ids_logprobs"][0] == [triple(5)]
    assert "output_token_logprobs" not in second["meta_info"]


def test_hidden_states_are_the_prompts_then_one_for_each_token(live):
    meta = live.generate(text="a", return_hidden_states=True).json()["meta_info"]
    prompt, *decoded = meta["hidden_states"]
    assert prompt == [[97.0] * 3] and len(decoded) == len("Hello wörld") + 1


@pytest.mark.parametrize("seed", range(8))
def test_streamed_is_whole_on_generate(live, seed):
    live.manager.script = lambda request: cuts(seed)
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1, "token_ids_logprob": [4]}
    body = {"text": "abc", **asked}
    whole = live.generate(**body).json()["meta_info"]
    stream = [event["meta_info"] for event in events(live.generate(**body, stream=True))]
    for key in ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs"):
        parts = [meta[key] for meta in stream]
        joined = [item for part in parts for item in part] if live.services.incremental_streaming_output else parts[-1]
        assert joined == whole[key]
    for meta in stream:
        assert meta["input_token_logprobs"] == whole["input_token_logprobs"]
    lengths = [meta["output_token_logprobs_length"] for meta in stream]
    assert lengths == sorted(lengths) and lengths[-1] == whole["output_token_logprobs_length"]


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_streamed_is_whole_on_completions(live, seed, echo):
    live.manager.script = lambda request: cuts(seed)
    body = {"prompt": ["ab", "c"], "logprobs": 2, "echo": echo}
    choices = live.completions(**body).json()["choices"]
    chunks = [event["choices"][0] for event in events(live.completions(**body, stream=True))]
    for whole in choices:
        parts = [chunk for chunk in chunks if chunk["index"] == whole["index"]]
        assert "".join(part["text"] for part in parts) == whole["text"]
        for key, value in whole["logprobs"].items():
            assert [item for part in parts for item in part["logprobs"][key]] == value


@pytest.mark.parametrize("seed", range(8))
def test_streamed_is_whole_on_chat(live, seed):
    live.manager.script = lambda request: cuts(seed)
    body = {"logprobs": True, "top_logprobs": 2}
    whole = live.chat("hi", **body).json()["choices"][0]
    deltas = [event["choices"][0] for event in events(live.chat("hi", **body, stream=True))]
    streamed = [entry for delta in deltas if delta["logprobs"] for entry in delta["logprobs"]["content"]]
    assert streamed == whole["logprobs"]["content"]
    assert bytes(byte for entry in streamed for byte in entry["bytes"]).decode() == whole["message"]["content"] == TEXT
    assert all(len(entry["top_logprobs"]) == 2 for entry in streamed)


def test_completions_with_echo_score_the_prompt(live):
    choice = live.completions(prompt="abc", echo=True, logprobs=1).json()["choices"][0]
    shown = choice["logprobs"]
    assert choice["text"] == "abcHello wörld"
    assert shown["tokens"] == [*"abcHello wörld", ""]
    assert shown["text_offset"] == [*range(len(choice["text"])), len(choice["text"])]
    assert shown["token_logprobs"] == [None, *(logprob(ord(c)) for c in "bcHello wörld"), logprob(EOS)]
    assert shown["top_logprobs"] == [None, *({c: logprob(ord(c))} for c in "bcHello wörld"), {"": logprob(EOS)}]


def test_completions_without_alternatives(live):
    shown = live.completions(prompt="abc", logprobs=0).json()["choices"][0]["logprobs"]
    assert shown["top_logprobs"] == [None] * len(shown["tokens"])
    assert live.completions(prompt="abc").json()["choices"][0]["logprobs"] is None


def test_best_of_keeps_the_likeliest(live):
    said = iter(["~~", "@@", "zz", "AA"])  # logprob falls with the code modulo 64
    live.manager.script = lambda request: Script(pieces=[next(said)], reason=FinishReason("length", length=2))
    body = live.completions(prompt="p", n=2, best_of=4).json()
    assert [choice["text"] for choice in body["choices"]] == ["@@", "AA"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["completion_tokens"] == 8 and body["usage"]["prompt_tokens"] == 1
    assert live.completions(prompt="p", n=1, best_of=2, stream=True).status_code == 400


def test_hidden_states_on_the_openai_routes_are_the_last_vector(live):
    last = [float(EOS)] * 3
    for body, path in (
        ({"prompt": "a"}, "/v1/completions"),
        ({"messages": [{"role": "user", "content": "a"}]}, "/v1/chat/completions"),
    ):
        for value in (True, "last"):
            asked = body | {"return_hidden_states": value}
            assert live.http.post(path, json=asked).json()["choices"][0]["hidden_states"] == last
            closing = [event["choices"][0] for event in events(live.http.post(path, json=asked | {"stream": True}))][-1]
            assert closing.get("hidden_states", closing.get("delta", {}).get("hidden_states")) == last


@pytest.mark.parametrize("stream", [False, True])
def test_responses_include_those_of_the_text(live, stream):
    asked = {"input": "a", "include": ["message.output_text.logprobs"], "top_logprobs": 1, "stream": stream}
    response = live.http.post("/v1/responses", json=asked)
    if stream:
        last = [line for line in response.text.splitlines() if line.startswith("data: ")][-1]
        answer = json.loads(last.removeprefix("data: "))["response"]
    else:
        answer = response.json()
    [part] = answer["output"][0]["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"] == "Hello wörld"
    assert part["logprobs"][0]["top_logprobs"][0]["logprob"] == part["logprobs"][0]["logprob"] == logprob(ord("H"))
    plain = live.http.post("/v1/responses", json={"input": "a"}).json()
    assert plain["output"][0]["content"][0]["logprobs"] == []
