"""A real uvicorn around the routes and a FakeManager, on a free port, in a thread of its own."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from radixlm.observability.metrics import Metrics
from radixlm.server.app import build_app
from radixlm.server.run import HttpServer, Tls, bind, loop_factory
from radixlm.server.services import Services
from tests.wire.fake_manager import FakeManager, FakeTemplate


def make_services(manager: FakeManager, **changes: Any) -> Services:
    settings: dict[str, Any] = {
        "manager": manager,
        "template": FakeTemplate(),
        "metrics": Metrics("fake-model"),
        "model_path": "/models/fake",
        "served_model_name": "fake-model",
        "version": "0.0.test",
        "enable_metrics": True,
    }
    return Services(**(settings | changes))


class Live:
    """A running server: its manager, and a client that knows its address."""

    def __init__(self, manager: FakeManager, services: Services, server: HttpServer, port: int) -> None:
        self.manager = manager
        self.server = server
        self.services = services
        self.port = port
        self.base = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.base, timeout=20)

    def generate(self, **body: Any) -> httpx.Response:
        return self.http.post("/generate", json=body)

    def completions(self, **body: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json=body)

    def chat(self, *contents: str, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content} for content in contents]
        return self.http.post("/v1/chat/completions", json={"messages": messages} | body)


@contextmanager
def live_server(
    manager: FakeManager | None = None, root_path: str = "", tls: Tls | None = None, **changes: Any
) -> Iterator[Live]:
    manager = manager or FakeManager()
    services = make_services(manager, **changes)
    listening = bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = HttpServer(build_app(services), listening, "warning", root_path, tls)

    def run() -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(server.serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    live = Live(manager, services, server, port)
    try:
        eventually(lambda: server.started)
        yield live
    finally:
        live.http.close()
        server.stop(force=True)
        thread.join(10)
        assert not thread.is_alive()


def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> float:
    """Wait for `condition`; the seconds it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, "did not come true in time"
        time.sleep(0.005)
    return time.monotonic() - start
