"""Whatever the OpenAPI document allows, and much that it does not, is answered without a 5xx."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from radixlm.frontend.template import ChatTemplate
from radixlm.server.app import rows
from radixlm.server.openapi import document
from tests.wire.fake_manager import FakeManager
from tests.wire.serving import Live, live_server, make_services

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
SERVICES = {
    "template": ChatTemplate({"default": TEMPLATE}, {}),
    "enable_response_store": True,
    "reasoning_parser": "qwen3",
    "tool_call_parser": "qwen",
}
LASTING = ("/pause_generation", "/start_profile", "/health_generate", "/configure_logging")  # of the whole server
SCHEMA = schemathesis.openapi.from_dict(
    document([row for row in rows(make_services(FakeManager(), **SERVICES)) if row.path not in LASTING], "test")
)


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live_server(**SERVICES) as live:
        yield live


@SCHEMA.parametrize()
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_nothing_is_a_500(server: Live, case: schemathesis.Case) -> None:
    response = case.call(base_url=server.base, timeout=20)
    assert response.status_code < 500 or response.status_code == 503, response.text


def test_the_document_is_served(server: Live) -> None:
    served = server.http.get("/openapi.json").json()
    assert served["openapi"] == "3.1.0"
    assert "sampling_params" in str(served["paths"]["/generate"]) or "GenerateBody" in str(served["components"])
