"""docs/metrics.md, made from the table of metrics: `python -m radixlm.observability.docs > docs/metrics.md`."""

from radixlm.observability.planned import PLANNED
from radixlm.observability.rows import ROWS, Row

_HEAD = """# Metrics

`GET /metrics` answers in Prometheus' text format when the server runs with `--enable-metrics`; it needs no key.
This page is generated: `python -m radixlm.observability.docs > docs/metrics.md`.

Names are SGLang's, with the prefix `sglang:`, so that dashboards work unchanged; what SGLang has no name for has the
prefix `radixlm:`. `model_name` is the served name, `engine_type` is `unified`, the rank labels are `0`. Histograms have
`_bucket`, `_sum` and `_count`. Counters of the scheduler are totals since start, taken over at every pulse (at least
once a second).

What is counted when:

- A request that is refused (any 4xx or 5xx) is in `http_responses_total` only. One that its client aborted counts as a
  request, with the tokens it got.
- The first token is counted for every request that produced one, streaming or not, aborted or not. The tokens of a
  request that does not stream all arrive at its end, so its first-token time is its whole time (`is_streaming` keeps
  the two apart), and it has no time per output token.
- `prompt_tokens_total` and `generation_tokens_total` move when a request finishes and are the sums of what the answers'
  usage reports, counted per choice: a prompt with n = 4 is four prompts here, and one in the OpenAI usage.
- `/health_generate` is a real request and is counted as one.

## Live

| name | type | labels | meaning | moves |
|---|---|---|---|---|
"""

_EDGES = """
## Histogram edges

`--bucket-time-to-first-token`, `--bucket-inter-token-latency`, `--bucket-e2e-request-latency`,
`--prompt-tokens-buckets` and `--generation-tokens-buckets` replace them. The last two take `default`,
`custom V1 V2 ...` or `tse MIDDLE BASE COUNT` (edges at BASE^0 .. BASE^(COUNT-1) on both sides of MIDDLE).

| name | edges |
|---|---|
"""

_PLANNED = """
## Planned

SGLang metrics that have no live value here yet.

| names | type | wait for |
|---|---|---|
"""


_ADVICE = """
## What to do

- Use `rate()` of the counters, never their values: they begin again at every start.
- For latency take the histograms with `is_streaming="true"`; put edges where your limits are (`--bucket-…`).
- Alert on what users feel, time to first token and between tokens, and on the queue: [monitoring.md](monitoring.md).
"""


def _line(row: Row) -> str:
    labels = ", ".join(f"`{name}`" for name in (*row.base, *row.labels)) or "–"
    return f"| `{row.full_name}` | {row.kind} | {labels} | {row.meaning} | {row.moment} |\n"


def _edges_line(row: Row) -> str:
    return f"| `{row.full_name}` | {' '.join(f'{edge:g}' for edge in row.edges)} |\n"


def page() -> str:
    """The whole page, as Markdown."""
    live = "".join(_line(row) for row in ROWS)
    edges = "".join(_edges_line(row) for row in ROWS if row.edges)
    planned = "".join(
        f"| {', '.join(f'`sglang:{name}`' for name in group.names.split())} | {group.kind} | {group.waits_for} |\n"
        for group in PLANNED
    )
    return _HEAD + live + _EDGES + edges + _PLANNED + planned + _ADVICE


if __name__ == "__main__":
    print(page(), end="")
