"""docs/metrics.md is what the table says."""

from pathlib import Path

from radixlm.observability.docs import page
from radixlm.observability.planned import PLANNED
from radixlm.observability.rows import ROWS

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_is_up_to_date():
    assert DOCS.read_text("utf-8") == page()


def test_every_metric_is_listed_once():
    live = [row.name for row in ROWS if not row.own]
    planned = [name for group in PLANNED for name in group.names.split()]
    assert len(set(live + planned)) == len(live) + len(planned)
    text = page()
    for name in live + planned:
        assert f"`sglang:{name}`" in text
