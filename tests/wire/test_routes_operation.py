"""What operators need: loads, deadlines, request logs, strict names, TLS, path prefixes, Retry-After."""

import json
import logging
import ssl
from pathlib import Path

import httpx
import pytest

from radixlm.config.groups import ServerConfig
from radixlm.protocol.messages import SchedulerStats
from radixlm.server.access import ACCESS_LOGGER
from radixlm.server.request_log import PART_CHARS, RequestLog, RequestLogSettings
from radixlm.server.run import Tls
from tests.wire.fake_manager import Script
from tests.wire.serving import eventually, live_server

DATA = Path(__file__).parent / "data"
STATS = SchedulerStats(
    time=5.0, step=9, num_running_reqs=2, num_queue_reqs=3, kv_used_tokens=256, max_total_num_tokens=1024
)


@pytest.fixture(scope="module")
def server():
    with live_server(launch={"device": "cpu"}) as live:
        yield live


@pytest.fixture
def live(server):
    server.manager.script = lambda request: Script()
    server.manager.stats = STATS
    return server


# ---- loads


def test_loads(live):
    answer = live.http.get("/v1/loads").json()
    assert (answer["accelerator"], answer["num_accelerators"], answer["version"]) == ("cpu", 0, "0.0.test")
    [load] = answer["loads"]
    assert (load["dp_rank"], load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 2, 3)
    assert (load["token_usage"], load["max_total_num_tokens"], load["max_running_requests"]) == (0.25, 1024, 8)
    assert load["queues"]["waiting"] == 3 and load["disaggregation"] == {"mode": "null"}
    assert load["memory"]["token_capacity"] == 1024


def test_loads_in_parts(live):
    [load] = live.http.get("/v1/loads?include=queues&dp_rank=0").json()["loads"]
    assert set(load) == {"timestamp", "dp_rank", "queues"}
    assert live.http.get("/v1/loads?dp_rank=1").json()["loads"] == []
    for query in ("include=core,nonsense", "dp_rank=x", "format=xml"):
        assert live.http.get(f"/v1/loads?{query}").status_code == 400
    live.manager.stats = None
    assert live.http.get("/v1/loads").json()["loads"] == []


def test_loads_for_prometheus(live):
    answer = live.http.get("/v1/loads?format=prometheus")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'sglang_num_running_reqs{dp_rank="0"} 2\n' in answer.text
    assert 'sglang_queues_waiting{dp_rank="0"} 3\n' in answer.text


# ---- deadlines


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "a"}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/api/generate", {"prompt": "a", "stream": False}),
    ],
)
def test_a_request_ends_at_its_deadline(live, path, body):
    live.manager.script = lambda request: Script(["x"], endless=True, pause_s=0.005)
    late = live.http.post(path, json=body, headers={"x-request-timeout": "0.05"})
    assert late.status_code == 503 and "0.05 s" in late.text and late.headers["retry-after"] == "1"
    assert not live.manager.live


def test_a_deadline_inside_a_stream_is_an_error_event(live):
    live.manager.script = lambda request: Script(["x"], endless=True, pause_s=0.005)
    body = {"prompt": "a", "stream": True}
    late = live.http.post("/v1/completions", json=body, headers={"x-request-timeout": "0.05"})
    events = [line.removeprefix("data: ") for line in late.text.splitlines() if line]
    assert late.status_code == 200 and events[-1] == "[DONE]"
    assert json.loads(events[-2])["error"]["code"] == 503 and not live.manager.live


def test_the_server_has_a_deadline_too():
    with live_server(request_timeout_s=0.05) as live:
        live.manager.script = lambda request: Script(["x"], endless=True, pause_s=0.005)
        headers = {"x-request-timeout": "50"}
        assert live.http.post("/generate", json={"text": "a"}, headers=headers).status_code == 503
        live.manager.script = lambda request: Script()
        assert live.generate(text="a").status_code == 200


@pytest.mark.parametrize("given", ["0", "-1", "x", "nan", "inf"])
def test_a_deadline_is_a_number_of_seconds(live, given):
    assert live.http.post("/generate", json={"text": "a"}, headers={"x-request-timeout": given}).status_code == 400


# ---- names, prefixes, drain


def test_strict_model_names():
    with live_server(strict_model_name=True) as live:
        for body in ({"model": "fake-model"}, {}):
            assert live.completions(prompt="a", **body).json()["model"] == "fake-model"
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/responses", {"input": "a"})):
            missing = live.http.post(path, json=body | {"model": "nobody"})
            assert missing.status_code == 404 and "fake-model" in missing.text
        assert live.chat("a", model="nobody").status_code == 404


def test_a_server_behind_a_proxy_that_strips_a_prefix():
    with live_server(root_path="/models/a") as live:
        assert live.http.get("/health").status_code == 200
        assert live.generate(text="a").status_code == 200


def test_draining_refuses_with_a_hint_when_to_come_back(live):
    live.manager.draining = True
    try:
        refused = live.generate(text="a")
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert live.http.get("/health").status_code == live.http.get("/ready").status_code == 503
    finally:
        live.manager.draining = False


# ---- logs


def test_the_access_log_leaves_prefixes_out(caplog):
    logger = logging.getLogger(ACCESS_LOGGER)
    with live_server(access_log_exclude_prefixes=("/health", "/metrics")) as live:
        logger.setLevel("INFO")
        try:
            for path in ("/health", "/health_generate", "/metrics", "/ping"):
                live.http.get(path)
            eventually(lambda: bool(caplog.records))
        finally:
            logger.setLevel("WARNING")
    assert [record.getMessage().split('"')[1] for record in caplog.records] == ["GET /ping HTTP/1.1"]


def test_requests_are_logged_by_level(tmp_path):
    log = RequestLog(RequestLogSettings(enabled=True, level=0, format="json"), [str(tmp_path / "logs")])
    with live_server(request_log=log) as live:
        long = "p" * (PART_CHARS // 2)
        live.manager.script = lambda request: Script([long] * 5)
        for level in (0, 1, 2, 3):
            set_up = live.http.post("/configure_logging", json={"log_requests_level": level})
            assert (set_up.status_code, set_up.content) == (200, b"")
            live.generate(text="a\nb", rid=f"r{level}", sampling_params={"temperature": 0})
        live.http.post("/configure_logging", json={"log_requests": False})
        live.generate(text="a", rid="silent")
    [file] = (tmp_path / "logs").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["event"], line["rid"]) for line in lines] == [
        (f"request.{event}", f"r{level}") for level in range(4) for event in ("received", "finished")
    ]
    finished = lines[1::2]
    assert all(line["out"]["completion_tokens"] == 5 * len(long) + 1 for line in finished)
    assert ["sampling_params" in line["obj"] for line in finished] == [False, True, True, True]
    assert [line["obj"].get("text") for line in finished] == [None, None, "a\nb", "a\nb"]
    assert [len(line["out"].get("text", "")) for line in finished] == [0, 0, PART_CHARS + 3, 5 * len(long)]


def test_requests_in_the_servers_own_log(caplog):
    with live_server(request_log=RequestLog(RequestLogSettings(enabled=True))) as live:
        caplog.set_level("INFO", "radixlm.server.request_log")
        live.generate(text="a\nb", rid="r1")
    received, finished = (record.getMessage() for record in caplog.records)
    assert received.startswith("Receive: rid='r1'") and "\n" not in received
    assert finished.startswith("Finish: rid='r1'") and "Hello wörld" in finished


def test_configuring_the_log_is_checked(live):
    for body in ({"log_requests_level": 4}, {"log_requests_format": "xml"}, {"dump_requests_folder": "/tmp"}):
        assert live.http.post("/configure_logging", json=body).status_code == 400
    before = logging.getLogger("radixlm").level
    try:
        assert live.http.post("/configure_logging", json={"log_level": "error"}).status_code == 200
        assert logging.getLogger("radixlm").level == logging.ERROR
    finally:
        logging.getLogger("radixlm").setLevel(before)


# ---- TLS


def test_tls():
    config = ServerConfig(ssl_keyfile=str(DATA / "test-key.pem"), ssl_certfile=str(DATA / "test-cert.pem"))
    with live_server(tls=Tls.of(config)) as live:
        trusting = ssl.create_default_context(cafile=str(DATA / "test-cert.pem"))
        assert httpx.get(f"https://localhost:{live.port}/ping", verify=trusting).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://localhost:{live.port}/ping")
