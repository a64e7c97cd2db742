"""What becomes of the record of a request: percentiles, a line in a file, spans."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from radixlm.base.errors import ConfigError
from radixlm.observability.export import FileExport
from radixlm.observability.journal import KEPT, Journal
from radixlm.observability.record import RequestRecord, to_all
from radixlm.observability.trace import Tracer, exporter, stages


def record(number: int = 0, **changes: Any) -> RequestRecord:
    times: dict[str, Any] = {"queue_time_s": 0.02, "first_token_s": 0.1, "last_token_s": 0.5, "ended_s": 0.5}
    counts: dict[str, Any] = {"prompt_tokens": 10, "cached_tokens": 4, "output_tokens": 5, "reason": "stop"}
    return RequestRecord(
        **{"rid": f"r{number}", "stream": True, "created": 1000.0, "sent_s": 0.01, **times, **counts, **changes}
    )


def test_times_that_follow_from_others() -> None:
    assert record().started_s == pytest.approx(0.03)
    assert record().inter_token_s == pytest.approx(0.1)
    assert record(output_tokens=1).inter_token_s is None
    assert record(first_token_s=0.5).inter_token_s is None
    assert record(queue_time_s=None).started_s is None


def test_percentiles_are_weighted_and_of_the_last_minute_only() -> None:
    journal = Journal()
    for number in range(100):
        journal.add(record(number, first_token_s=(number + 1) / 1000, created=1000.0))
    journal.add(record(created=100.0, first_token_s=9.0))
    journal.add(record(stream=False, first_token_s=0.5, created=1000.0))  # its first token came at its end
    journal.add(record(reason="abort", ended_s=50.0, first_token_s=None, last_token_s=None))
    found = journal.latency(
        [record(first_token_s=7.0, last_token_s=7.0 + 900.0, output_tokens=901, ended_s=None)], 1030.0
    )
    assert found["ttft"].count == 101
    assert found["ttft"].quantiles == (0.051, 0.096, 0.1)
    assert found["inter_token"].quantiles[0] == pytest.approx(1.0)  # one long request outweighs a hundred short ones
    assert found["e2e"].quantiles == (0.5, 0.5, 0.5)
    assert journal.latency([], 2000.0)["ttft"].count == 0


def test_the_journal_forgets_the_oldest() -> None:
    journal = Journal()
    for number in range(KEPT + 5):
        journal.add(record(number))
    assert [one.rid for one in journal.latest(2)] == [f"r{KEPT + 4}", f"r{KEPT + 3}"]
    assert len(journal.latest(10 * KEPT)) == KEPT


def test_sinks_in_a_row() -> None:
    seen: list[str] = []
    sink = to_all(None, lambda one: seen.append(f"a {one.rid}"), lambda one: seen.append(f"b {one.rid}"))
    assert sink is not None and to_all(None, None) is None
    sink(record(7))
    assert seen == ["a r7", "b r7"]


def test_a_line_per_request_in_a_file_per_hour(tmp_path: Path) -> None:
    export = FileExport(str(tmp_path / "new" / "folder"))
    for number in range(50):
        export.add(record(number, created=3600.0 * 24 + number % 2 * 3600))
    export.close()
    files = sorted((tmp_path / "new" / "folder").iterdir())
    assert [file.name for file in files] == ["request-metrics-19700102_00.jsonl", "request-metrics-19700102_01.jsonl"]
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {line["id"] for line in lines} == {f"r{number}" for number in range(50)}
    assert lines[0]["completion_tokens"] == 5 and lines[0]["decode_time"] == pytest.approx(0.4)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--export-metrics-to-file-dir"):
        FileExport(str(tmp_path / "file"))


def test_stages_follow_one_another_and_end_where_the_request_did() -> None:
    assert [name for name, _, _ in stages(record())] == ["tokenize", "queue", "prefill", "decode"]
    ends = [end for _, _, end in stages(record())]
    assert ends == sorted(ends) and ends[-1] == 0.5
    never_ran = list(stages(record(queue_time_s=None, first_token_s=None)))
    assert never_ran == [("tokenize", 0.0, 0.01), ("queue", 0.01, 0.5)]


def test_spans_have_the_clients_trace_and_the_records_times() -> None:
    export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    tracer = Tracer(export, "service", "model")
    tracer.add(record(trace_parent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
    tracer.add(record(1, trace_parent="nonsense", status=500, reason="abort"))
    tracer.add(record(2, trace_parent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"))  # not sampled
    tracer._provider.force_flush()
    spans = export.get_finished_spans()
    roots = {span.attributes["gen_ai.response.id"]: span for span in spans if span.name == "request"}
    assert set(roots) == {"r0", "r1"}
    first = roots["r0"]
    assert f"{first.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{first.parent.span_id:016x}" == "b7ad6b7169203331"
    assert first.start_time == 1000 * 10**9 and first.end_time == 1000 * 10**9 + 5 * 10**8
    assert (
        first.attributes["gen_ai.usage.output_tokens"] == 5 and first.resource.attributes["service.name"] == "service"
    )
    inside = [span for span in spans if span.parent is not None and span.parent.span_id == first.context.span_id]
    assert [span.name for span in inside] == ["tokenize", "queue", "prefill", "decode"]
    assert roots["r1"].parent is None and not roots["r1"].status.is_ok
    tracer.close()


def test_where_traces_go() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    assert exporter("http://collector:4318")._endpoint == "http://collector:4318/v1/traces"  # type: ignore[attr-defined]
    assert exporter("https://c/custom")._endpoint == "https://c/custom"  # type: ignore[attr-defined]


def test_adding_costs_little() -> None:
    journal, one = Journal(), record()
    began = time.perf_counter()
    for _ in range(10_000):
        journal.add(one)
    assert (time.perf_counter() - began) / 10_000 < 20e-6
