"""--export-metrics-to-file: one JSON line per ended request, in a file per hour. Knows records, not requests.

Lines are written by a thread of their own, so that a slow disk delays nobody.
"""

import json
import queue
import threading
import time
from pathlib import Path
from typing import Any

from radixlm.base.errors import ConfigError
from radixlm.base.log import get
from radixlm.observability.record import RequestRecord

log = get(__name__)

MOST_WAITING = 100_000  # lines; what comes while so many wait is dropped and counted


class FileExport:
    """Appends to `request-metrics-YYYYMMDD_HH.jsonl` in a folder; the hour (UTC) is that in which a request ended."""

    def __init__(self, folder: str) -> None:
        """ConfigError when the folder cannot be written."""
        self._folder = Path(folder).expanduser()
        self._lines: queue.Queue[RequestRecord | None] = queue.Queue(MOST_WAITING)
        self._dropped = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe = self._folder / ".radixlm-writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"--export-metrics-to-file-dir {folder}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._write_all, name="metrics-export", daemon=True)
        self._thread.start()

    def add(self, record: RequestRecord) -> None:
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self._dropped += 1
            if self._dropped == 1:
                log.error("--export-metrics-to-file: the disk is too slow; lines are being dropped")

    def close(self) -> None:
        """Write what waits and end the thread; at most a few seconds."""
        self._lines.put(None)
        self._thread.join(5.0)

    def _write_all(self) -> None:
        while (record := self._lines.get()) is not None:
            batch = [record]
            while len(batch) < 1000:
                try:
                    following = self._lines.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    self._append(batch)
                    return
                batch.append(following)
            self._append(batch)

    def _append(self, batch: list[RequestRecord]) -> None:
        by_hour: dict[str, list[str]] = {}
        for record in batch:
            hour = time.strftime("%Y%m%d_%H", time.gmtime(record.created + (record.ended_s or 0.0)))
            by_hour.setdefault(hour, []).append(json.dumps(line(record)) + "\n")
        try:
            for hour, lines in by_hour.items():
                with (self._folder / f"request-metrics-{hour}.jsonl").open("a", encoding="utf-8") as file:
                    file.writelines(lines)
        except OSError as error:
            log.error("--export-metrics-to-file: %d requests are lost: %s", len(batch), error)


def line(record: RequestRecord) -> dict[str, Any]:
    """A record under the names that answers use for the same numbers; times in seconds."""
    first, end = record.first_token_s, record.ended_s
    decode_s = end - first if first is not None and end is not None else None
    return {
        "id": record.rid,
        "timestamp": record.created,
        "stream": record.stream,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.output_tokens,
        "finish_reason": record.reason,
        "status": record.status,
        "num_retractions": record.retractions,
        "tokenize_time": record.sent_s,
        "queue_time": record.queue_time_s,
        "time_to_first_token": first,
        "inter_token_latency": record.inter_token_s,
        "decode_time": decode_s,
        "e2e_latency": end,
    }
