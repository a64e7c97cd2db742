"""A headless Chromium, driven through its DevTools protocol: open a page, run JavaScript in it, take its picture."""

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_S = 60.0


def find_browser() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Page:
    """One tab. `problems` are the console's errors, uncaught exceptions and refused loads so far."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.problems: list[str] = []
        self._socket = socket
        self._calls = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        call = next(self._calls)
        answer = self._waiting[call] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": call, "method": method, "params": params})
        return await asyncio.wait_for(answer, 60)

    async def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log"):
            await self.send(f"{domain}.enable")
        await self.send("Page.navigate", url=url)
        await self.until(f"location.href.startsWith({url!r}) && document.readyState == 'complete'")

    async def run(self, expression: str) -> Any:
        """The value of a JavaScript expression (promises are awaited)."""
        result = await self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, expression: str, within_s: float = 30.0) -> Any:
        """Wait until a JavaScript expression is true; its value."""
        deadline = time.monotonic() + within_s
        while not (value := await self.run(expression)):
            assert time.monotonic() < deadline, f"{expression} did not become true; problems: {self.problems}"
            await asyncio.sleep(0.1)
        return value

    async def look(self, width: int, height: int, dark: bool = False, phone: bool = False) -> None:
        """Set the window's size and colour scheme."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, path: Path, whole: bool = True) -> None:
        shot = await self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                self._waiting.pop(event["id"]).set_result(event.get("result", {}))
            elif event["method"] == "Runtime.exceptionThrown":
                self.problems.append(str(event["params"]["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning"):
                self.problems.append(str(event["params"]["args"]))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                self.problems.append(f"{event['params']['entry']['text']} {event['params']['entry'].get('url', '')}")


@asynccontextmanager
async def browser_page(program: str) -> AsyncIterator[Page]:
    """A new browser with one empty tab; it is gone afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        command = [program, *flags, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = await _port(Path(profile), process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tab = next(tab for tab in await answer.json() if tab["type"] == "page")
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    try:
                        yield page
                    finally:
                        await page.close()
        finally:
            process.terminate()
            process.wait(20)


async def _port(profile: Path, process: "subprocess.Popen[bytes]") -> int:
    deadline, file = time.monotonic() + START_S, profile / "DevToolsActivePort"
    while not (file.exists() and file.read_text().strip()):
        assert process.poll() is None and time.monotonic() < deadline, "the browser did not start"
        await asyncio.sleep(0.1)
    return int(file.read_text().split()[0])
