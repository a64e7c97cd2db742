"""Structured output against a real server: tool loops with both clients, and hostile grammars beside a stream."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.wire.live import LiveServer, live_server

pytestmark = pytest.mark.slow
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
QUESTION = {"role": "user", "content": "What will the weather be in Paris for the next 3 days?"}
RESULT = "sunny, 24 degrees"
STALL_S = 1.0
HOSTILE: list[dict[str, Any]] = [
    {"regex": "((("},
    {"regex": "(" * 5000},
    {"regex": "(a{1,1000}){1,1000}"},
    {"regex": ".*" * 2000 + "x"},
    {"regex": "(x+x+)+y"},
    {"ebnf": "root ::= nothing"},
    {"ebnf": 'root ::= root root | "a" | ""'},
    {"json_schema": '{"type": "banana"}'},
    {"json_schema": '{"$ref": "#/nowhere"}'},
    {"json_schema": '{"$ref": "#"}'},
    {"json_schema": "[" * 2000 + "]" * 2000},
    {"json_schema": json.dumps({"enum": [f"value {n}" for n in range(8000)]})},
    {"json_schema": json.dumps({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(2000)}})},
    {"json_schema": '{"type": "string", "pattern": "(a{1,500}){1,500}{1,50}"}'},
    {"structural_tag": '{"structures": [{"begin": "a"}], "triggers": []}'},
]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server("demo", "--mem-fraction-static", "0.3", "--tool-call-parser", "hermes") as running:
        yield running


def checked(arguments: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(arguments)
    assert value["city"] in ("Paris", "Rome") and 1 <= value["days"] <= 7
    return value


@pytest.mark.parametrize(
    ("stream", "choice"), [(False, "required"), (True, {"type": "function", "function": {"name": "get_weather"}})]
)
def test_a_tool_loop_with_openais_client(server: LiveServer, stream: bool, choice: Any) -> None:
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=120)
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}
    asked: dict[str, Any] = {"model": "demo", "max_tokens": 60, "temperature": 0, "tools": [tool]}
    first = {**asked, "messages": [QUESTION], "tool_choice": choice, "parallel_tool_calls": choice != "required"}
    if stream:
        with client.chat.completions.stream(**first) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(**first).choices[0].message
    assert message.tool_calls is not None and not message.content
    [call] = message.tool_calls
    assert call.function.name == "get_weather"
    checked(call.function.arguments)
    turn = {"role": "assistant", "content": "", "tool_calls": [call.model_dump(include={"id", "type", "function"})]}
    turn["tool_calls"][0]["function"] = {"name": call.function.name, "arguments": call.function.arguments}  # type: ignore[index]
    result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    second = {**asked, "messages": [QUESTION, turn, result], "tool_choice": "none", "max_tokens": 4}
    if stream:
        chunks = list(client.chat.completions.create(**second, stream=True))
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    else:
        said = client.chat.completions.create(**second).choices[0].message.content or ""
    assert said.strip()


@pytest.mark.parametrize(
    ("stream", "choice"), [(True, {"type": "any"}), (False, {"type": "tool", "name": "get_weather"})]
)
def test_a_tool_loop_with_anthropics_client(server: LiveServer, stream: bool, choice: Any) -> None:
    client = anthropic.Anthropic(base_url=server.url, api_key="none", timeout=120)
    asked: dict[str, Any] = {"model": "demo", "max_tokens": 60, "extra_body": {"temperature": 0}}
    tools = [{"name": "get_weather", "input_schema": WEATHER}]
    first = {**asked, "messages": [QUESTION], "tools": tools}
    first["tool_choice"] = {**choice, "disable_parallel_tool_use": True}
    if stream:
        with client.messages.stream(**first) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**first)
    [use] = [block for block in message.content if block.type == "tool_use"]
    assert message.stop_reason == "tool_use" and use.name == "get_weather"
    checked(json.dumps(use.input))
    result = {"type": "tool_result", "tool_use_id": use.id, "content": RESULT}
    turns = [QUESTION, {"role": "assistant", "content": [use.model_dump(exclude_none=True)]}]
    second = {**asked, "messages": [*turns, {"role": "user", "content": [result]}], "tools": tools, "max_tokens": 4}
    second["tool_choice"] = {"type": "none"}
    if stream:
        with client.messages.stream(**second) as events:
            said = events.get_final_text()
    else:
        said = "".join(block.text for block in client.messages.create(**second).content if block.type == "text")
    assert said.strip()


def test_formats_on_every_route(server: LiveServer) -> None:
    """Each route's own way to ask for JSON; white space is bounded even where the model wants nothing else."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    blank = {str(token): 100 for token in server.post("/tokenize", {"prompt": " \n"}).json()["tokens"]}
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    common = {"model": "demo", "temperature": 0, "max_tokens": 300}
    chat = {**common, "messages": [QUESTION], "response_format": named, "logit_bias": blank}
    answer = server.post("/v1/chat/completions", chat).json()["choices"][0]
    assert answer["finish_reason"] == "stop" and isinstance(json.loads(answer["message"]["content"])["ok"], bool)
    text = server.post("/v1/completions", {**common, "prompt": "ok:", "response_format": named}).json()["choices"][0][
        "text"
    ]
    assert isinstance(json.loads(text)["ok"], bool)
    body = {
        "model": "demo",
        "input": "ok?",
        "temperature": 0,
        "text": {"format": {"type": "json_schema", "schema": schema}},
    }
    output = server.post("/v1/responses", body).json()["output"][-1]["content"][0]["text"]
    assert isinstance(json.loads(output)["ok"], bool)
    body = {"model": "demo", "prompt": "ok:", "format": schema, "stream": False}
    assert isinstance(json.loads(server.post("/api/generate", body).json()["response"])["ok"], bool)
    body = {"model": "demo", "messages": [QUESTION], "regex": "(yes|no)", "max_tokens": 5}
    assert server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"] in ("yes", "no")


def test_hostile_grammars_do_not_hold_up_a_stream(server: LiveServer) -> None:
    server.post("/generate", {"text": "x", "sampling_params": {"regex": "a", "max_new_tokens": 2}})  # libraries loaded

    async def stream(client: httpx.AsyncClient, done: asyncio.Event) -> float:
        """The longest pause between two events."""
        longest_s = 0.0
        while not done.is_set():
            params = {"max_new_tokens": 300, "ignore_eos": True, "temperature": 0}
            body = {"text": "Once upon a time", "sampling_params": params, "stream": True}
            async with client.stream("POST", "/generate", json=body) as response:
                last = None
                async for line in response.aiter_lines():
                    if not line:
                        continue
                    now = time.monotonic()
                    longest_s = max(longest_s, now - last if last is not None else 0.0)
                    last = now
                    if done.is_set():
                        break
        return longest_s

    async def attack(client: httpx.AsyncClient, params: dict[str, Any]) -> None:
        body = {"text": "x", "sampling_params": {"max_new_tokens": 8, **params}}
        response = await client.post("/generate", json=body)
        if response.status_code == 200:
            assert response.json()["meta_info"]["finish_reason"]["type"] in ("stop", "length")
        else:
            assert response.status_code == 400, response.text
            [kind] = params
            assert kind in response.json()["error"]["message"]

    async def watched(attacks: list[dict[str, Any]]) -> float:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            done = asyncio.Event()
            watching = asyncio.create_task(stream(client, done))
            await asyncio.sleep(1.0)
            await asyncio.gather(*(attack(client, params) for params in attacks))
            done.set()
            return await watching

    calm_s = asyncio.run(watched([]))  # what the machine itself makes of it
    stormy_s = asyncio.run(watched(HOSTILE))
    assert stormy_s < max(STALL_S, 4 * calm_s), (calm_s, stormy_s)
    server.settle()
    answer = server.post("/generate", {"text": "x", "sampling_params": {"regex": "[0-9]{4}", "temperature": 0}}).json()
    assert len(answer["text"]) == 4
