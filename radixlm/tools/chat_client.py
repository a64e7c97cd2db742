"""A conversation with a server over /v1/chat/completions: messages, settings, one answer at a time. Prints nothing."""

import json
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from radixlm.base.client_key import check_key
from radixlm.base.errors import RadixError

CONNECT_S = 10.0


@dataclass
class Timing:
    """One answer's times in seconds and its counts; None where the server did not say."""

    first_token_s: float | None = None
    total_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None

    def __str__(self) -> str:
        parts: list[str] = []
        if self.first_token_s is not None:
            parts.append(f"first token {_seconds(self.first_token_s)}")
        if self.output_tokens is not None:
            decode_s = self.total_s - (self.first_token_s or 0.0)
            if self.output_tokens > 1 and self.first_token_s is not None and decode_s > 0.001:
                parts.append(f"{(self.output_tokens - 1) / decode_s:.1f} tokens/s")
            cached = f" ({self.cached_tokens} cached)" if self.cached_tokens else ""
            parts.append(f"{self.prompt_tokens}{cached} -> {self.output_tokens} tokens")
        parts.append(f"{_seconds(self.total_s)} in all")
        if self.finish_reason == "length":
            parts.append("cut off at max_tokens")
        return ", ".join(parts)


@dataclass(frozen=True)
class Piece:
    """Some text of an answer; `thinking` is what a reasoning parser set apart."""

    text: str
    thinking: bool = False


@dataclass
class Client:
    """Where the server is. `key` None sends none."""

    url: str
    key: str | None = None

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[HTTPConnection, HTTPResponse]:
        """An open answer with status 200. RadixError, with the server's own words, for everything else."""
        return self._send("POST", path, json.dumps(body))

    def _send(self, method: str, path: str, body: str | None = None) -> tuple[HTTPConnection, HTTPResponse]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        connection, prefix = self._connect()
        try:
            connection.request(method, prefix + path, body, headers)
            if connection.sock is not None:
                connection.sock.settimeout(None)  # an answer may take its time
            response = connection.getresponse()
        except (OSError, HTTPException) as error:
            connection.close()
            raise RadixError(f"no answer from {self.url}: {error}") from None
        if response.status != 200:
            said = response.read().decode("utf-8", "replace")
            connection.close()
            check_key(self.url, response.status)
            raise RadixError(f"{self.url}: {_message(said)} (status {response.status})")
        return connection, response

    @cached_property
    def model(self) -> str:
        """The name of the model that the server has."""
        connection, response = self._send("GET", "/v1/models")
        with closing(connection):
            return str(json.load(response)["data"][0]["id"])

    def ready(self) -> bool:
        """Whether the server takes requests now."""
        connection, prefix = self._connect()
        try:
            connection.request("GET", f"{prefix}/ready")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def _connect(self) -> tuple[HTTPConnection, str]:
        parts = urlsplit(self.url if "://" in self.url else f"http://{self.url}")
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise RadixError(f"{self.url} is not an http address")
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname, parts.port, timeout=CONNECT_S), parts.path.rstrip("/")


@dataclass
class Conversation:
    """What has been said, and the fields that go with every request (temperature, max_tokens ...)."""

    client: Client
    system: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, str]] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)

    @property
    def messages(self) -> list[dict[str, str]]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns]

    def ask(self, text: str) -> Generator[Piece, None, None]:
        """Say `text` and give the answer as it comes; `timing` is its own once it has ended.

        An iterator that is closed early stops the answer, and what was said so far counts. A request that fails
        (RadixError) leaves the conversation as it was.
        """
        self.turns.append({"role": "user", "content": text})
        said: list[str] = []
        self.timing, began = Timing(), time.monotonic()
        try:
            for event in self._events():
                yield from self._take(event, said, began)
        finally:
            self.timing.total_s = time.monotonic() - began
            if said:
                self.turns.append({"role": "assistant", "content": "".join(said)})
            else:
                self.turns.pop()

    def _events(self) -> Iterator[dict[str, Any]]:
        defaults = {"model": self.client.model, "stream": True, "stream_options": {"include_usage": True}}
        connection, response = self.client.post(
            "/v1/chat/completions", {**self.settings, **defaults, "messages": self.messages}
        )
        try:
            while line := response.readline():
                if line.startswith(b"data: [DONE]"):
                    return
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
            raise RadixError("the connection ended in the middle of the answer")
        except (OSError, HTTPException) as error:
            raise RadixError(f"the connection was lost: {error}") from None
        finally:
            connection.close()

    def _take(self, event: dict[str, Any], said: list[str], began: float) -> Iterator[Piece]:
        if "error" in event:
            raise RadixError(_message(json.dumps(event)))
        usage, timing = event.get("usage"), self.timing
        if usage:
            timing.prompt_tokens, timing.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
            timing.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        for choice in event.get("choices", ())[:1]:
            timing.finish_reason = choice.get("finish_reason") or timing.finish_reason
            for name in ("reasoning_content", "content"):
                text = choice["delta"].get(name)
                if not text:
                    continue
                if timing.first_token_s is None:
                    timing.first_token_s = time.monotonic() - began
                if name == "content":
                    said.append(text)
                yield Piece(text, thinking=name != "content")


def _message(body: str) -> str:
    """The text of an error body, whatever its dialect."""
    try:
        found = json.loads(body)
    except ValueError:
        return body.strip() or "no reason given"
    error = found.get("error", found) if isinstance(found, dict) else found
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
