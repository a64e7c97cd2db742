"""A server started for a measurement and ended with it. Passes flags on and knows none of them but host and port."""

import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from radixlm.base.errors import ConfigError, RadixError
from radixlm.config.cli import read_serve

SERVE = ("radixlm", "serve")
START_LIMIT_S = 600.0
END_S = 15.0
POLL_S = 0.1


class ServerProcess:
    """One `radixlm serve`; made when it answers. RadixError with its last words when it does not.

    Attributes:
        started_s: seconds from its start to its first answer.
    """

    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        start_limit_s: float = START_LIMIT_S,
        program: Sequence[str] = SERVE,
    ) -> None:
        """`program`: the Python module that serves, and its first words."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(self.command(words, program), stdout=file, stderr=subprocess.STDOUT)
        began = time.monotonic()
        try:
            while not self._answers():
                if not self.alive:
                    raise RadixError(f"no server: {self.last_line()}")
                if time.monotonic() - began > start_limit_s:
                    raise RadixError(f"no server within {start_limit_s:g} s: {self.last_line()}")
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise
        self.started_s = time.monotonic() - began

    def command(self, words: Sequence[str], program: Sequence[str]) -> list[str]:
        """What to run."""
        return [sys.executable, "-m", *program, *words, "--host", "127.0.0.1", "--port", str(self.port)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def last_line(self) -> str:
        """The last line that it wrote."""
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it wrote nothing"

    def stop(self) -> None:
        """End it, by force if it takes longer than END_S."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def launched(words: Sequence[str], start_limit_s: float = START_LIMIT_S) -> Iterator[ServerProcess]:
    """A server for the length of a `with`; its log goes with it."""
    with tempfile.TemporaryDirectory(prefix="radixlm-") as folder:
        server = ServerProcess(words, Path(folder) / "server.log", start_limit_s)
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def at(url: str | None, words: Sequence[str], always: Sequence[str] = ()) -> Iterator[str]:
    """The URL of a server: the one that runs already, or one started for the length of a `with`.

    `words`: how the user wants it; ConfigError for any beside a URL, and before anything starts for those that no
    server takes. `always`: what every server is started with.
    """
    if url:
        if words:
            raise ConfigError(f"with --base-url no server is started, so {words[0]} would do nothing")
        yield url.rstrip("/")
        return
    read_serve([*words, *always])
    with launched([*words, *always]) as server:
        yield server.url
