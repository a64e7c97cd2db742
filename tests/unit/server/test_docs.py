"""docs/api.md names every route, every field and every limit."""

import re
import tomllib
from pathlib import Path

import pytest

from radixlm.frontend.readings import MAX_PROMPT_LOGPROBS
from radixlm.observability.journal import Journal
from radixlm.server import limits, native, tokens
from radixlm.server.anthropic import routes as anthropic
from radixlm.server.app import rows
from radixlm.server.ollama import routes as ollama
from radixlm.server.openai import chat, completions
from radixlm.server.openai.responses import body as responses
from radixlm.server.pooled import classify, embeddings, encode, rerank, score
from radixlm.server.refused import Refusals
from tests.wire.fake_manager import FakeManager
from tests.wire.serving import make_services

POOLED = "`/encode`, `/v1/embeddings`, `/v1/classify`, `/v1/score`, `/v1/rerank`"
POOLED_BODIES = (
    (encode.EncodeBody, encode.REFUSALS),
    (embeddings.EmbeddingsBody, embeddings.REFUSALS),
    (classify.ClassifyBody, Refusals([])),
    (score.ScoreBody, score.REFUSALS),
    (rerank.RerankBody, Refusals([])),
)
OLLAMA = "`/api/chat`, `/api/generate`, `/api/show`, `/api/tags`"
SURFACE = tomllib.loads((Path(__file__).parent / "sglang_surface.toml").read_text("utf-8"))
PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text("utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table_lines(title: str) -> list[str]:
    return [line for line in section(title).splitlines() if line.startswith("| `")]


def names(lines: list[str]) -> set[str]:
    return {name for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[1])}


def test_every_route_is_listed_with_its_methods_and_level():
    lines = table_lines("Routes")
    for row in rows(make_services(FakeManager(), journal=Journal())):
        [line] = [line for line in lines if f"`{row.path}`" in line.split("|")[1]]
        _, _, methods, level, status, _ = line.split("|")
        assert set(row.methods) <= set(methods.strip().split(", "))
        assert level.strip().startswith(row.level)
        assert status.strip().startswith("works")


def test_no_planned_route_answers():
    registered = {row.path for row in rows(make_services(FakeManager()))}
    planned = names([line for line in table_lines("Routes") if line.endswith("planned |")])
    assert planned and not planned & registered


def test_every_route_of_sglang_has_a_status():
    listed = names(table_lines("Routes"))
    assert not set(SURFACE["routes"].split()) - listed
    for line in table_lines("Routes"):
        status = line.split("|")[4].strip()
        assert status.split(":")[0].split(" ")[0].rstrip(";") in ("works", "planned", "refused"), line
        assert not status.startswith("refused") or len(status) > len("refused: "), line


@pytest.mark.parametrize(
    ("title", "body"),
    [
        ("`/generate`", "generate"),
        ("`/v1/completions`", "completions"),
        ("`/v1/messages`", "messages"),
        ("`/v1/responses`", "responses"),
    ],
)
def test_every_field_of_sglang_has_a_status(title, body):
    assert not set(SURFACE[body].split()) - names(table_lines(title))


def test_every_field_is_listed():
    generate, completion = table_lines("`/generate`"), table_lines("`/v1/completions`")
    both = completion + table_lines("`/v1/chat/completions`")
    for lines, body, refusals in (
        (generate, native.GenerateBody, native.REFUSED),
        (completion, completions.CompletionBody, completions.REFUSED),
        (both, chat.ChatBody, chat.REFUSED),
        (table_lines("`/tokenize` and `/detokenize`"), tokens.TokenizeBody, Refusals([])),
        (table_lines("`/tokenize` and `/detokenize`"), tokens.DetokenizeBody, Refusals([])),
        *((table_lines(POOLED), body, refusals) for body, refusals in POOLED_BODIES),
        (table_lines("`/v1/messages`"), anthropic.MessagesBody, anthropic.REFUSED),
        (table_lines("`/v1/responses`"), responses.ResponsesBody, responses.REFUSED),
        (table_lines(OLLAMA), ollama.ChatBody, ollama.CHAT_REFUSED),
        (table_lines(OLLAMA), ollama.GenerateBody, ollama.GENERATE_REFUSED),
    ):
        refused = names([line for line in lines if "refused" in line.split("|")[2]])
        assert set(body.__struct_fields__) <= names(lines)
        assert {row.name for row in refusals.rows} <= refused | {"modalities"}


def test_every_limit_is_listed():
    text = section("Limits")
    assert limits.MAX_BODY_BYTES == 64 * 1024 * 1024 and "64 MiB" in text
    for value in (
        limits.MAX_STORED_RESPONSES,
        limits.MAX_N,
        limits.MAX_CHOICES,
        limits.MAX_TOP_LOGPROBS,
        limits.MAX_CHAT_TOP_LOGPROBS,
        limits.MAX_LOGPROB_TOKEN_IDS,
        limits.MAX_EMBED_VALUES,
        MAX_PROMPT_LOGPROBS,
        limits.MAX_RID_CHARS,
        limits.MAX_REQUEST_ID_CHARS,
    ):
        assert f"{value:,}" in text
    assert f"{limits.MAX_FLUSH_TIMEOUT_S:g} s" in text
    assert f"{limits.HEALTH_GENERATE_TIMEOUT_S:g} s" in section("Routes")
