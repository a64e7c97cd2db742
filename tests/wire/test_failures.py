"""What breaks in engines like this one: small hostile or unlucky requests to the demo model, each with an after-check.

The names in parentheses are those of the collection the cases come from; cases that the simulation, the parity tests or
the other route tests already hold are not repeated here.
"""

import asyncio
import itertools
import json
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.wire.live import LiveServer, live_server

pytestmark = pytest.mark.slow
VOCABULARY = 49152  # the demo model's
SHORT = {"max_new_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    flags = ("--mem-fraction-static", "0.3", "--enable-metrics", "--enable-cache-report")
    with live_server("demo", *flags) as running:
        yield running


@pytest.fixture(autouse=True)
def after_check(server: LiveServer) -> Iterator[None]:
    yield
    server.check_whole()


def native(text: str, **params: Any) -> dict[str, Any]:
    return {"text": text, "sampling_params": {**SHORT, **params}}


def completion(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt, "max_tokens": 4, "temperature": 0, **fields}


def chat(*contents: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content} for content in contents]
    return {"model": "m", "messages": messages, "max_tokens": 4, "temperature": 0, **fields}


def events(server: LiveServer, path: str, body: dict[str, Any]) -> list[Any]:
    """The decoded events of a stream, which must end with [DONE]."""
    with httpx.stream("POST", server.url + path, json={**body, "stream": True}, timeout=120) as response:
        assert response.status_code == 200, response.read()
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


# ---- bad input: a 400 that names the field -----------------------------------------------------------------------

REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("C01", "/v1/completions", completion([VOCABULARY + 50]), "prompt"),
    ("C02", "/generate", {"input_ids": [5, -1], "sampling_params": SHORT}, "input_ids"),
    ("C03", "/generate", {**native("hi"), "return_logprob": True, "top_logprobs_num": 10**9}, "top_logprobs_num"),
    ("C06", "/v1/chat/completions", chat("hi", logit_bias={"99999999": 5}), "logit_bias"),
    ("C06", "/v1/chat/completions", chat("hi", logit_bias={"cat": -100}), "logit_bias"),
    ("C09", "/generate", native("hi", temperature=-1), "temperature"),
    ("C09", "/generate", native("hi", top_p=0), "top_p"),
    ("C09", "/generate", native("hi", top_p=7), "top_p"),
    ("C09", "/generate", native("hi", min_p=2), "min_p"),
    ("C09", "/generate", native("hi", top_k=0), "top_k"),
    ("C09", "/generate", native("hi", top_k=-5), "top_k"),
    ("C16", "/generate", native("hi", regex="(((["), "regex"),
    ("C28", "/v1/chat/completions", chat("word " * 9000, stream=True), "messages"),
    ("C81", "/v1/chat/completions", chat("hi", chat_template_kwargs={"chat_template": "{{ 1 }}"}), "chat_template"),
]


@pytest.mark.parametrize(("case", "path", "body", "field"), REFUSED, ids=lambda value: str(value)[:12])
def test_bad_input_is_refused_by_name(
    server: LiveServer, case: str, path: str, body: dict[str, Any], field: str
) -> None:
    answer = server.post(path, body)
    assert answer.status_code == 400, (case, answer.text)
    assert answer.headers["content-type"].startswith("application/json")
    assert field in answer.text, (case, answer.text)


@pytest.mark.parametrize("number", ["NaN", "1e400", "-Infinity"])
def test_numbers_that_json_has_not(server: LiveServer, number: str) -> None:
    """(C09)"""
    body = f'{{"text": "hi", "sampling_params": {{"temperature": {number}, "max_new_tokens": 2}}}}'
    answer = httpx.post(server.url + "/generate", content=body, timeout=30)
    assert answer.status_code == 400


ACCEPTED: list[tuple[str, str, dict[str, Any]]] = [
    ("C08", "/v1/completions", completion("hi", top_k=VOCABULARY * 10, temperature=1)),
    ("C09", "/generate", native("hi", top_k=-1, temperature=0)),
    ("C12", "/v1/chat/completions", {"messages": [{"role": "assistant", "content": "I am"}], "max_tokens": 4}),
    ("C91", "/v1/responses", {"model": "m", "input": "hi", "max_output_tokens": 4}),
]


@pytest.mark.parametrize(("case", "path", "body"), ACCEPTED, ids=lambda value: str(value)[:12])
def test_odd_input_that_means_something(server: LiveServer, case: str, path: str, body: dict[str, Any]) -> None:
    assert server.post(path, body).status_code == 200, case


# ---- text and stops ----------------------------------------------------------------------------------------------


def test_a_stop_string_across_tokens_neither_leaks_nor_repeats(server: LiveServer) -> None:
    """(C40)"""
    body = native("Say it:", regex="alpha-beta-gamma", stop=["a-be"], max_new_tokens=40)
    streamed = events(server, "/generate", body)
    texts = [event["text"] for event in streamed]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert texts[-1] == "alph" == server.post("/generate", body).json()["text"]
    assert streamed[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": "a-be"}


def test_characters_of_several_tokens_are_never_cut(server: LiveServer) -> None:
    """(C43)"""
    wanted = "🦙🇨🇿 한국어 žluťoučký"
    body = native("Say it:", regex=wanted, max_new_tokens=100)
    texts = [event["text"] for event in events(server, "/generate", body)]
    assert "\ufffd" not in "".join(texts)
    assert texts[-1] == wanted == server.post("/generate", body).json()["text"]


def test_every_stream_ends_with_done_and_one_finish_reason(server: LiveServer) -> None:
    """(C29)"""
    draw = random.Random(4)

    async def one(client: httpx.AsyncClient, number: int) -> None:
        stop = {"stop": ["the", " a"]} if draw.random() < 0.3 else {}
        tokens = draw.choice([0, 1, 2, 5, 17])
        route = "/v1/completions" if tokens == 0 or number % 2 else "/v1/chat/completions"
        shape = completion(f"Item {number}:", **stop) if "chat" not in route else chat(f"Item {number}:", **stop)
        body = {**shape, "max_tokens": tokens, "stream": True}
        async with client.stream("POST", route, json=body) as response:
            assert response.status_code == 200
            lines = [line[6:] async for line in response.aiter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]" and lines.count("[DONE]") == 1
        reasons = [c["finish_reason"] for line in lines[:-1] for c in json.loads(line)["choices"] if c["finish_reason"]]
        assert len(reasons) == 1 and reasons[0] in ("stop", "length")

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            await asyncio.gather(*(one(client, number) for number in range(100)))

    asyncio.run(all_of_them())


def test_tokens_without_text_cost_no_more_late_than_early(server: LiveServer) -> None:
    """(C46) A token that is half a character, a thousand times: text comes all along, and time per token stays flat."""
    half = server.post("/tokenize", {"prompt": "🦙", "add_special_tokens": False}).json()["tokens"][0]
    params = {"max_new_tokens": 600, "temperature": 0, "ignore_eos": True, "logit_bias": {str(half): 100}}
    body = {"text": "x", "sampling_params": params, "stream": True}
    times, shown = [], []
    with httpx.stream("POST", server.url + "/generate", json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                times.append((event["meta_info"]["completion_tokens"], time.monotonic()))
                shown.append(len(event["text"]))
    assert shown[len(shown) // 2] > 100  # replacement characters, not silence until the end

    def pace_s(first: int, last: int) -> float:
        inside = [at for count, at in times if first <= count <= last]
        return (inside[-1] - inside[0]) / (last - first)

    assert pace_s(500, 600) < 4 * pace_s(50, 150)


def test_the_bos_is_there_once(server: LiveServer) -> None:
    """(C92)"""
    rendered = server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}).json()["tokens"]
    plain = server.post("/generate", {**native("hi"), "return_prompt_token_ids": True}).json()["prompt_token_ids"]
    bos = server.post("/tokenize", {"prompt": "<|im_start|>", "add_special_tokens": False}).json()["tokens"][0]
    assert rendered[0] == bos and rendered[1] != bos
    assert plain.count(bos) <= 1


# ---- one request and its neighbours ------------------------------------------------------------------------------


def test_concurrent_conversations_do_not_mix(server: LiveServer) -> None:
    """(C66)"""
    bodies = [
        native(f"The secret word of group {n} is {n * 7919 % 1000}. Repeat:", max_new_tokens=8) for n in range(16)
    ]
    alone = [server.post("/generate", body).json()["output_ids"] for body in bodies]

    async def together() -> list[list[int]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            answers = await asyncio.gather(*(client.post("/generate", json=body) for body in bodies))
            return [answer.json()["output_ids"] for answer in answers]

    assert asyncio.run(together()) == alone


def test_a_prompt_of_whole_pages_may_be_cached_whole(server: LiveServer) -> None:
    """(C60) `n` siblings count their prompt once, and never all of it as cached (C69)."""
    for pages in (1, 2, 3):
        body = {"input_ids": list(range(100, 100 + 16 * pages)), "sampling_params": {**SHORT, "max_new_tokens": 8}}
        answers = [server.post("/generate", body).json() for _ in range(3)]
        assert len({tuple(answer["output_ids"]) for answer in answers}) == 1
        assert all(answer["meta_info"]["cached_tokens"] <= 16 * pages - 1 for answer in answers)
    usage = server.post("/v1/chat/completions", chat("Tell me about trees and birds", n=4)).json()["usage"]
    once = server.post("/v1/chat/completions", chat("Tell me about trees and birds")).json()["usage"]
    assert usage["prompt_tokens"] == once["prompt_tokens"]
    assert once["prompt_tokens_details"]["cached_tokens"] < once["prompt_tokens"]


def test_cancelled_neighbours_change_no_answer(server: LiveServer) -> None:
    """(C68)"""
    bodies = [native(f"Once there were {n} bears who", max_new_tokens=12) for n in range(4)]

    async def once() -> list[tuple[int, ...]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            asked = [asyncio.create_task(client.post("/generate", json=body)) for body in bodies]
            for _ in range(3):
                leaving = asyncio.create_task(client.post("/generate", json=native("I leave", max_new_tokens=500)))
                await asyncio.sleep(0.05)
                leaving.cancel()
            return [tuple((await task).json()["output_ids"]) for task in asked]

    assert len({tuple(asyncio.run(once())) for _ in range(3)}) == 1


def test_siblings_stop_with_their_client(server: LiveServer) -> None:
    """(C47, C49)"""
    body = native("Once", max_new_tokens=4000, ignore_eos=True, n=4)
    with httpx.stream("POST", server.url + "/generate", json={**body, "stream": True}, timeout=60) as response:
        lines = response.iter_lines()
        for _ in range(5):
            next(lines)
    left = time.monotonic()
    while server.internal_state()["num_running_reqs"]:
        assert time.monotonic() - left < 2
        time.sleep(0.05)


# ---- life ----------------------------------------------------------------------------------------------------------


def test_health_tells_a_stopped_scheduler(server: LiveServer) -> None:
    """(C75)"""
    scheduler = server.child("scheduler")
    scheduler.send_signal(signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 30
        while server.get("/health").status_code == 200:
            assert time.monotonic() < deadline
            time.sleep(0.5)
    finally:
        scheduler.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + 5
    while server.get("/health").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_truncation_leaves_room_to_answer() -> None:
    """(C78)"""
    with live_server("demo", "--allow-auto-truncate", "--context-length", "128", "--mem-fraction-static", "0.1") as own:
        answer = own.post("/generate", {"input_ids": [5] * 400, "sampling_params": {"max_new_tokens": 8}}).json()
        assert 0 < answer["meta_info"]["completion_tokens"] <= 8
        assert answer["meta_info"]["truncated_tokens"] > 0
        own.check_whole()
