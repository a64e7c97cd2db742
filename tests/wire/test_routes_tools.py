"""Reasoning and tool calls over a real socket: streams and whole answers say the same, in the clients' shapes."""

import json

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from radixlm.frontend.template import ChatTemplate
from radixlm.protocol.grammar import Thinking
from radixlm.protocol.messages import FinishReason
from tests.wire.fake_manager import Script
from tests.wire.serving import live_server
from tests.wire.test_routes_generate import events

TEMPLATE = """\
{% if tools %}TOOLS{% for t in tools %} {{ t.function.name }}{% endfor %};{% endif %}
{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}
[{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}{% endfor %}
{% if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>
{% elif enable_thinking is defined %}<think>

</think>

{% endif %}{% endif %}"""
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PING = {"type": "function", "function": {"name": "ping"}}
TOOLS = [WEATHER, PING]
ONE = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Łódź"}}\n</tool_call>'
TWO = "Let me see.\n" + ONE + '\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
THOUGHT = "Hm, a city.\n</think>\n\n"


@pytest.fixture(scope="module")
def server():
    template = ChatTemplate({"default": TEMPLATE}, {})
    with live_server(template=template, reasoning_parser="qwen3", tool_call_parser="qwen") as live:
        yield live


@pytest.fixture
def live(server):
    server.manager.requests.clear()
    server.manager.script = lambda request: Script(["Hello"])
    return server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="-", max_retries=0) as client:
        yield client


def say(live, text, step=None, reason=None, after=""):
    """Let the model say `text`, `step` characters at a time."""
    pieces = [text[at : at + step] for at in range(0, len(text), step)] if step else [text]
    live.manager.script = lambda request: Script(pieces, reason or FinishReason("stop", matched=2))


def summed(chunks):
    """A stream added up: (message, finish_reason), and what OpenAI's clients rely on is checked."""
    content, reasoning, calls, reasons = "", "", [], []
    for chunk in chunks:
        [choice] = chunk["choices"]
        delta = choice["delta"]
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", []):
            if call["index"] == len(calls):
                assert set(call) == {"index", "id", "type", "function"} and call["type"] == "function"
                assert set(call["function"]) == {"name", "arguments"}
                calls.append([call["id"], call["function"]["name"], ""])
            else:
                assert call["index"] == len(calls) - 1
                assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
            calls[call["index"]][2] += call["function"]["arguments"]
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    [reason] = reasons
    assert chunks[-1]["choices"][0]["finish_reason"] == reason
    return content, reasoning, [tuple(call[1:]) for call in calls], reason


def whole(body):
    [choice] = body["choices"]
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return message["content"], message["reasoning_content"] or "", calls, choice["finish_reason"]


@pytest.mark.parametrize("step", [None, 1, 4, 64])
def test_calls_are_the_same_in_both_modes(live, step):
    say(live, THOUGHT + TWO, step)
    expected = (
        "\n\nLet me see.",
        "Hm, a city.\n",
        [("get_weather", '{"city": "Łódź"}'), ("ping", "{}")],
        "tool_calls",
    )
    asked = {"tools": TOOLS, "reasoning_effort": "high"}
    assert whole(live.chat("hi", **asked).json()) == expected
    assert summed(events(live.chat("hi", stream=True, **asked))) == expected


def test_the_request_that_is_made(live):
    live.chat("hi", tools=TOOLS)
    [request] = live.manager.requests
    assert request.text == "TOOLS get_weather ping;<user>hi<assistant>"
    assert request.sampling_params["skip_special_tokens"] is False
    live.chat("hi", tools=TOOLS, tool_choice="none")
    assert live.manager.requests[1].text == "<user>hi<assistant>"
    assert "skip_special_tokens" not in live.manager.requests[1].sampling_params


def test_tools_that_may_not_be_called_are_not_looked_for(live):
    say(live, ONE)
    message = live.chat("hi", tools=TOOLS, tool_choice="none").json()["choices"][0]
    assert message["message"]["content"] == ONE and message["finish_reason"] == "stop"
    assert "tool_calls" not in message["message"]
    assert live.chat("hi").json()["choices"][0]["message"]["content"] == ONE


def test_ids_of_calls(live):
    say(live, TWO)
    ids = [call["id"] for call in live.chat("hi", tools=TOOLS).json()["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    for one in ids:
        assert one.startswith("call_") and len(one) == 29 and int(one[5:], 16) >= 0


def test_a_format_with_ids_of_its_own(live):
    text = "<|tool_call_begin|>functions.ping:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
    with live_server(tool_call_parser="kimi_k2") as kimi:
        say(kimi, text)
        [call] = kimi.chat("hi", tools=TOOLS).json()["choices"][0]["message"]["tool_calls"]
        assert call["id"] == "functions.ping:3"


def test_truncated_calls_end_by_length_and_are_not_repaired(live):
    say(live, ONE[: ONE.index("ódź")], 3, FinishReason("length", length=9))
    expected = ("", "", [("get_weather", '{"city": "Ł')], "length")
    assert whole(live.chat("hi", tools=TOOLS).json())[:4] == expected
    assert summed(events(live.chat("hi", tools=TOOLS, stream=True))) == expected


def test_text_that_is_no_call_comes_as_it_is(live):
    say(live, "<tool_call>\nnone of these\n</tool_call>", 5)
    expected = ("<tool_call>\nnone of these\n</tool_call>", "", [], "stop")
    assert whole(live.chat("hi", tools=TOOLS).json()) == expected
    assert summed(events(live.chat("hi", tools=TOOLS, stream=True))) == expected


def test_siblings_have_parsers_of_their_own(live):
    say(live, TWO, 3)
    body = live.chat("hi", tools=TOOLS, n=3).json()
    assert [len(choice["message"]["tool_calls"]) for choice in body["choices"]] == [2, 2, 2]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["tool_calls"] * 3


# ---- thinking


@pytest.mark.parametrize("stream", [False, True])
def test_the_prompt_says_whether_an_answer_begins_with_thinking(live, stream):
    def ask(**fields):
        answer = live.chat("hi", stream=stream, **fields)
        return (summed(events(answer)) if stream else whole(answer.json()))[:2]

    say(live, "Hm</think>Yes", 1)
    assert ask(chat_template_kwargs={"enable_thinking": True}) == ("Yes", "Hm")
    assert ask(reasoning={"enabled": True}) == ("Yes", "Hm")
    say(live, "Yes", 1)
    assert ask(chat_template_kwargs={"enable_thinking": False}) == ("Yes", "")
    assert ask(reasoning_effort="none") == ask(reasoning={"effort": "none"}) == ("Yes", "")
    assert ask() == ("Yes", "")
    say(live, "<think>Hm</think>Yes", 1)
    assert ask() == ("Yes", "Hm")
    assert ask(separate_reasoning=False) == ("<think>Hm</think>Yes", "")


def test_a_prompt_of_token_ids_says_it_too(live):
    say(live, "Hm</think>Yes")
    ids = [ord(character) for character in "<assistant><think>\n"]
    assert whole(live.chat("hi", input_ids=ids).json())[:2] == ("Yes", "Hm")


def test_thinking_in_one_piece(live):
    say(live, "Hm, well</think>Yes", 2)
    chunks = events(live.chat("hi", stream=True, stream_reasoning=False, reasoning_effort="low"))
    told = [chunk["choices"][0]["delta"].get("reasoning_content") for chunk in chunks]
    assert [text for text in told if text] == ["Hm, well"]


def test_tokens_of_thinking_are_counted(live):
    text = "Hm, ł</think>Yes"
    for step in (1, 5, None):
        say(live, text, step)
        usage = live.chat("hi", reasoning_effort="low").json()["usage"]
        assert usage["reasoning_tokens"] == len("Hm, ł</think>")
        chunks = events(
            live.chat("hi", reasoning_effort="low", stream=True, n=2, stream_options={"include_usage": True})
        )
        assert chunks[-1]["usage"]["reasoning_tokens"] == 2 * len("Hm, ł</think>")
    assert live.chat("hi", reasoning_effort="none").json()["usage"]["reasoning_tokens"] == 0


def test_continued_thinking(live):
    say(live, " done</think>Yes")
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>Hm"}]
    body = {"messages": messages, "continue_final_message": True}
    assert whole(live.http.post("/v1/chat/completions", json=body).json())[:2] == ("Yes", " done")
    assert live.manager.requests[0].text.endswith("<assistant><think>Hm")


def test_an_answer_that_is_only_thinking_can_be_content(live):
    say(live, "Hm")
    kwargs = {"enable_thinking": True, "force_nonempty_content": True}
    assert whole(live.chat("hi", chat_template_kwargs=kwargs).json())[:2] == ("Hm", "Hm")


# ---- what grammars make sure of


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_cannot_be_compiled_names_the_field(live, stream):
    """The scheduler says so only later; the clients see the route's own name."""
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "banana"}}}
    for fields, native, own in (
        ({"response_format": schema}, "json_schema", "response_format"),
        ({"regex": "("}, "regex", "regex"),
        ({"tools": TOOLS, "tool_choice": NAMED}, "tools", "tools"),
    ):
        message = f"Failed to compile {native} grammar: no"
        live.manager.script = lambda request, native=native, message=message: Script(
            [], FinishReason("abort", message=message, status_code=400, field=native)
        )
        refused = live.chat("hi", stream=stream, **fields)
        assert refused.status_code == 400 and refused.json()["param"] == own
    assert live.manager.requests[-1].grammar_field == "tools"


NAMED = {"type": "function", "function": {"name": "get_weather"}}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_is_a_grammar_in_the_models_own_form(live, stream):
    say(live, ONE, 4)
    answer = live.chat("hi", tools=TOOLS, tool_choice=NAMED, stream=stream)
    told = summed(events(answer)) if stream else whole(answer.json())
    assert told == ("", "", [("get_weather", '{"city": "Łódź"}')], "tool_calls")
    [request] = live.manager.requests
    tag = json.loads(request.sampling_params["structural_tag"])
    assert [structure["schema"]["required"] for structure in tag["structures"]] == [["city"]]
    assert tag["at_least_one"] and tag["tags_only"] and tag["stop_after_first"]
    assert request.text.startswith("TOOLS get_weather;") and request.thinking == Thinking("</think>", "<think>", False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("text", "reason"), [(ONE[:64], "stop"), (ONE, "tool_calls")])
def test_a_stop_string_that_cuts_a_call_is_why_it_ends(live, stream, text, reason):
    """One after a whole call cuts nothing."""
    say(live, text, 4, FinishReason("stop", matched="Łó"))
    answer = live.chat("hi", tools=TOOLS, tool_choice=NAMED, stop=["Łó"], stream=stream)
    _, _, [(name, arguments)], told = summed(events(answer)) if stream else whole(answer.json())
    assert name == "get_weather" and told == reason and (reason == "stop") is not arguments.endswith("}")
    tool = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    body = live.http.post("/v1/messages", json={**asked, "stop_sequences": ["Łó"]}).json()
    assert (body["stop_reason"], body["stop_sequence"]) == (
        ("stop_sequence", "Łó") if reason == "stop" else ("tool_use", None)
    )


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_most_is_a_schema_and_read_as_such(live, stream):
    say(live, '[{"name": "ping", "parameters": {"n": 1}}]', 4)
    fields = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "reasoning_effort": "none"}
    answer = live.chat("hi", stream=stream, **fields)
    told = summed(events(answer)) if stream else whole(answer.json())
    assert told == ("", "", [("ping", '{"n": 1}')], "tool_calls")
    [request] = live.manager.requests
    assert json.loads(request.sampling_params["json_schema"])["maxItems"] == 1 and request.thinking is None


def test_strict_tools_leave_the_answer_free_until_a_call(live):
    live.chat("hi", tools=[STRICT, PING])
    live.chat("hi", tools=[STRICT], response_format={"type": "json_object"}, reasoning_effort="low")
    first, second = live.manager.requests
    assert json.loads(first.sampling_params["structural_tag"])["at_least_one"] is False
    assert second.sampling_params["json_schema"] == '{"type": "object"}' and second.thinking == Thinking("</think>")
    assert "structural_tag" not in second.sampling_params
    with live_server(tool_call_parser="glm45") as other:
        refused = other.chat("hi", tools=[STRICT])
        assert refused.status_code == 400 and refused.json()["param"] == "tools[0].function.strict"
        say(other, '[{"name": "get_weather", "parameters": {}}]')
        assert whole(other.chat("hi", tools=[STRICT], tool_choice="required").json())[2] == [("get_weather", "{}")]


def test_formats_and_processors_arrive(live):
    schema = {"type": "object", "properties": {"a": {"type": "null"}}}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "strict": False, "schema": schema}}
    live.chat("hi", response_format=asked, custom_logit_processor="P", custom_params={"thinking_budget": 3})
    live.chat("hi", response_format={"type": "json_schema", "schema": schema})
    live.chat("hi", regex="a+")
    live.http.post("/v1/completions", json={"prompt": "x", "ebnf": "root ::= x"})
    live.generate(text="x<think>", require_reasoning=True, sampling_params={"regex": "a"}, custom_logit_processor="Q")
    one, two, three, four, five = live.manager.requests
    assert json.loads(one.sampling_params["json_schema"]) == json.loads(two.sampling_params["json_schema"]) == schema
    assert one.processor == "P" and one.sampling_params["custom_params"] == {"thinking_budget": 3}
    assert three.sampling_params["regex"] == "a+" and four.sampling_params["ebnf"] == "root ::= x"
    assert four.answer_at_once and not five.answer_at_once
    assert five.processor == "Q" and five.thinking == Thinking("</think>")


# ---- refusals


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (
            {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
            *("tool_choice", "give one of them"),
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nobody"}}},
            *("tool_choice", "Tool 'nobody' not found in tools list."),
        ),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice", "must be one of"),
        ({"tools": [PING, {"type": "web_search"}]}, "tools[1]", "type function"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name", "name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            *("tools[0].function.parameters", "JSON schema"),
        ),
        ({"reasoning": {"enabled": "yes"}}, "reasoning", "true or false"),
    ],
)
def test_what_is_refused(live, fields, param, words):
    refused = live.chat("hi", **fields)
    assert refused.status_code == 400
    assert refused.json()["param"] == param and words in refused.json()["message"]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "user", "content": "a"}, {"role": "wizard", "content": "b"}], "messages[1].role"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([], "messages"),
    ],
)
def test_a_malformed_history_is_named(live, messages, param):
    refused = live.http.post("/v1/chat/completions", json={"messages": messages})
    assert refused.status_code == 400 and refused.json()["param"] == param


def test_only_the_assistants_words_are_continued(live):
    refused = live.chat("hi", continue_final_message=True)
    assert refused.status_code == 400 and refused.json()["param"] == "continue_final_message"


def test_a_template_that_takes_too_long_is_stopped(live, monkeypatch):
    monkeypatch.setattr("radixlm.frontend.template.RENDER_LIMIT_S", 0.0)
    refused = live.chat("hi", tools=TOOLS)
    assert refused.status_code == 400 and "needs more than 0 s" in refused.json()["message"]


# ---- the official client


def loop(client, stream):
    """Ask, answer the call, ask again; the two messages of the assistant."""
    messages = [{"role": "user", "content": "How is Łódź?"}]
    said = []
    for _ in range(2):
        if stream:
            state = ChatCompletionStreamState()
            for chunk in client.chat.completions.create(model="m", messages=messages, tools=TOOLS, stream=True):
                state.handle_chunk(chunk)
            message = state.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0].message
        said.append(message)
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls or []:
            city = json.loads(call.function.arguments)["city"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"rain in {city}"})
    return said


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop_of_two_turns(client, live, stream):
    live.manager.script = lambda request: Script(["It rains."] if "<tool>" in request.text else list(ONE))
    first, second = loop(client, stream)
    [call] = first.tool_calls
    assert call.type == "function" and call.function.name == "get_weather"
    assert (second.content, second.tool_calls) == ("It rains.", None)
    assert f'[{call.id} get_weather {{"city": "Łódź"}}]<tool>rain in Łódź' in live.manager.requests[1].text


def test_an_assistant_turn_with_calls_and_no_content(live):
    call = {"id": "1", "type": "function", "function": {"name": "ping", "arguments": ""}}
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "pong"}]},
        {"role": "user", "content": "b"},
    ]
    assert live.http.post("/v1/chat/completions", json={"messages": history}).status_code == 200
    assert "[1 ping {}]<tool>pong" in live.manager.requests[0].text


# ---- the parsers by themselves


def test_parse_function_call(live):
    body = {"text": "Well. " + TWO, "tools": TOOLS, "tool_call_parser": "qwen25"}
    assert live.http.post("/parse_function_call", json=body).json() == {
        "normal_text": "Well. Let me see.",
        "calls": [
            {"tool_index": 0, "name": "get_weather", "parameters": '{"city": "Łódź"}'},
            {"tool_index": 1, "name": "ping", "parameters": "{}"},
        ],
    }
    long = live.http.post("/parse_function_call", json=body | {"text": "x" * 300_000})
    assert long.status_code == 400 and long.json()["error"]["param"] == "text"
    refused = live.http.post("/parse_function_call", json=body | {"tool_call_parser": "nope"})
    assert refused.status_code == 400 and "unknown tool-call parser 'nope'" in refused.json()["error"]["message"]
    del body["tool_call_parser"]
    assert len(live.http.post("/parse_function_call", json=body).json()["calls"]) == 2


def test_separate_reasoning(live):
    body = {"text": "Hm</think>Yes", "reasoning_parser": "deepseek-r1"}
    assert live.http.post("/separate_reasoning", json=body).json() == {"reasoning_text": "Hm", "text": "Yes"}
    shown = live.http.post("/separate_reasoning", json=body | {"return_blocks": True}).json()
    assert shown["reasoning_blocks"] == ["Hm"] and shown["text_blocks"] == ["Yes"]
    assert shown["blocks"] == [{"type": "reasoning", "text": "Hm"}, {"type": "text", "text": "Yes"}]
    refused = live.http.post("/separate_reasoning", json=body | {"reasoning_parser": "nope"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "reasoning_parser"


def test_the_names_are_shown(live):
    info = live.http.get("/model_info").json()
    assert (info["reasoning_parser"], info["tool_call_parser"]) == ("qwen3", "qwen")


def test_without_parsers_text_is_content():
    with live_server() as plain:
        say(plain, THOUGHT + ONE)
        message = plain.chat("hi", tools=TOOLS).json()["choices"][0]["message"]
        assert message["content"] == THOUGHT + ONE and "tool_calls" not in message
        refused = plain.http.post("/separate_reasoning", json={"text": "x"})
        assert refused.status_code == 400
