"""What the routes are given: the tokenizer manager, the template and the few settings they read. Holds no logic."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from radixlm.config.card import ModelCard
from radixlm.frontend.choice import Choice, ChoiceRequest
from radixlm.observability.journal import Journal
from radixlm.observability.metrics import MetricsSink
from radixlm.observability.record import RequestRecord
from radixlm.protocol.messages import SchedulerReady, SchedulerStats
from radixlm.server.request_log import RequestLog
from radixlm.server.sessions import Sessions


class Tokenizer(Protocol):
    """Text to token ids, and back."""

    @property
    def bos_token_id(self) -> int | None: ...
    def encode(self, text: str, add_special_tokens: bool = ...) -> list[int]: ...
    def encode_pair(self, first: str, second: str) -> tuple[list[int], int | None]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...
    def piece(self, id_: int) -> bytes: ...
    def is_special(self, id_: int) -> bool: ...


class Template(Protocol):
    """The model's chat template. `render` raises RequestError, which names the message it does not take."""

    @property
    def source(self) -> str: ...
    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str: ...


class Manager(Protocol):
    """The tokenizer manager as routes use it.

    `submit_all` accepts every request or none and raises RequestError. `abort` says how many requests it stopped.
    `control` calls a verb of protocol/control.py by name; `pause` and `resume` do so for new requests too.
    """

    @property
    def ready(self) -> SchedulerReady | None: ...
    @property
    def stats(self) -> SchedulerStats | None: ...
    @property
    def fatal(self) -> str | None: ...
    @property
    def draining(self) -> bool: ...
    @property
    def paused(self) -> bool: ...
    @property
    def card(self) -> ModelCard: ...
    @property
    def tokenizer(self) -> Tokenizer | None: ...

    async def submit_all(self, requests: list[ChoiceRequest]) -> list[Choice]: ...
    def abort(self, rid: str | None, abort_all: bool = False) -> int: ...
    async def control(self, verb: str, request: msgspec.Struct) -> msgspec.Struct: ...
    async def pause(self, mode: Literal["abort", "retract", "in_place"]) -> None: ...
    async def resume(self) -> None: ...
    def healthy(self, now_monotonic: float) -> bool: ...
    def records(self, most: int) -> list[RequestRecord]: ...


@dataclass(frozen=True, kw_only=True)
class Services:
    """Everything a route may use.

    `launch` are the resolved settings that /server_info shows; `launch_command` the command line. Secrets in them are
    removed there. `template` None: the model has none, and chat answers 400. The parsers are names of the tables in
    radixlm.parsers; None: there is none. `journal` None: there is no page at /ui. `created` in Unix seconds.
    """

    manager: Manager
    template: Template | None
    metrics: MetricsSink
    model_path: str
    served_model_name: str
    version: str
    tokenizer_path: str | None = None
    load_format: str = "auto"
    weight_version: str = "default"
    api_key: str | None = None
    admin_api_key: str | None = None
    enable_metrics: bool = False
    enable_cache_report: bool = False
    sampling_defaults: Literal["model", "openai"] = "model"
    incremental_streaming_output: bool = False
    stream_response_default_include_usage: bool = False
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    enable_response_store: bool = False
    strict_model_name: bool = False
    request_timeout_s: float | None = None
    access_log_exclude_prefixes: tuple[str, ...] = ()
    request_log: RequestLog = field(default_factory=RequestLog)
    journal: Journal | None = None
    enable_trace: bool = False
    sessions: Sessions = field(default_factory=Sessions)
    launch_command: str = ""
    launch: Mapping[str, Any] = field(default_factory=dict)
    startup_s: float = 0.0
    created: float = field(default_factory=time.time)
