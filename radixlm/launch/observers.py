"""Who is told of every request that ends, as the flags say: journal, file, traces, log. Knows no request's inside."""

from radixlm.base import log
from radixlm.config.groups import Config
from radixlm.observability.export import FileExport
from radixlm.observability.journal import Journal
from radixlm.observability.metrics import MetricsSink
from radixlm.observability.record import RecordSink, RequestRecord, to_all
from radixlm.observability.trace import Tracer, exporter

logger = log.get(__name__)


class Observers:
    """`journal` is None without the page at /ui; `on_ended` is None when nobody wants to know."""

    def __init__(self, config: Config, served_name: str, metrics: MetricsSink) -> None:
        """ConfigError when a folder cannot be written or a library is missing."""
        observe = config.observe
        self.journal = None if config.server.disable_ui else Journal()
        self._export: FileExport | None = None
        self._tracer: Tracer | None = None
        if observe.export_metrics_to_file and observe.export_metrics_to_file_dir is not None:
            self._export = FileExport(observe.export_metrics_to_file_dir)
        if observe.enable_trace:
            send = exporter(observe.otlp_traces_endpoint)
            self._tracer = Tracer(send, observe.otlp_service_name or "radixlm", served_name)
        self.on_ended: RecordSink | None = to_all(
            metrics.record if observe.enable_metrics else None,
            self.journal.add if self.journal is not None else None,
            self._export.add if self._export is not None else None,
            self._tracer.add if self._tracer is not None else None,
            _log_times if observe.enable_request_time_stats_logging else None,
        )

    def close(self) -> None:
        """Write and send what is left; at most a few seconds."""
        if self._export is not None:
            self._export.close()
        if self._tracer is not None:
            self._tracer.close()


def _log_times(record: RequestRecord) -> None:
    def ms(seconds: float | None) -> str:
        return "-" if seconds is None else f"{seconds * 1000:.2f}ms"

    logger.info(
        "Req Time Stats(rid=%s, input len=%d, cached input len=%d, output len=%d, finish=%s): tokenize=%s, "
        "queue_duration=%s, time_to_first_token=%s, inter_token=%s, total=%s",
        record.rid,
        record.prompt_tokens,
        record.cached_tokens,
        record.output_tokens,
        record.reason,
        ms(record.sent_s),
        ms(record.queue_time_s),
        ms(record.first_token_s),
        ms(record.inter_token_s),
        ms(record.ended_s),
    )
