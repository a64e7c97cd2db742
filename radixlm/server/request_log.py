"""The request log: one line when a request comes in and one when it ends. Knows no route and no body format."""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from radixlm.base.errors import ConfigError
from radixlm.base.log import BARE, get
from radixlm.frontend.choice import Choice, ChoiceRequest

PART_CHARS = 2048  # of input and output at level 2

Format = Literal["text", "json"]


@dataclass(frozen=True)
class RequestLogSettings:
    """`level` 0: ids and counts; 1: sampling parameters too; 2: input and output too, cut short; 3: all of them."""

    enabled: bool = False
    level: int = 2
    format: Format = "text"


class RequestLog:
    """Writes to this process's log, or to `targets`: "stdout", or folders that get one file per server process."""

    def __init__(self, settings: RequestLogSettings | None = None, targets: Sequence[str] = ()) -> None:
        """ConfigError when a target cannot be written."""
        self.settings = settings or RequestLogSettings()
        self._log = get(f"{__name__}.{id(self)}" if targets else __name__)
        for target in targets:
            self._log.addHandler(_handler(target))
        if targets:
            self._log.propagate = False
            self._log.setLevel("INFO")

    def configure(self, **changes: Any) -> None:
        """Change settings while the server runs; None leaves one as it is."""
        self.settings = replace(self.settings, **{name: value for name, value in changes.items() if value is not None})

    def received(self, request: ChoiceRequest, choice: Choice) -> None:
        if self.settings.enabled:
            self._write("request.received", choice, self._asked(request, choice), {})

    def finished(self, request: ChoiceRequest, choice: Choice, text: str) -> None:
        finished = choice.finished
        if not self.settings.enabled or finished is None:
            return
        ended = choice.finished_at if choice.finished_at is not None else time.time()
        out: dict[str, Any] = {
            "finish_reason": finished.reason.type,
            "prompt_tokens": finished.prompt_tokens,
            "completion_tokens": finished.completion_tokens,
            "cached_tokens": finished.cached_tokens,
            "e2e_latency": round(ended - choice.created, 6),
        }
        if finished.reason.message is not None:
            out["message"] = finished.reason.message
        if self.settings.level >= 2:
            out["text"] = self._part(text)
        self._write("request.finished", choice, self._asked(request, choice), out)

    def _asked(self, request: ChoiceRequest, choice: Choice) -> dict[str, Any]:
        level = self.settings.level
        asked: dict[str, Any] = {"stream": request.stream, "prompt_tokens": choice.prompt_tokens}
        if request.priority is not None:
            asked["priority"] = request.priority
        if level >= 1:
            asked["sampling_params"] = request.sampling_params
        if level >= 2 and request.text is not None:
            asked["text"] = self._part(request.text)
        if level >= 2 and request.input_ids is not None:
            asked["input_ids"] = request.input_ids if level >= 3 else request.input_ids[: PART_CHARS // 4]
        return asked

    def _part(self, text: str) -> str:
        return text if self.settings.level >= 3 or len(text) <= PART_CHARS else text[:PART_CHARS] + "..."

    def _write(self, event: str, choice: Choice, asked: Mapping[str, Any], out: Mapping[str, Any]) -> None:
        if self.settings.format == "json":
            line: dict[str, Any] = {"timestamp": time.time(), "event": event, "rid": choice.rid, "obj": asked}
            self._log.info("%s", json.dumps(line | ({"out": out} if out else {}), default=str), extra=BARE)
            return
        verb = "Receive" if event == "request.received" else "Finish"
        shown = f", out={dict(out)!r}" if out else ""
        self._log.info("%s: rid=%r, obj=%r%s", verb, choice.rid, dict(asked), shown)


def _handler(target: str) -> logging.Handler:
    if target == "stdout":
        return logging.StreamHandler(sys.stdout)
    folder = Path(target).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return logging.FileHandler(folder / f"requests-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log", delay=True)
    except OSError as error:
        raise ConfigError(f"--log-requests-target {target}: {error.strerror}") from None
