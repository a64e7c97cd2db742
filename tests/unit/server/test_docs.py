"""docs/api.md names every route, every field and every limit."""

import re
from pathlib import Path

from radixlm.server import limits, native
from radixlm.server.app import rows
from radixlm.server.openai import chat, completions
from tests.wire.fake_manager import FakeManager
from tests.wire.serving import make_services

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text("utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table_lines(title: str) -> list[str]:
    return [line for line in section(title).splitlines() if line.startswith("| `")]


def names(lines: list[str]) -> set[str]:
    return {name for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[1])}


def test_every_route_is_listed_with_its_methods_and_level():
    lines = table_lines("Routes")
    for row in rows(make_services(FakeManager())):
        [line] = [line for line in lines if f"`{row.path}`" in line.split("|")[1]]
        _, _, methods, level, status, _ = line.split("|")
        assert set(row.methods) <= set(methods.strip().split(", "))
        assert level.strip().startswith(row.level)
        assert status.strip().startswith("works")


def test_no_planned_route_answers():
    registered = {row.path for row in rows(make_services(FakeManager()))}
    planned = names([line for line in table_lines("Routes") if line.endswith("planned |")])
    assert planned and not planned & registered


def test_every_field_is_listed():
    generate, completion = table_lines("`/generate`"), table_lines("`/v1/completions`")
    both = completion + table_lines("`/v1/chat/completions`")
    for lines, body, refusals in (
        (generate, native.GenerateBody, native.REFUSED),
        (completion, completions.CompletionBody, completions.REFUSED),
        (both, chat.ChatBody, chat.REFUSED),
    ):
        refused = names([line for line in lines if "refused" in line.split("|")[2]])
        assert set(body.__struct_fields__) <= names(lines)
        assert {row.name for row in refusals.rows} <= refused | {"modalities"}


def test_every_limit_is_listed():
    text = section("Limits")
    assert limits.MAX_BODY_BYTES == 64 * 1024 * 1024 and "64 MiB" in text
    for value in (limits.MAX_N, limits.MAX_CHOICES, limits.MAX_RID_CHARS, limits.MAX_REQUEST_ID_CHARS):
        assert f"{value:,}" in text
    assert f"{limits.MAX_FLUSH_TIMEOUT_S:g} s" in text
    assert f"{limits.HEALTH_GENERATE_TIMEOUT_S:g} s" in section("Routes")
