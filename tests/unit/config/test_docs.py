"""docs/flags.md is what the code says."""

from radixlm.config.docs import PATH, render
from radixlm.config.manifest import rows


def test_page_is_current() -> None:
    assert PATH.read_text("utf-8") == render(), "run: python -m radixlm.config.docs"


def test_page_lists_every_flag_once() -> None:
    lines = [line for line in render().partition("## Renamed")[0].splitlines() if line.startswith("| `--")]
    options = [line.split("`")[1] for line in lines]
    assert sorted(options) == sorted(row.option for row in rows())
