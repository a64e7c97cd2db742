"""OpenTelemetry spans of ended requests, sent to a collector. Knows records; the libraries are an optional extra.

A request becomes one span with a child per stage, made when it has ended: its times are in its record, so tracing costs
nothing while a request runs.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from radixlm.base.errors import ConfigError
from radixlm.base.log import get
from radixlm.observability.record import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

log = get(__name__)

NEEDS = "--enable-trace needs OpenTelemetry: pip install 'radixlm[trace]'"
PATIENCE_S = 3  # with a collector that does not answer
_NS = 1_000_000_000


def exporter(endpoint: str) -> "SpanExporter":
    """What sends to `endpoint`: `http://host:port[/path]` is OTLP over HTTP, `host:port` OTLP over gRPC. ConfigError
    when the library for it is not installed."""
    url = urlsplit(endpoint)
    if url.scheme in ("http", "https"):
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError:
            raise ConfigError(NEEDS) from None
        whole = endpoint if url.path not in ("", "/") else endpoint.rstrip("/") + "/v1/traces"
        return OTLPSpanExporter(whole, timeout=PATIENCE_S)
    try:
        grpc = import_module("opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
    except ImportError:
        raise ConfigError(
            f"--otlp-traces-endpoint {endpoint} is OTLP over gRPC, which needs "
            "pip install opentelemetry-exporter-otlp-proto-grpc; or give an http:// address (usually port 4318)"
        ) from None
    sender: SpanExporter = grpc.OTLPSpanExporter(endpoint=endpoint, insecure=True, timeout=PATIENCE_S)
    return sender


class Tracer:
    """Makes the spans of one server. `add` is a record sink; `close` sends what is left."""

    def __init__(self, send: "SpanExporter", service_name: str, model_name: str) -> None:
        """ConfigError when the SDK is not installed."""
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise ConfigError(NEEDS) from None
        self._model_name = model_name
        self._provider = TracerProvider(resource=Resource.create({"service.name": service_name}))
        self._provider.add_span_processor(BatchSpanProcessor(send))
        self._tracer = self._provider.get_tracer("radixlm")
        self._propagator = TraceContextTextMapPropagator()

    def add(self, record: RequestRecord) -> None:
        """Make the spans of a request. A fault in here is logged and goes no further."""
        try:
            self._add(record)
        except Exception:
            log.exception("the trace of request %s is lost", record.rid)

    def close(self) -> None:
        """Send what waits; at most a few seconds."""
        self._provider.force_flush(PATIENCE_S * 1000)
        self._provider.shutdown()

    def _add(self, record: RequestRecord) -> None:
        from opentelemetry import trace

        parent = self._propagator.extract({"traceparent": record.trace_parent}) if record.trace_parent else None
        start = int(record.created * _NS)

        def at(seconds: float) -> int:
            return start + int(seconds * _NS)

        root = self._tracer.start_span(
            "request", context=parent, kind=trace.SpanKind.SERVER, start_time=start, attributes=self._attributes(record)
        )
        if record.status is not None:
            root.set_status(trace.StatusCode.ERROR, f"status {record.status}")
        inside = trace.set_span_in_context(root)
        for name, begin, end in stages(record):
            self._tracer.start_span(name, context=inside, start_time=at(begin)).end(at(end))
        root.end(at(record.ended_s or 0.0))

    def _attributes(self, record: RequestRecord) -> dict[str, str | int | float | bool]:
        """Under the names of OpenTelemetry's conventions for generative AI where it has one."""
        found: dict[str, str | int | float | bool | None] = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": self._model_name,
            "gen_ai.response.id": record.rid,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "gen_ai.response.time_to_first_chunk": record.first_token_s,
            "radixlm.finish_reason": record.reason,
            "radixlm.stream": record.stream,
            "radixlm.retractions": record.retractions,
        }
        return {name: value for name, value in found.items() if value is not None}


def stages(record: RequestRecord) -> Iterator[tuple[str, float, float]]:
    """(stage, begin, end) in seconds after arrival, one after the other, of a request that ended; the last one that it
    reached lasts until its end."""
    last = record.ended_s or 0.0
    marks = {"tokenize": record.sent_s, "queue": record.started_s, "prefill": record.first_token_s, "decode": last}
    begin = 0.0
    for name, mark in marks.items():
        end = min(max(last if mark is None else mark, begin), last)  # the marks come from clocks of two processes
        yield name, begin, end
        begin = end
        if mark is None:
            return
