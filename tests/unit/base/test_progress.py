"""A bar on a terminal, lines in the log elsewhere, and the items come through unchanged."""

import io
import logging

import pytest

from radixlm.base import progress

LOG = logging.getLogger("test-progress")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    caplog.set_level(logging.INFO)
    assert list(progress.watched([10, 30, 60], "weights", 100, LOG, size=lambda item: item)) == [10, 30, 60]
    assert [record.getMessage() for record in caplog.records] == [
        "weights: 10 % after 0 s",
        "weights: 40 % after 0 s",
        "weights: 100 % after 0 s",
    ]


def test_what_is_quick_leaves_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert list(progress.watched(range(3), "graphs", 3, LOG)) == [0, 1, 2]
    assert caplog.records == []


def test_a_bar_on_a_terminal_unless_the_log_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    LOG.setLevel(logging.INFO)
    assert list(progress.watched(range(3), "graphs", 3, LOG)) == [0, 1, 2]
    assert "graphs" in terminal.getvalue()
    shown = terminal.getvalue()
    LOG.setLevel(logging.WARNING)
    assert list(progress.watched(range(3), "graphs", 3, LOG)) == [0, 1, 2]
    assert terminal.getvalue() == shown
