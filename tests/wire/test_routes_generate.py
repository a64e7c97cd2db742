"""/generate over a real socket: shapes, streams, order, ends."""

import json
import threading

import httpx
import pytest

from radixlm.protocol.messages import FinishReason
from tests.wire.fake_manager import Script
from tests.wire.serving import eventually, live_server


@pytest.fixture(scope="module")
def server():
    with live_server() as live:
        yield live


@pytest.fixture
def live(server):
    server.manager.script = lambda request: Script()
    server.manager.requests.clear()
    return server


def events(response):
    """The decoded events of a stream; checks framing, and that [DONE] is there once, at the end."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *frames, last = response.text.split("\n\n")
    assert last == "" and frames[-1] == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]


def test_single(live):
    live.manager.script = lambda request: Script(cached_tokens=1)
    answer = live.generate(text="abc", rid="mine", return_prompt_token_ids=True).json()
    assert answer["text"] == "Hello wörld"
    assert answer["output_ids"] == [*map(ord, "Hello wörld"), 2]
    assert answer["prompt_token_ids"] == [97, 98, 99]
    meta = answer["meta_info"]
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "stop", "matched": 2}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (3, 12, 1)
    assert meta["cached_tokens_details"] == {"device": 1, "host": 0}
    assert meta["weight_version"] == "default"
    assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 12}]
    assert meta["num_retractions"] == 0 and meta["dp_rank"] is None
    assert 0 <= meta["e2e_latency"] < 5
    assert meta["queue_time"] == 0.25


def test_put_and_unknown_keys(live):
    response = live.http.put("/generate", json={"text": "a", "no_such_field": {"x": 1}, "log_metrics": True})
    assert response.status_code == 200


def test_batch_keeps_order_although_later_prompts_end_first(live):
    live.manager.script = lambda request: Script([request.text], pause_s=0.05 if request.text == "slow" else 0)
    answers = live.generate(text=["slow", "b", "c"], rid=["x", "y", "z"]).json()
    assert [answer["text"] for answer in answers] == ["slow", "b", "c"]
    assert [answer["meta_info"]["id"] for answer in answers] == ["x", "y", "z"]


def test_n_promotes_to_an_array(live):
    answers = live.generate(text="a", rid="mine", sampling_params={"n": 3}).json()
    ids = [answer["meta_info"]["id"] for answer in answers]
    assert len(set(ids)) == 3 and "mine" not in ids


def test_stream_is_cumulative(live):
    live.manager.script = lambda request: Script(pause_s=0.01)
    chunks = events(live.generate(text="abc", stream=True))
    assert [chunk["text"] for chunk in chunks] == ["Hel", "Hello ", "Hello wörld", "Hello wörld"]
    assert [chunk["meta_info"]["completion_tokens"] for chunk in chunks] == [3, 6, 11, 12]
    assert [chunk["meta_info"]["finish_reason"] for chunk in chunks[:-1]] == [None] * 3
    assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
    assert "response_sent_to_client_ts" in chunks[0]["meta_info"]
    assert "response_sent_to_client_ts" not in chunks[1]["meta_info"]
    assert "index" not in chunks[0]
    assert live.manager.requests[0].stream


def test_streamed_batch_is_tagged(live):
    chunks = events(live.generate(text=["a", "b"], stream=True))
    last = {chunk["index"]: chunk for chunk in chunks}
    assert sorted(last) == [0, 1]
    assert all(chunk["text"] == "Hello wörld" for chunk in last.values())


def test_incremental_streams():
    with live_server(incremental_streaming_output=True) as live:
        live.manager.script = lambda request: Script(pause_s=0.01)
        chunks = events(live.generate(text="abc", stream=True))
        assert "".join(chunk["text"] for chunk in chunks) == "Hello wörld"
        assert [token for chunk in chunks for token in chunk["output_ids"]] == [*map(ord, "Hello wörld"), 2]
        assert chunks[-1]["meta_info"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (FinishReason("length", length=11), {"type": "length", "length": 11}),
        (FinishReason("stop", matched="wörld"), {"type": "stop", "matched": "wörld"}),
        (
            FinishReason("abort", message="Aborted"),
            {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None},
        ),
    ],
)
def test_finish_reasons(live, reason, shown):
    live.manager.script = lambda request: Script(reason=reason)
    response = live.generate(text="a")
    assert response.status_code == 200
    assert response.json()["meta_info"]["finish_reason"] == shown
    assert response.json()["text"] == "Hello wörld"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 500, 503])
def test_engine_refusals_have_a_real_status(live, stream, status):
    reason = FinishReason("abort", message="no room", status_code=status)
    live.manager.script = lambda request: Script([], reason)
    response = live.generate(text="a", stream=stream)
    assert response.status_code == status
    body = response.json()
    if status == 400:
        assert body == {"error": {"message": "no room"}}
    else:
        flat = {"object": "error", "message": "no room", "type": str(status), "param": None, "code": status}
        assert body == flat


def test_one_refused_item_fails_the_batch_and_ends_the_rest(live):
    refusal = Script([], FinishReason("abort", message="no room", status_code=503))
    live.manager.script = lambda request: refusal if request.text == "b" else Script(endless=True, pause_s=0.01)
    assert live.generate(text=["a", "b", "c"]).status_code == 503
    assert not live.manager.live


def test_an_error_after_the_first_byte_is_the_last_chunk(live):
    reason = FinishReason("abort", message="out of memory", status_code=500)
    live.manager.script = lambda request: Script(["some"], reason, pause_s=0.01)
    response = live.generate(text="a", stream=True)
    assert response.status_code == 200
    chunks = events(response)
    assert chunks[-1]["text"] == "some"
    assert chunks[-1]["meta_info"]["finish_reason"]["status_code"] == 500


def test_seeds_reach_the_engine_on_every_route(live):
    live.generate(text="a", sampling_params={"sampling_seed": 7})
    live.completions(prompt="a", seed=7)
    live.chat("a", seed=7)
    assert [request.sampling_params["sampling_seed"] for request in live.manager.requests] == [7, 7, 7]


def test_an_abort_by_the_user_answers_200_with_the_text_so_far(live):
    live.manager.script = lambda request: Script(["x"], endless=True, pause_s=0.005)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(live.generate(text="a", rid="victim")))
    thread.start()
    eventually(lambda: any(choice.started for choice in live.manager.live.values()))
    assert httpx.post(f"{live.base}/abort_request", json={"rid": "victim"}).json() == {"aborted": 1}
    thread.join(5)
    [answer] = answers
    assert answer.status_code == 200
    assert answer.json()["text"].startswith("x")
    assert answer.json()["meta_info"]["finish_reason"]["type"] == "abort"


def test_a_session_carries_ids_from_turn_to_turn(live):
    opened = live.http.post("/open_session", json={"capacity_of_str_len": 1000, "session_id": "talk"})
    assert opened.json() == "talk"
    assert live.http.post("/open_session", json={"capacity_of_str_len": 1000, "session_id": "talk"}).status_code == 400
    first = live.generate(
        input_ids=[5, 6], rid="one", session_params={"id": "talk"}, sampling_params={"max_new_tokens": 2}
    ).json()
    on = {"id": "talk", "rid": "one"}
    streamed = live.generate(input_ids=[9], rid="two", session_params=on, stream=True, return_prompt_token_ids=True)
    assert events(streamed)[-1]["prompt_token_ids"] == [5, 6, *first["output_ids"], 9]
    unknown = live.generate(input_ids=[9], session_params={"id": "talk", "rid": "nobody"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "session_params.rid")
    several = live.generate(input_ids=[[9], [8]], session_params={"id": "talk"})
    assert several.status_code == 400
    assert live.http.post("/close_session", json={"session_id": "talk"}).status_code == 200
    gone = live.generate(input_ids=[9], session_params={"id": "talk"})
    assert gone.json()["error"]["message"] == "Invalid request: session talk does not exist"
