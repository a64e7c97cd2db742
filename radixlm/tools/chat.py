"""`radixlm chat`: talk to a model in the terminal. Knows the terminal; the conversation itself is in chat_client."""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from radixlm.base.client_key import KEY_HELP, client_key
from radixlm.base.errors import ConfigError, RadixError
from radixlm.config import commandline
from radixlm.tools.chat_client import Client, Conversation

DEFAULT_PORT = 30000
START_S = 1800.0
HISTORY_LINES = 2000
HELP = """  /reset            begin a new conversation
  /system [TEXT]    set the system prompt and begin anew; without TEXT there is none
  /set              show the settings
  /set NAME VALUE   set a field of the request: temperature 0.7, max_tokens 500, seed 1 ...; VALUE none removes it
  /save FILE        write the conversation as JSON
  /help             this
  /quit             leave (also Ctrl-D)
Ctrl-C stops an answer. A line that ends with \\ goes on in the next."""


class Terminal:
    """Where a chat is shown. `fancy`: escape codes may be used."""

    def __init__(self, out: TextIO, read: Callable[[str], str], fancy: bool) -> None:
        """`read` shows a prompt and returns a line; EOFError at the end."""
        self._out = out
        self._read = read
        self._fancy = fancy

    def read(self) -> str:
        """What the user types; lines that end with a backslash go on. EOFError at the end."""
        lines = [self._read("> ")]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._read(". "))
        return "\n".join(lines).strip()

    def say(self, text: str, faint: bool = False, end: str = "\n") -> None:
        self._out.write(f"\x1b[2m{text}\x1b[0m{end}" if faint and self._fancy else f"{text}{end}")
        self._out.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `radixlm chat`; the exit code. RadixError when the server cannot be reached or does not want to."""
    asked, rest = _parser().parse_known_args(arguments)
    if rest and asked.model is None:
        raise ConfigError(f"radixlm chat: unknown option {rest[0]}")
    if asked.url is not None and (asked.model, asked.host, asked.port) != (None, None, None):
        raise ConfigError("radixlm chat: give the --url of a server alone, without MODEL, --host or --port")
    if asked.model is not None and asked.host is not None:
        raise ConfigError("radixlm chat: a MODEL is served on this machine, for the chat alone: --host has no place")
    key = client_key(asked.api_key)
    there = asked.url or f"http://{asked.host or '127.0.0.1'}:{asked.port or DEFAULT_PORT}"
    settings = dict(_setting(*text.partition("=")[::2]) for text in asked.set)
    with _server(asked.model, rest, asked.api_key, asked.port) if asked.model else contextlib.nullcontext(there) as url:
        conversation = Conversation(Client(url, key), asked.system, settings)
        if asked.prompt is not None or not sys.stdin.isatty():
            return once(
                conversation, asked.prompt or sys.stdin.read(), sys.stdout, sys.stderr if asked.timing else None
            )
        with _history():
            talk(conversation, Terminal(sys.stdout, input, sys.stdout.isatty()))
    return 0


def once(conversation: Conversation, text: str, out: TextIO, timing: TextIO | None) -> int:
    """Ask one thing: the answer goes to `out` and nothing else does."""
    if not text.strip():
        raise ConfigError("radixlm chat: nothing was asked")
    ended = "\n"
    for piece in conversation.ask(text):
        if not piece.thinking:
            out.write(piece.text)
            out.flush()
            ended = piece.text
    if not ended.endswith("\n"):
        out.write("\n")
    if timing is not None:
        print(conversation.timing, file=timing)
    return 0


def talk(conversation: Conversation, terminal: Terminal) -> None:
    """Read, answer, and so on until the end of input or /quit."""
    terminal.say(f"{conversation.client.url} — /help lists the commands", faint=True)
    while True:
        try:
            text = terminal.read()
        except EOFError:
            terminal.say("")
            return
        except KeyboardInterrupt:
            terminal.say("  (Ctrl-D or /quit leaves)", faint=True)
            continue
        if text in ("/quit", "/exit"):
            return
        if not text:
            continue
        try:
            if text.startswith("/"):
                terminal.say(command(conversation, text), faint=True)
            else:
                _answer(conversation, terminal, text)
        except RadixError as error:
            terminal.say(str(error))


def _answer(conversation: Conversation, terminal: Terminal, text: str) -> None:
    pieces = conversation.ask(text)
    stopped = ""
    try:
        for piece in pieces:
            terminal.say(piece.text, faint=piece.thinking, end="")
    except KeyboardInterrupt:
        stopped = ", stopped"
    finally:
        pieces.close()
    terminal.say(f"\n[{conversation.timing}{stopped}]", faint=True)


def command(conversation: Conversation, text: str) -> str:
    """Do what a line with a slash says; what to tell the user. RadixError when it cannot be done."""
    name, _, rest = text.partition(" ")
    rest = rest.strip()
    match name:
        case "/help":
            return HELP
        case "/reset":
            conversation.turns.clear()
            return "a new conversation"
        case "/system":
            conversation.system = rest or None
            conversation.turns.clear()
            return f"a new conversation, {'with this' if rest else 'without a'} system prompt"
        case "/set":
            if rest:
                field, _, value = rest.replace("=", " ", 1).partition(" ")
                field, parsed = _setting(field, value.strip())
                conversation.settings.pop(field, None)
                if parsed is not None:
                    conversation.settings[field] = parsed
            return json.dumps(conversation.settings)
        case "/save":
            return _save(conversation, rest)
    raise RadixError(f"there is no command {name}; /help lists them")


def _save(conversation: Conversation, name: str) -> str:
    if not name:
        raise RadixError("/save needs the name of a file")
    path = Path(name).expanduser()
    content = {"messages": conversation.messages, "settings": conversation.settings}
    try:
        path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise RadixError(f"{path}: {error.strerror}") from None
    return f"{len(conversation.messages)} messages in {path}"


def _setting(name: str, value: str) -> tuple[str, Any]:
    """A field of the request; the value is JSON where it reads as such, otherwise text. None removes it.

    ConfigError for a field that the chat route has not, and for a value of another type than its own.
    """
    from radixlm.server.openai.chat import ChatBody  # takes half a second, which a chat without settings saves

    types = {field.name: field.type for field in msgspec.structs.fields(ChatBody)}
    if not name or not value:
        raise ConfigError("a setting is a name and a value: temperature 0.7")
    if name not in types or name in ("messages", "stream", "stream_options", "model", "n"):
        raise ConfigError(f"{name} is not a setting of a chat")
    if value == "none":
        return name, None
    try:
        read = json.loads(value)
    except ValueError:
        read = value
    try:
        return name, msgspec.convert(read, types[name])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {error}") from None


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Line editing, with the lines of earlier chats, where there is a readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file = state / "radixlm" / "chat_history"
    readline.set_history_length(HISTORY_LINES)
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)


@contextlib.contextmanager
def _server(model: str, flags: Sequence[str], key: str | None, port: int | None) -> Iterator[str]:
    """A server of `model` while the chat lasts, on a free port unless one is given; its URL. RadixError when it does
    not start."""
    if port is None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    command = [sys.executable, "-m", "radixlm", "serve", model, "--port", str(port), *flags]
    command += ["--api-key", key] if key else []
    command += [] if "--log-level" in flags else ["--log-level", "warning"]
    print(f"Starting {model} ...", file=sys.stderr, flush=True)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # Ctrl-C is for the chat
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while not Client(url).ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RadixError(f"the server of {model} did not start")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "radixlm chat",
        description="Talk to a model in the terminal. Piped text is one question; then only the answer is printed.",
        epilog=f"commands:\n{HELP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", nargs="?", help="serve this model for the chat; further options are those of serve")
    parser.add_argument("--url", "--base-url", help="a running server, instead of host and port")
    parser.add_argument("--host", help="a running server's address (127.0.0.1)")
    parser.add_argument("--port", type=int, help=f"its port ({DEFAULT_PORT}); with MODEL the port to serve on")
    parser.add_argument("--api-key", help=KEY_HELP)
    parser.add_argument("--system", help="system prompt")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a field of every request")
    parser.add_argument("-p", "--prompt", help="ask this one thing and leave")
    parser.add_argument("--timing", action="store_true", help="with piped text or -p: tell the timing on stderr")
    return parser


if __name__ == "__main__":
    sys.exit(commandline.command(main, None))
