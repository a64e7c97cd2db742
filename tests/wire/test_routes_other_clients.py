"""litellm and langchain-openai against the routes: one round of everything they do with a text model."""

import pytest

from tests.wire.fake_manager import Script
from tests.wire.serving import live_server

pytestmark = pytest.mark.slow  # these packages take seconds to import
TEXT = "Hello wörld"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def live():
    with live_server(api_key="sesame") as server:
        server.manager.script = lambda request: Script(pause_s=0.002)
        yield server


def test_litellm(live, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    openai_like = {"model": "openai/m", "messages": HELLO, "api_base": f"{live.base}/v1", "api_key": "sesame"}
    anthropic_like = {"model": "anthropic/m", "messages": HELLO, "api_base": live.base, "api_key": "sesame"}
    for way in (openai_like, anthropic_like):
        answer = litellm.completion(**way, max_tokens=20)
        assert answer.choices[0].message.content == TEXT and answer.usage.completion_tokens == 12
        parts = litellm.completion(**way, max_tokens=20, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == TEXT
    with pytest.raises(litellm.BadRequestError, match="context length"):
        litellm.completion(**openai_like | {"messages": [{"role": "user", "content": "p" * 2000}]})


def test_langchain(live):
    import langchain_openai as langchain

    chat = langchain.ChatOpenAI(model="m", base_url=f"{live.base}/v1", api_key="sesame", max_retries=0)
    answer = chat.invoke([("system", "Be brief."), ("user", "hi")])
    assert answer.content == TEXT and answer.usage_metadata["output_tokens"] == 12
    assert "".join(part.content for part in chat.stream("hi")) == TEXT
    assert [one.content for one in chat.batch(["a", "b"])] == [TEXT, TEXT]
    responses = langchain.ChatOpenAI(
        model="m", base_url=f"{live.base}/v1", api_key="sesame", max_retries=0, use_responses_api=True
    )
    assert responses.invoke("hi").text == TEXT
