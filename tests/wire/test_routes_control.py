"""Health, information, control, keys, CORS, the access log and metrics, over a real socket."""

import logging
import re
import threading
import time

import httpx
import pytest

from radixlm.server.access import ACCESS_LOGGER
from radixlm.server.app import rows
from tests.wire.fake_manager import FakeManager, Script
from tests.wire.serving import eventually, live_server, make_services


@pytest.fixture(scope="module")
def server():
    with live_server(launch={"api_key": "***", "port": 1}, launch_command="serve x") as live:
        yield live


@pytest.fixture
def live(server):
    server.manager.script = lambda request: Script()
    return server


def test_health_follows_the_pulse_and_needs_no_generation(live):
    started = time.monotonic()
    before = len(live.manager.requests)
    assert live.http.get("/health").status_code == 200
    live.manager.pulse_age_s = 21.0
    assert live.http.get("/health").status_code == 503
    assert live.http.get("/ready").status_code == 200
    live.manager.pulse_age_s = 0.0
    assert live.http.get("/health").status_code == 200
    assert len(live.manager.requests) == before
    assert time.monotonic() - started < 1


def test_health_generate_generates_one_token(live):
    assert live.http.get("/health_generate").status_code == 200
    probe = live.manager.requests[-1]
    assert probe.rid.startswith("HEALTH_CHECK_")
    assert probe.sampling_params == {"max_new_tokens": 1, "temperature": 0.0}


def test_health_generate_gives_up(live, monkeypatch):
    monkeypatch.setattr("radixlm.server.health.HEALTH_GENERATE_TIMEOUT_S", 0.1)
    live.manager.script = lambda request: Script(pause_s=60)
    assert live.http.get("/health_generate").status_code == 503
    assert not live.manager.live


def test_information(live):
    info = live.http.get("/server_info").json()
    assert info == live.http.get("/get_server_info").json()
    assert (info["capacity_tokens"], info["max_req_input_len"], info["max_total_num_tokens"]) == (900, 899, 1024)
    assert (info["page_size"], info["max_running_requests"], info["context_len"]) == (16, 8, 1000)
    assert (info["status"], info["port"], info["version"]) == ("ready", 1, "0.0.test")
    assert info["internal_states"] == [{"step": 7, "last_gen_throughput": None}]
    model = live.http.get("/model_info").json()
    assert model == live.http.get("/get_model_info").json()
    assert model["model_path"] == "/models/fake" and model["architectures"] == ["LlamaForCausalLM"]
    assert live.http.get("/").json() == "RadixLM is running"
    assert live.http.head("/").status_code == 200 and live.http.head("/").content == b""
    assert live.http.get("/ping").status_code == 200


def test_server_info_has_no_secret():
    with live_server(api_key="sesame", launch={"api_key": "sesame"}, launch_command="serve --api-key sesame") as live:
        shown = live.http.get("/server_info", headers={"authorization": "Bearer sesame"})
        assert shown.status_code == 200 and "sesame" not in shown.text


def test_models(live):
    [card] = live.http.get("/v1/models").json()["data"]
    assert (card["id"], card["root"], card["max_model_len"]) == ("fake-model", "fake-model", 1000)
    assert live.http.get("/v1/models/fake-model").json()["id"] == "fake-model"
    missing = live.http.get("/v1/models/a/b")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"


def test_flush(live):
    for method in ("GET", "POST"):
        done = live.http.request(method, "/flush_cache")
        assert done.status_code == 200 and done.text == "Cache flushed.\n"
    live.manager.busy = True
    assert live.http.post("/flush_cache").status_code == 400
    timer = threading.Timer(0.2, lambda: setattr(live.manager, "busy", False))
    timer.start()
    assert live.http.post("/flush_cache?timeout=5").status_code == 200
    for timeout in ("-1", "x", "nan", "1e9"):
        assert live.http.post(f"/flush_cache?timeout={timeout}").status_code == 400


def test_pause_and_continue(live):
    paused = live.http.post("/pause_generation", json={"mode": "retract"})
    assert paused.json() == {"message": "Generation paused successfully.", "status": "ok"}
    assert (live.http.get("/ready").status_code, live.http.get("/health").status_code) == (503, 200)
    continued = live.http.post("/continue_generation", json={"torch_empty_cache": True})
    assert continued.json() == {"message": "Generation continued successfully.", "status": "ok"}
    assert live.http.get("/ready").status_code == 200
    assert live.http.post("/pause_generation").status_code == live.http.post("/continue_generation").status_code == 200
    assert live.http.post("/pause_generation", json={"mode": "nap"}).status_code == 400
    assert live.manager.pauses == ["retract", "resume", "abort", "resume"]


def test_abort_says_what_it_stopped(live):
    live.manager.script = lambda request: Script(["x"], endless=True, pause_s=0.005)
    answers = []

    def ask(rid):
        answers.append(httpx.post(f"{live.base}/generate", json={"text": "a", "rid": rid}).json())

    threads = [threading.Thread(target=ask, args=(rid,)) for rid in ("ab", "abc", "x")]
    for thread in threads:
        thread.start()
    eventually(lambda: len(live.manager.live) == 3)
    assert live.http.post("/abort_request", json={"rid": "nobody"}).json() == {"aborted": 0}
    assert live.http.post("/abort_request", json={}).json() == {"aborted": 0}
    assert live.http.post("/abort_request", json={"rid": "ab"}).json() == {"aborted": 1}
    assert {choice.rid for choice in live.manager.live.values()} == {"abc", "x"}
    assert live.http.post("/abort_request", json={"abort_all": True}).json() == {"aborted": 2}
    for thread in threads:
        thread.join(5)
    assert [answer["meta_info"]["finish_reason"]["type"] for answer in answers] == ["abort"] * 3


@pytest.mark.parametrize(
    ("keys", "allowed"),
    [
        ({}, {"none": ("public", "user", "admin"), "user": ("public", "user", "admin")}),
        ({"api_key": "user"}, {"none": ("public",), "user": ("public", "user", "admin")}),
        (
            {"api_key": "user", "admin_api_key": "admin"},
            {"none": ("public",), "user": ("public", "user"), "admin": ("public", "user", "admin")},
        ),
    ],
)
def test_every_route_asks_for_its_level(keys, allowed):
    """Walks the whole table, from this machine."""
    with live_server(**keys) as live:
        for who, levels in allowed.items():
            headers = {} if who == "none" else {"authorization": f"Bearer {who}"}
            for row in rows(live.services):
                path = row.path.replace("{model:path}", "fake-model").replace("{response_id}", "x")
                status = live.http.request(row.methods[0], path, headers=headers).status_code
                assert (status not in (401, 403)) == (row.level in levels), (who, path, status)


def test_aborting_everything_needs_the_admin_level():
    with live_server(api_key="user", admin_api_key="admin") as live:
        user, admin = ({"authorization": f"Bearer {key}"} for key in ("user", "admin"))
        assert live.http.post("/abort_request", json={"rid": "x"}, headers=user).status_code == 200
        assert live.http.post("/abort_request", json={"abort_all": True}, headers=user).status_code == 403
        assert live.http.post("/abort_request", json={"abort_all": True}, headers=admin).status_code == 200


def test_without_keys_a_foreign_page_may_not_control_the_server(live):
    foreign = {"origin": "https://elsewhere.example"}
    refused = live.http.post("/flush_cache", headers=foreign)
    assert refused.status_code == 403 and "--api-key" in refused.json()["error"]
    assert live.http.post("/generate", json={"text": "a"}, headers=foreign).status_code == 200


def test_cors(live):
    asked = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}
    preflight = live.http.options("/generate", headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://elsewhere.example"
    answer = live.http.post("/generate", json={"text": "a"}, headers={"origin": "https://elsewhere.example"})
    assert answer.headers["access-control-allow-origin"] in ("*", "https://elsewhere.example")


def test_request_ids_and_the_access_log(live, caplog):
    logger = logging.getLogger(ACCESS_LOGGER)
    logger.setLevel("INFO")
    try:
        answer = live.http.post("/generate", json={"text": "a"}, headers={"x-request-id": "trace-7"})
        assert answer.headers["x-request-id"] == "trace-7"
        assert live.http.get("/health").headers["x-request-id"] != live.http.get("/health").headers["x-request-id"]
        assert live.http.get("/a%0Ab").status_code == 404
        eventually(lambda: any("%0Ab" in record.getMessage() for record in caplog.records))
    finally:
        logger.setLevel("WARNING")
    pattern = r'127\.0\.0\.1:\d+ - "POST /generate HTTP/1\.1" 200 \d+\.\d{3}s id=trace-7'
    assert any(re.fullmatch(pattern, record.getMessage()) for record in caplog.records)
    assert not any("\n" in record.getMessage() for record in caplog.records)


def test_metrics_route(live):
    text = live.http.get("/metrics").text
    assert 'sglang:http_responses_total{endpoint="/generate",method="POST",status_code="200"}' in text
    assert "sglang:http_requests_active 1.0" in text  # this one
    with live_server(enable_metrics=False) as plain:
        assert plain.http.get("/metrics").status_code == 404


def test_the_table_is_sound():
    table = rows(make_services(FakeManager()))
    assert len({(row.path, method) for row in table for method in row.methods}) == sum(
        len(row.methods) for row in table
    )
    assert {row.path for row in table if row.level == "public"} == {"/health", "/health_generate", "/ready", "/metrics"}
    assert {row.path for row in table if row.level == "admin"} == {
        "/flush_cache",
        "/configure_logging",
        "/get_weights_by_name",
        "/start_profile",
        "/stop_profile",
        "/pause_generation",
        "/continue_generation",
    }
