"""A real server in a subprocess, for tests and for people: start it, talk to it, look at its processes, end it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil

START_S = 120.0


class LiveServer:
    """`radixlm serve` on a free port. `log()` is what it has written to stderr so far."""

    def __init__(self, model: str, *flags: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the server)
        command = [sys.executable, "-m", "radixlm", "serve", model, "--port", str(self.port), *flags]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env={**os.environ})

    def wait_ready(self) -> "LiveServer":
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log()
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(self.url + "/ready", timeout=1).status_code == 200:
                    return self
            time.sleep(0.1)
        raise AssertionError(f"not ready: {self.log()}")

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, role: str) -> psutil.Process:
        """The child whose title names `role`."""
        return next(c for c in self.children() if role in " ".join(c.cmdline()) or role in c.name())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **options)

    def post(self, path: str, body: dict[str, Any], **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=120, **options)

    def internal_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.get("/server_info").json()["internal_states"][0]
        return state

    def settle(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """Wait until nothing runs and nothing waits; the scheduler's state then."""
        deadline = time.monotonic() + timeout_s
        while True:
            state = self.internal_state()
            if state["num_running_reqs"] == 0 and state["num_queue_reqs"] == 0:
                return state
            assert time.monotonic() < deadline, state
            time.sleep(0.1)

    def check_whole(self) -> None:
        """Nothing runs or waits, an ordinary request works, and all pages come back with a flush."""
        self.settle()
        assert self.get("/health").status_code == 200
        answer = self.post("/generate", {"text": "The sky is", "sampling_params": {"max_new_tokens": 4}})
        assert answer.status_code == 200 and answer.json()["meta_info"]["completion_tokens"] >= 1
        self.settle()
        assert self.post("/flush_cache", {}).status_code == 200
        state = self.internal_state()
        assert state["kv_available_tokens"] == state["max_total_num_tokens"]
        assert state["conservation_errors_total"] == 0

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 30.0) -> int:
        """Send a signal and wait; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextlib.contextmanager
def live_server(model: str, *flags: str) -> Iterator[LiveServer]:
    server = LiveServer(model, *flags)
    try:
        yield server.wait_ready()
    finally:
        server.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
