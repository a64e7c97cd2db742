"""The terminal chat against the routes and a scripted engine: answers, commands, errors, what the server is told."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixlm.base.errors import ConfigError, RadixError
from radixlm.tools import chat
from radixlm.tools.chat_client import Client, Conversation
from tests.wire.fake_manager import Script
from tests.wire.serving import Live, eventually, live_server


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_server(api_key="key", strict_model_name=True, enable_cache_report=True) as running:
        yield running


@pytest.fixture
def conversation(live: Live) -> Conversation:
    live.manager.script = lambda request: Script(cached_tokens=4)
    return Conversation(Client(live.base, "key"))


def typed(*lines: str) -> "chat.Callable[[str], str]":
    waiting = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    return read


def run(conversation: Conversation, *lines: str) -> str:
    out = io.StringIO()
    chat.talk(conversation, chat.Terminal(out, typed(*lines), fancy=False))
    return out.getvalue()


def test_turns_settings_and_timing(conversation: Conversation, live: Live) -> None:
    said = run(
        conversation,
        "/system Be brief.",
        "/set temperature 0.5",
        "/set stop none",
        "one \\",
        "two",
        "again",
        "/quit",
        "no",
    )
    assert said.count("Hello wörld") == 2
    assert "first token" in said and "(4 cached)" in said
    assert conversation.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one \ntwo"},
        {"role": "assistant", "content": "Hello wörld"},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "Hello wörld"},
    ]
    asked = live.manager.requests[-1]
    assert asked.sampling_params["temperature"] == 0.5 and asked.stream
    assert asked.text is not None and asked.text.count("Hello wörld") == 1


def test_reset_save_and_mistakes(conversation: Conversation, tmp_path: Path) -> None:
    said = run(conversation, "hi", f"/save {tmp_path}/a.json", "/reset", "/nonsense", "/set n 3", "/save", "/help")
    saved = json.loads((tmp_path / "a.json").read_text())
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant"]
    assert conversation.messages == []
    assert "no command /nonsense" in said and "n is not a setting" in said and "needs the name of a file" in said


def test_a_refused_request_is_told_and_changes_nothing(conversation: Conversation) -> None:
    said = run(conversation, "explode", "/set max_tokens -1", "hi")
    assert "roles must alternate" in said and "max_tokens must be at least 0" in said
    assert conversation.messages == []


def test_an_interrupted_answer_stops_at_the_server(conversation: Conversation, live: Live) -> None:
    live.manager.script = lambda request: Script(endless=True, pause_s=0.005)
    pieces = conversation.ask("tell me everything")
    assert next(pieces).text == "Hel"
    pieces.close()
    eventually(lambda: not live.manager.live)
    assert conversation.messages[-1]["role"] == "assistant" and conversation.messages[-1]["content"].startswith("Hel")


def test_once_prints_the_answer_and_nothing_else(conversation: Conversation) -> None:
    out, timing = io.StringIO(), io.StringIO()
    assert chat.once(conversation, "hi", out, timing) == 0
    assert out.getvalue() == "Hello wörld\n" and "in all" in timing.getvalue()
    with pytest.raises(ConfigError, match="nothing was asked"):
        chat.once(conversation, " \n", out, None)


def test_problems_have_a_cause(live: Live) -> None:
    with pytest.raises(RadixError, match=r"wants a key.*--api-key"):
        list(Conversation(Client(live.base, "wrong")).ask("hi"))
    with pytest.raises(RadixError, match="no answer from"):
        list(Conversation(Client("127.0.0.1:9", None)).ask("hi"))
    with pytest.raises(RadixError, match="not an http address"):
        list(Conversation(Client("ftp://x", None)).ask("hi"))


def test_a_command_line_that_contradicts_itself() -> None:
    for more in (["demo"], ["--port", "1"], ["--host", "x"]):
        with pytest.raises(ConfigError, match="alone"):
            chat.main([*more, "--url", "http://x"])
    with pytest.raises(ConfigError, match="bogus is not a setting"):
        chat.main(["--set", "bogus=3"])
    with pytest.raises(ConfigError, match="temperature: Expected `float"):
        chat.main(["--set", "temperature=abc"])
    with pytest.raises(ConfigError, match="unknown option --nonsense"):
        chat.main(["--nonsense"])
    with pytest.raises(ConfigError, match="a name and a value"):
        chat.main(["--set", "temperature"])


def test_host_port_and_the_key_of_the_environment(
    live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live.manager.script = lambda request: Script()
    host, _, port = live.base.removeprefix("http://").rpartition(":")
    monkeypatch.delenv("RADIXLM_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    assert chat.main(["--host", host, "--port", port, "-p", "hi", "--set", "temperature=0"]) == 0
    assert capsys.readouterr().out == "Hello wörld\n"
    monkeypatch.setenv("RADIXLM_API_KEY", "wrong")
    with pytest.raises(RadixError, match="wants a key"):
        chat.main(["--port", port, "-p", "hi"])


def test_from_a_pipe(live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    live.manager.script = lambda request: Script()
    monkeypatch.setattr("sys.stdin", io.StringIO("What is this?\n"))
    assert chat.main(["--url", live.base, "--api-key", "key"]) == 0
    assert capsys.readouterr().out == "Hello wörld\n"
    assert (live.manager.requests[-1].text or "").startswith("<user>What is this?")
