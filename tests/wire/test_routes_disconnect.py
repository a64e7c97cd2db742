"""A client that hangs up ends its work within a second, whatever it was doing."""

import json
import socket

import pytest

from tests.wire.fake_manager import Script
from tests.wire.serving import eventually, live_server

BODIES = {
    "/generate": {"text": "a", "sampling_params": {"n": 4}},
    "/v1/completions": {"prompt": ["a", "b"], "n": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "n": 4},
}


@pytest.fixture(scope="module")
def server():
    with live_server() as live:
        yield live


@pytest.fixture
def live(server):
    server.manager.script = lambda request: Script(["x"], endless=True, pause_s=0.005)
    server.manager.aborted.clear()
    return server


def post(live, path, body):
    """A connection with the request sent, nothing read yet."""
    content = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", live.port), timeout=5)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("path", list(BODIES))
def test_hanging_up_on_a_stream_aborts_every_choice(live, path):
    connection = post(live, path, BODIES[path] | {"stream": True})
    received = b""
    while received.count(b"data: ") < 5:
        received += connection.recv(4096)
    assert len(live.manager.live) == 4
    connection.close()
    assert eventually(lambda: not live.manager.live) < 1.0
    assert len(live.manager.aborted) == 4


@pytest.mark.parametrize("path", list(BODIES))
def test_hanging_up_without_streaming_aborts_every_choice(live, path):
    connection = post(live, path, BODIES[path])
    eventually(lambda: len(live.manager.live) == 4)
    connection.close()
    assert eventually(lambda: not live.manager.live) < 1.0


def test_hanging_up_before_the_first_token(live):
    live.manager.script = lambda request: Script(["x"], endless=True, pause_s=60)
    connection = post(live, "/generate", {"text": "a", "stream": True})
    eventually(lambda: len(live.manager.live) == 1)
    connection.close()
    assert eventually(lambda: not live.manager.live) < 1.0


def test_hanging_up_in_the_middle_of_the_body(live):
    connection = socket.create_connection(("127.0.0.1", live.port), timeout=5)
    connection.sendall(b'POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"text"')
    connection.close()
    assert live.http.get("/health").status_code == 200


def test_background_requests_outlive_their_client(live):
    live.manager.script = lambda request: Script(["x"] * 20, pause_s=0.01)
    connection = post(live, "/generate", {"text": "a", "background": True})
    eventually(lambda: len(live.manager.live) == 1)
    connection.close()
    eventually(lambda: not live.manager.live)
    assert not live.manager.aborted


def test_a_slow_reader_does_not_stop_others_and_loses_nothing(live):
    live.manager.script = lambda request: Script(["Y" * 20_000] * 200)  # more than the sockets buffer
    live.manager.requests.clear()
    slow = post(live, "/v1/completions", {"prompt": "a", "stream": True})
    eventually(lambda: bool(live.manager.requests) and not live.manager.live)
    live.manager.script = lambda request: Script()
    assert live.generate(text="b").json()["text"] == "Hello wörld"
    received = b""
    while not received.endswith(b"0\r\n\r\n"):
        received += slow.recv(65536)
    slow.close()
    assert received.count(b"Y") == 4_000_000
    assert received.count(b'"finish_reason":"stop"') == 1
    assert received.count(b"data: [DONE]") == 1


def test_stopping_the_server_lets_open_streams_end(live):
    with live_server() as stopping:
        stopping.manager.script = lambda request: Script(["x"] * 30, pause_s=0.01)
        connection = post(stopping, "/v1/completions", {"prompt": "a", "stream": True})
        received = connection.recv(4096)
        stopping.server.stop()
        while not received.endswith(b"0\r\n\r\n"):
            received += connection.recv(4096)
        connection.close()
        assert received.count(b"data: [DONE]") == 1 and received.count(b'"text":"x') >= 1

        def refuses():
            try:
                socket.create_connection(("127.0.0.1", stopping.port), timeout=1).close()
            except ConnectionRefusedError:
                return True
            return False

        eventually(refuses)


def test_two_hundred_streams_a_third_of_them_hung_up(live):
    live.manager.script = lambda request: Script(["x"] * 30, pause_s=0.02)
    connections = [post(live, "/v1/completions", {"prompt": "a", "stream": True}) for _ in range(200)]
    eventually(lambda: len(live.manager.requests) >= 200)
    for connection in connections[::3]:
        connection.close()
    ended = 0
    for connection in (one for index, one in enumerate(connections) if index % 3):
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += connection.recv(65536)
        connection.close()
        ended += received.count(b"data: [DONE]")
    assert ended == 133
    eventually(lambda: not live.manager.live, within_s=1)
