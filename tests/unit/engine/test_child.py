"""Children hear their one line, leave when the parent's pipe closes, and say how they ended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from radixlm.engine.child import Child

ECHO = """
import sys, time
from radixlm.engine.child import read_spec
spec = read_spec()
open({out!r}, "wb").write(spec)
time.sleep(60)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "echo_child.py").write_text(ECHO.format(out=str(tmp_path / "out")))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.getcwd()}")
    return "echo_child"


def wait_for(path: Path) -> bytes:
    deadline = time.monotonic() + 20
    while not path.exists() or not path.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_bytes()


def test_a_child_hears_its_line_and_leaves_with_the_pipe(module: str, tmp_path: Path) -> None:
    child = Child("echo", module, b'{"long": "' + b"x" * 200_000 + b'"}')
    assert wait_for(tmp_path / "out").endswith(b'"}\n')
    assert child.exit_status() is None
    child.end(timeout_s=5)
    assert child.exit_status() == 0
    child.end(timeout_s=1)  # harmless when it has ended


def test_a_child_may_be_told_later_or_never(module: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    never, later = Child("echo", module), Child("echo", module)
    later.tell(b"{}")
    assert wait_for(tmp_path / "out") == b"{}\n"
    later.end(timeout_s=5)
    never.end(timeout_s=20)
    assert never.exit_status() == 0
    assert not capfd.readouterr().err


def test_the_epitaph_names_the_signal(module: str, tmp_path: Path) -> None:
    child = Child("echo", module, b"{}")
    wait_for(tmp_path / "out")
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(5)
    assert child.epitaph() == f"echo process (pid {child.pid}) was killed by SIGKILL"


def test_a_child_does_not_outlive_a_killed_parent(module: str, tmp_path: Path) -> None:
    code = (
        "import time\nfrom radixlm.engine.child import Child\n"
        f"print(Child('echo', {module!r}, b'{{}}').pid, flush=True)\ntime.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_for(tmp_path / "out")
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
