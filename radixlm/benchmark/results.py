"""Benchmark results read back from files: our JSONL, SGLang's, and vLLM's JSON, under one set of names."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from radixlm.base.errors import ConfigError

Source = Literal["radixlm", "sglang", "vllm"]
OPENAI_BACKENDS = frozenset(
    ("sglang-oai", "sglang-oai-chat", "vllm", "vllm-chat", "lmdeploy", "lmdeploy-chat", "openai", "openai-chat")
)
_VLLM_E2E = {"e2e_latency": "e2el"}


@dataclass(frozen=True)
class Result:
    """One run. What the file does not tell is None. Times in seconds, latencies in ms.

    Attributes:
        where: file and line, for people.
        raw: the object as it stood in the file.
    """

    source: Source
    where: str
    raw: dict[str, Any]

    def number(self, *keys: str) -> float | None:
        """The first of `keys` that holds a finite number."""
        for key in keys:
            value = self.raw.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                return float(value)
        return None

    def numbers(self, key: str) -> list[float] | None:
        """A list with one number per request; None unless `key` holds one."""
        value = self.raw.get(key)
        if not isinstance(value, list) or not all(isinstance(item, (int, float)) for item in value):
            return None
        return [float(item) for item in value]

    def latency(self, name: str, stat: str) -> float | None:
        """`name` is e2e_latency, ttft, tpot or itl; `stat` is mean, median, std, p90, p95, p99 or max."""
        return self.number(f"{stat}_{name}_ms", f"{stat}_{_VLLM_E2E.get(name, name)}_ms")

    @property
    def backend(self) -> str:
        return str(self.raw.get("backend") or self.raw.get("endpoint_type") or self.source)

    @property
    def per_chunk(self) -> bool:
        """Whether its gaps are those between chunks, which may hold several tokens."""
        return self.source == "vllm" or self.backend in OPENAI_BACKENDS

    @property
    def dataset(self) -> str | None:
        name = self.raw.get("dataset_name")
        return name if isinstance(name, str) else None

    @property
    def duration_s(self) -> float | None:
        return self.number("duration")

    @property
    def completed(self) -> int | None:
        return _whole(self.number("completed"))

    @property
    def sent(self) -> int | None:
        """How many requests were sent, the failed ones too."""
        told = _whole(self.number("num_prompts"))
        return told if told is not None else None if self.errors is None else len(self.errors)

    @property
    def failed(self) -> int | None:
        told = _whole(self.number("failed"))
        if told is not None:
            return told
        if self.errors is not None:
            return sum(bool(error) for error in self.errors)
        return None if self.sent is None or self.completed is None else self.sent - self.completed

    @property
    def errors(self) -> list[str] | None:
        value = self.raw.get("errors")
        return [str(item or "") for item in value] if isinstance(value, list) else None

    @property
    def successes(self) -> list[bool] | None:
        """For each entry of the lists of details whether its request succeeded; None when that is not known."""
        if self.errors is not None:
            return [not error for error in self.errors]
        entries = self.numbers("ttfts")
        return [True] * len(entries) if entries is not None and len(entries) == self.completed else None

    @property
    def rate_per_s(self) -> float | None:
        """Requests per second asked for; inf when all were sent at once."""
        value = self.raw.get("request_rate")
        if isinstance(value, str):
            return math.inf if value.lower() in ("inf", "infinity") else None
        if isinstance(value, (int, float)):
            return float(value)
        # SGLang's own line holds the bare word Infinity, which is not JSON: readers of it store null.
        return math.inf if "request_rate" in self.raw else None

    @property
    def max_concurrency(self) -> int | None:
        return _whole(self.number("max_concurrency"))

    @property
    def requested_output_tokens(self) -> float | None:
        """Output tokens asked for in all successful requests, where the file tells or implies it."""
        told = self.number("total_requested_output_tokens")
        fixed = self.number("random_range_ratio") == 1.0 and (self.dataset or "").startswith("random")
        each = self.number("random_output_len") if fixed else None
        if told is not None or each is None or self.completed is None:
            return told
        return each * self.completed

    @property
    def hit_rate(self) -> float | None:
        """Cached share of prompt tokens, 0 to 1."""
        told = self.number("cache_hit_rate")
        if told is not None:
            return told
        report = self.raw.get("cache_report")
        if isinstance(report, dict) and isinstance(report.get("cache_hit_rate_pct"), (int, float)):
            return float(report["cache_hit_rate_pct"]) / 100.0
        return None

    @property
    def server(self) -> dict[str, Any]:
        """The server's own description, {} when it was not kept."""
        info = self.raw.get("server_info")
        return info if isinstance(info, dict) else {}


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def read_results(path: str) -> list[Result]:
    """Every result of a file, oldest first. ConfigError, in one line, for a file that holds none."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    objects = _objects(text, path)
    return [Result(_source(raw, where), where, raw) for where, raw in objects]


def _objects(text: str, path: str) -> list[tuple[str, dict[str, Any]]]:
    """One JSON object over many lines, a list of them, or one per line."""
    try:
        whole = _decode(text)
    except ConfigError:
        whole = None
    if isinstance(whole, dict):
        return [(path, whole)]
    lines: Sequence[tuple[int, Any]]
    if isinstance(whole, list):
        lines = list(enumerate(whole, 1))
    else:
        lines = [(number, _decode(line, f"{path}:{number}")) for number, line in _filled(text)]
    found = [(f"{path}:{number}", value) for number, value in lines if isinstance(value, dict)]
    if not found or len(found) < len(lines):
        raise ConfigError(f"{path} holds no results: JSON objects, one per line, are expected")
    return found


def _filled(text: str) -> list[tuple[int, str]]:
    return [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _decode(text: str, where: str = "") -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        try:  # Python's own encoder writes NaN and Infinity, which are no JSON
            return json.loads(text, parse_constant=lambda name: None if name == "NaN" else "inf")
        except ValueError:
            raise ConfigError(f"{where}: not JSON ({error})") from None


def _source(raw: dict[str, Any], where: str) -> Source:
    if raw.get("client") == "radixlm":
        return "radixlm"
    if "duration" not in raw or "completed" not in raw:
        raise ConfigError(f"{where}: no result of a serving benchmark (it lacks duration or completed)")
    vllm = {"model_id", "tokenizer_id", "total_token_throughput", "endpoint_type", "burstiness"}
    return "vllm" if vllm & raw.keys() else "sglang"
