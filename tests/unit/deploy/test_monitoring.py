"""Dashboards and alerts refer only to series that the server exports, with labels that they have; runbooks exist."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from radixlm.observability.rows import ROWS, Row

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "radixlm.json").read_text("utf-8"))
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
SERIES = re.compile(r"\b((?:sglang|radixlm):[a-z0-9_]+)(?:\{([^}]*)\})?")
ADDED_BY_PROMETHEUS = {"instance", "job"}


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (variable["query"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query")
    yield from (rule["expr"] for rule in RULES)


def exported() -> dict[str, Row]:
    found: dict[str, Row] = {}
    for row in ROWS:
        for suffix in ("_bucket", "_sum", "_count") if row.kind == "histogram" else ("",):
            found[row.full_name + suffix] = row
    return found


def test_every_expression_uses_exported_series_and_their_labels() -> None:
    series, seen = exported(), 0
    for expression in expressions():
        for name, selectors in SERIES.findall(expression):
            seen += 1
            assert name in series, f"{name} in {expression}"
            row = series[name]
            labels = {*row.base, *row.labels, *ADDED_BY_PROMETHEUS, *(["le"] if name.endswith("_bucket") else [])}
            assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)", selectors)) <= labels, expression
            for grouped in re.findall(r"by \(([^)]*)\)", expression):
                assert set(re.split(r",\s*", grouped)) <= labels, expression
    assert seen > 50


def test_panels_do_not_overlap_and_are_whole() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        cells = {(x, y) for x in columns for y in rows}
        assert not cells & taken and max(columns) < 24, panel["title"]
        taken |= cells
        assert panel["title"] and panel["targets"] and panel["fieldConfig"]["defaults"]["unit"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_every_alert_has_a_section_that_says_what_to_do() -> None:
    page = (ROOT / "docs" / "incidents.md").read_text("utf-8")
    sections = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^## (.*)$", page, re.M)
    }
    for rule in RULES:
        file, _, section = rule["annotations"]["runbook"].partition("#")
        assert file == "docs/incidents.md" and section in sections, rule["alert"]
        assert f"`{rule['alert']}`" in page


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_the_files() -> None:
    config = DEPLOY / "prometheus" / "prometheus.yml"
    checked = subprocess.run(["promtool", "check", "config", str(config)], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr
