"""The official openai client, against the routes, in both modes."""

import asyncio

import openai
import pytest

from tests.wire.fake_manager import Script
from tests.wire.serving import eventually, live_server

TEXT = "Hello wörld"


@pytest.fixture(scope="module")
def live():
    with live_server(api_key="sesame", enable_cache_report=True) as server:
        server.manager.script = lambda request: Script(cached_tokens=3, pause_s=0.002)
        yield server


@pytest.fixture(scope="module")
def client(live):
    with openai.OpenAI(base_url=f"{live.base}/v1", api_key="sesame", max_retries=0) as client:
        yield client


def test_chat(client):
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], n=2)
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.completion_tokens == 24
    assert answer.usage.prompt_tokens_details is not None and answer.usage.prompt_tokens_details.cached_tokens == 3


def test_chat_stream(client):
    stream = client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    text, reasons, usage = "", [], None
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
        usage = chunk.usage or usage
    assert (text, reasons) == (TEXT, ["stop"])
    assert usage is not None and usage.completion_tokens == 12


def test_completions(client):
    answer = client.completions.create(model="m", prompt=["a", "b"], max_tokens=20, seed=1)
    assert [choice.text for choice in answer.choices] == [TEXT, TEXT]
    parts = client.completions.create(model="m", prompt="a", stream=True)
    assert "".join(part.choices[0].text for part in parts) == TEXT


def test_models(client):
    assert [model.id for model in client.models.list()] == ["fake-model"]
    assert client.models.retrieve("fake-model").id == "fake-model"
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("nobody")
    assert error.value.code == "model_not_found" and error.value.param == "model"


def test_errors_reach_the_client_as_its_own_types(client, live):
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="m", prompt="p" * 2000, stream=True)
    assert "context length" in str(error.value) and error.value.param == "prompt"
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model="m", prompt="p", max_tokens=-1)
    with (
        openai.OpenAI(base_url=f"{live.base}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_the_async_client_and_leaving_a_stream_early(live):
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{live.base}/v1", api_key="sesame", max_retries=0) as client:
            messages = [{"role": "user", "content": "endless"}]
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            await stream.close()

    before = live.manager.script
    live.manager.script = lambda request: Script(["x"], endless=True, pause_s=0.005)
    try:
        asyncio.run(run())
        eventually(lambda: not live.manager.live, within_s=1)
    finally:
        live.manager.script = before
