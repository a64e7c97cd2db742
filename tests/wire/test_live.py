"""The demo model behind a real server: both APIs, hang-ups, aborts, metrics, and an orderly or a violent end."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import httpx
import openai
import psutil
import pytest

from tests.wire.live import LiveServer, free_port, live_server

pytestmark = pytest.mark.slow
FRANCE = {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 16, "temperature": 0}}
ENDLESS = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    flags = ("--enable-metrics", "--enable-cache-report", "--mem-fraction-static", "0.3", "--host", "127.0.0.1")
    with live_server("demo", *flags) as running:
        yield running


@pytest.fixture(autouse=True)
def after_check(server: LiveServer) -> Iterator[None]:
    yield
    server.check_whole()


def test_generate_says_paris(server: LiveServer) -> None:
    answer = server.post("/generate", FRANCE).json()
    assert answer["text"].startswith(" Paris")
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 16}
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) == 16


def test_streamed_text_is_the_plain_text(server: LiveServer) -> None:
    plain = server.post("/generate", FRANCE).json()["text"]
    with httpx.stream("POST", server.url + "/generate", json={**FRANCE, "stream": True}, timeout=60) as response:
        events = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["text"] == plain


def test_openai_client_in_both_modes(server: LiveServer) -> None:
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    arguments = {"model": "default", "messages": messages, "max_tokens": 24, "temperature": 0}
    plain = client.chat.completions.create(**arguments)
    assert "Paris" in (plain.choices[0].message.content or "")
    assert plain.usage is not None and plain.usage.completion_tokens > 0
    chunks = list(client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert chunks[-1].usage is not None and chunks[-1].usage.prompt_tokens == plain.usage.prompt_tokens
    cached = chunks[-1].usage.prompt_tokens_details
    assert cached is not None and cached.cached_tokens is not None
    assert 16 <= cached.cached_tokens < plain.usage.prompt_tokens
    completion = client.completions.create(model="default", prompt="The capital of France is", max_tokens=4, seed=1)
    assert completion.choices[0].finish_reason == "length"


def test_a_pause_under_load_frees_the_cache_and_changes_no_token(server: LiveServer) -> None:
    params = {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True}
    bodies = [{"text": f"Story number {number} begins", "sampling_params": params} for number in range(8)]

    async def ask_all(pause: bool) -> list[list[int]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            asked = [asyncio.create_task(client.post("/generate", json=body)) for body in bodies]
            if pause:
                while server.internal_state()["num_running_reqs"] < len(bodies):
                    await asyncio.sleep(0.01)
                assert (await client.post("/pause_generation", json={"mode": "retract"})).json()["status"] == "ok"
                late = asyncio.create_task(client.post("/generate", json=FRANCE))
                assert (await client.post("/flush_cache")).status_code == 200
                state = server.internal_state()
                assert (state["num_running_reqs"], state["num_queue_reqs"]) == (0, len(bodies))
                assert state["kv_available_tokens"] == state["max_total_num_tokens"]
                assert (await client.get("/ready")).status_code == 503 and not late.done()
                await client.post("/continue_generation", json={})
                assert (await late).json()["text"].startswith(" Paris")
            answers = [(await task).json() for task in asked]
        assert [answer["meta_info"]["num_retractions"] for answer in answers] == [int(pause)] * len(bodies)
        return [answer["output_ids"] for answer in answers]

    assert asyncio.run(ask_all(False)) == asyncio.run(ask_all(True))


def test_seeds_on_every_route(server: LiveServer) -> None:
    def native(seed: int) -> str:
        params = {"max_new_tokens": 12, "temperature": 1.0, "sampling_seed": seed}
        return str(server.post("/generate", {"text": "My favourite food is", "sampling_params": params}).json()["text"])

    def openai_route(seed: int) -> str:
        body = {"model": "m", "prompt": "My favourite food is", "max_tokens": 12, "temperature": 1, "seed": seed}
        return str(server.post("/v1/completions", body).json()["choices"][0]["text"])

    assert native(7) == native(7) == openai_route(7)
    assert len({native(seed) for seed in range(7, 12)}) > 1


async def hang_up_some(url: str, streams: int) -> tuple[int, int]:
    """Open `streams` streams at once and leave every third after a few events: (complete, left)."""

    async def one(session: aiohttp.ClientSession, number: int) -> bool:
        params = {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True}
        body = {"text": f"Story number {number} begins", "sampling_params": params, "stream": True}
        async with session.post(url + "/generate", json=body) as response:
            assert response.status == 200
            seen = 0
            async for line in response.content:
                seen += line.startswith(b"data: ")
                if number % 3 == 0 and seen == 4:
                    return False
                if line.startswith(b"data: [DONE]"):
                    return True
        raise AssertionError("a stream ended without [DONE]")

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(300)) as session:
        results = await asyncio.gather(*(one(session, number) for number in range(streams)))
    return sum(results), len(results) - sum(results)


def test_200_streams_a_third_of_them_hung_up(server: LiveServer) -> None:
    assert asyncio.run(hang_up_some(server.url, 200)) == (133, 67)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_frees_its_slot_within_a_second(server: LiveServer, stream: bool) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + "/generate", json={**ENDLESS, "stream": stream}, timeout=httpx.Timeout(10, read=1.0))
        with httpx.stream("POST", server.url + "/generate", json={**ENDLESS, "stream": True}, timeout=10) as response:
            next(response.iter_lines())
            raise httpx.ReadTimeout("left")
    left = time.monotonic()
    while server.internal_state()["num_running_reqs"]:
        assert time.monotonic() - left < 1.5
        time.sleep(0.05)


def test_abort_by_rid_and_of_all(server: LiveServer) -> None:
    async def run() -> None:
        async with aiohttp.ClientSession() as session:

            async def ask(rid: str) -> dict:
                async with session.post(server.url + "/generate", json={**ENDLESS, "rid": rid}) as response:
                    assert response.status == 200
                    return await response.json()

            tasks = [asyncio.create_task(ask(f"r{i}")) for i in range(3)]
            await asyncio.sleep(1)
            async with session.post(server.url + "/abort_request", json={"rid": "r1"}) as response:
                assert response.status == 200
            first = await asyncio.wait_for(tasks[1], 5)
            assert first["meta_info"]["finish_reason"]["type"] == "abort"
            assert not tasks[0].done() and not tasks[2].done()
            async with session.post(server.url + "/abort_request", json={"abort_all": True}) as response:
                assert response.status == 200
            for task in (tasks[0], tasks[2]):
                assert (await asyncio.wait_for(task, 5))["meta_info"]["finish_reason"]["type"] == "abort"

    asyncio.run(run())


def test_a_profile_and_a_weight(server: LiveServer, tmp_path: Path) -> None:
    asked = {"output_dir": str(tmp_path), "profile_id": "one", "activities": ["CPU"]}
    started = server.post("/start_profile", asked)
    assert (started.status_code, started.text) == (200, "Start profiling.\n")
    assert server.post("/start_profile", asked).status_code == 400
    server.post("/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 2}})
    assert server.post("/stop_profile", {}).status_code == 200
    assert (tmp_path / "one-TP-0.trace.json.gz").stat().st_size > 0
    rows = server.post("/get_weights_by_name", {"name": "model.norm.weight", "truncate_size": 3}).json()
    assert len(rows) == 3 and all(isinstance(value, float) for value in rows)
    assert server.post("/get_weights_by_name", {"name": "nobody"}).status_code == 400


def test_metrics_are_what_clients_count_under_concurrency(server: LiveServer) -> None:
    """32 requests at once, streams and not, with shared beginnings; one refused and one hung up beside them."""

    def value(name: str, labels: str = "") -> float:
        lines = server.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{") and labels in line)

    async def one(client: httpx.AsyncClient, number: int) -> dict[str, int]:
        params = {"max_new_tokens": 4 + number % 5, "temperature": 0, "ignore_eos": True}
        body = {
            "text": f"{'Once upon a time. ' * 8}{number % 6} and",
            "sampling_params": params,
            "stream": number % 2 == 0,
        }
        text = (await client.post("/generate", json=body)).text
        last = text.split("data: ")[-2] if number % 2 == 0 else text
        meta: dict[str, int] = json.loads(last)["meta_info"]
        return meta

    async def hang_up(client: httpx.AsyncClient) -> None:
        async with client.stream("POST", "/generate", json={**ENDLESS, "stream": True}) as response:
            await anext(response.aiter_lines())

    async def load() -> list[dict[str, int]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            refused = client.post("/generate", json={"text": "x", "sampling_params": {"top_p": 7}})
            metas = asyncio.gather(*(one(client, number) for number in range(32)))
            await hang_up(client)
            assert (await refused).status_code == 400
            return await metas

    clients = {
        "prompt_tokens": "prompt_tokens",
        "completion_tokens": "generation_tokens",
        "cached_tokens": "cached_tokens",
    }
    counted = [f"sglang:{name}_total" for name in (*clients.values(), "num_requests", "num_aborted_requests")]
    processed = ('mode="decode"', 'mode="prefill_compute"', 'mode="prefill_cache"')
    names = [*counted, "sglang:time_to_first_token_seconds_count", "radixlm:num_requests_received_total"]
    before = {name: value(name) for name in names} | {m: value("sglang:realtime_tokens_total", m) for m in processed}
    metas = asyncio.run(load())
    server.settle()
    time.sleep(1.2)  # a pulse
    after = {name: value(name) for name in names} | {m: value("sglang:realtime_tokens_total", m) for m in processed}
    gained = {name: after[name] - before[name] for name in after}
    assert gained["sglang:num_requests_total"] == gained["radixlm:num_requests_received_total"] == 33
    assert gained["sglang:time_to_first_token_seconds_count"] == 33
    assert gained["sglang:num_aborted_requests_total"] == 1
    hung_up = {ours: gained[f"sglang:{name}_total"] - sum(m[ours] for m in metas) for ours, name in clients.items()}
    assert hung_up["prompt_tokens"] == 4 and hung_up["cached_tokens"] == 0 and hung_up["completion_tokens"] >= 1
    assert gained['mode="decode"'] == gained["sglang:generation_tokens_total"]
    assert gained['mode="prefill_compute"'] + gained['mode="prefill_cache"'] == gained["sglang:prompt_tokens_total"]
    assert value("sglang:num_running_reqs") == value("sglang:num_queue_reqs") == 0
    assert value("sglang:max_total_num_tokens") > 0


def test_in_batch_sharing_over_http(server: LiveServer) -> None:
    prefix = "The quick brown fox jumps over the lazy dog. " * 20
    texts = [f"{prefix} Question {i}:" for i in range(8)]
    body = {"text": texts, "sampling_params": {"max_new_tokens": 2, "temperature": 0}}
    cached = [answer["meta_info"]["cached_tokens"] for answer in server.post("/generate", body).json()]
    assert sorted(cached)[0] == 0
    assert all(count >= 160 for count in sorted(cached)[1:])


# ---- life and death; each with a server of its own, so the fixtures above stay whole ---------------------------------


def test_sigterm_drains() -> None:
    with live_server("demo") as own:
        with httpx.stream("POST", own.url + "/generate", json={**FRANCE, "stream": True}, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            own.process.send_signal(signal.SIGTERM)
            assert "data: [DONE]" in list(lines)
        assert own.process.wait(20) == 0


@pytest.mark.parametrize("victim", ["scheduler", "server"])
def test_nothing_survives_a_kill(victim: str) -> None:
    with live_server("demo") as own:
        children = own.children()
        if victim == "scheduler":
            own.child("scheduler").kill()
            assert own.process.wait(10) == 1
            assert "scheduler process" in own.log() and "SIGKILL" in own.log()
        else:
            own.process.kill()
            own.process.wait(5)
        _, alive = psutil.wait_procs(children, timeout=5)
        assert not alive


def test_a_busy_port_is_named_at_once(server: LiveServer) -> None:
    own = LiveServer("demo", "--port", str(server.port))
    assert own.process.wait(20) == 2
    assert f"--port {server.port} is in use" in own.log()
    assert "Traceback" not in own.log()


def test_too_little_memory_is_one_clear_line() -> None:
    own = LiveServer("demo", "--mem-fraction-static", "0.001")
    assert own.process.wait(60) == 1
    last = own.log().strip().splitlines()[-1]
    assert "not enough memory" in last and "--mem-fraction-static" in last
    assert "Traceback" not in own.log()


def test_context_longer_than_the_pool_warns_and_refuses_by_the_pool() -> None:
    with live_server("demo", "--context-length", "4096", "--max-total-tokens", "512") as own:
        assert "4096" in own.log() and "512" in own.log() and "warning" in own.log().lower()
        answer = own.post("/generate", {"input_ids": [5] * 1000})
        assert answer.status_code == 400 and "512" in answer.text
        assert own.post("/generate", FRANCE).status_code == 200


def test_only_the_http_port_listens_beyond_this_host() -> None:
    with live_server("demo") as own:
        processes = [psutil.Process(own.process.pid), *own.children()]
        ports = {c.laddr.port for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
        assert ports == {own.port}
        assert free_port() not in ports


def test_a_signal_during_the_load_ends_it_at_once() -> None:
    own = LiveServer("demo")
    deadline = time.monotonic() + 20
    while not own.children():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = own.children()
    began = time.monotonic()
    assert own.stop(signal.SIGINT) == 0
    assert time.monotonic() - began < 3
    assert "Traceback" not in own.log()
    _, alive = psutil.wait_procs(children, timeout=3)
    assert not alive


def test_a_second_signal_cuts_the_drain_and_streams_end_with_an_error() -> None:
    with live_server("demo") as own:
        with httpx.stream("POST", own.url + "/generate", json={**ENDLESS, "stream": True}, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            own.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            own.process.send_signal(signal.SIGINT)
            rest = list(lines)
        assert "abort" in rest[-4] or "error" in rest[-4]
        assert rest[-2] == "data: [DONE]"
        assert own.process.wait(10) == 0
        assert "Traceback" not in own.log()
