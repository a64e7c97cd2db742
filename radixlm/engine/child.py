"""Child processes that die with their parent: how they are started, watched and ended. Knows no role.

The parent writes one line of JSON to the child's standard input and keeps the pipe open; the child reads the line and
leaves as soon as the pipe closes, whatever ended the parent. No pickle, no fork, and no `__main__` guard in user code.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

STDIN = 0


class Child:
    """One child process, `name` being its role in messages to people. `began_s`: monotonic, when it was started."""

    def __init__(
        self,
        name: str,
        module: str,
        spec: bytes | None = None,
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        """Start `python -m module arguments` and tell it `spec`; None: that comes later, and it imports meanwhile."""
        self.name = name
        self.began_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # a Ctrl-C at the terminal is for the parent, which drains first
        )
        if spec is not None:
            self.tell(spec)

    def tell(self, spec: bytes) -> None:
        """Hand it its one line, once. Harmless when it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(spec + b"\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_status(self) -> int | None:
        """None while it runs; negative is the signal that ended it."""
        return self._process.poll()

    def epitaph(self) -> str:
        """How it ended, for a log line; call it only when it has."""
        status = self._process.poll()
        if status is not None and status < 0:
            return f"{self.name} process (pid {self.pid}) was killed by {signal.Signals(-status).name}"
        return f"{self.name} process (pid {self.pid}) ended with exit code {status}"

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within `timeout_s`."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, timeout_s: float) -> None:
        """Close its standard input (it leaves by itself), and kill it if it has not within `timeout_s`."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        if not self.wait(timeout_s):
            self._process.kill()
            self._process.wait()


def read_spec() -> bytes:
    """In a child: the parent's line. The process ends itself when the parent's end of the pipe closes, now or later."""
    spec = bytearray()
    while not spec.endswith(b"\n"):
        piece = os.read(STDIN, 65536)
        if not piece:
            os._exit(0)
        spec += piece
    threading.Thread(target=_leave_with_parent, name="parent-watch", daemon=True).start()
    return bytes(spec)


def _leave_with_parent() -> None:
    while os.read(STDIN, 65536):  # not sys.stdin: its lock, held by a daemon thread, would break the interpreter's exit
        continue
    os._exit(0)
