"""Answers as the families write them, and what they mean. Values are unusual words, so that losing one is seen."""

import json
from dataclasses import dataclass, field
from typing import Any

from radixlm.parsers.tools.toolbox import Tool, Toolbox

TOOLS = Toolbox(
    [
        Tool(
            "get_weather",
            parameters={
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "hourly": {"type": "boolean"},
                    "where": {"type": "object"},
                    "tags": {"type": "array"},
                    "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "shape": {"$ref": "#/$defs/shape"},
                },
                "$defs": {"shape": {"type": ["number", "string"]}},
            },
        ),
        Tool("ping", parameters={"type": "object", "properties": {}}),
        Tool("ns.find-it", parameters={}),
    ]
)


@dataclass(frozen=True)
class Case:
    """One answer: its format, its text, and the content and calls in it. `ids` are the calls' own."""

    parser: str
    text: str
    content: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    ids: list[str | None] | None = None


PARIS = {"city": "Paris", "days": 3}
ODD = {"city": 'Qu"oted </tool_call> \\ é🦜 {[', "where": {"deep": [1, {"x": None}]}, "hourly": True}
WEATHER = ("get_weather", PARIS)
ODDITY = ("get_weather", ODD)
PING = ("ping", {})


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def hermes(name: str, arguments: Any, key: str = "arguments", line: str = "\n") -> str:
    return f'<tool_call>{line}{{"name": "{name}", "{key}": {dumps(arguments)}}}{line}</tool_call>'


def deepseek(name: str, arguments: Any, begin: bool = True, end: bool = True) -> str:
    call = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumps(arguments)}\n```<｜tool▁call▁end｜>"
    return "<｜tool▁calls▁begin｜>" * begin + call + "<｜tool▁calls▁end｜>" * end


def deepseek31(name: str, arguments: Any) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumps(arguments)}<｜tool▁call▁end｜>"


def kimi(name: str, index: int, arguments: Any) -> str:
    return f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{dumps(arguments)}<|tool_call_end|>"


def coder(name: str, **fields: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in fields.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def glm(name: str, line: str = "\n", **fields: str) -> str:
    inner = "".join(
        f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}" for key, value in fields.items()
    )
    return f"<tool_call>{name}{line}{inner}</tool_call>"


def invoke(prefix: str, name: str, attributes: str = "", **fields: str) -> str:
    inner = "".join(
        f'<{prefix}parameter name="{key}"{attributes}>{value}</{prefix}parameter>\n' for key, value in fields.items()
    )
    return f'<{prefix}invoke name="{name}">\n{inner}</{prefix}invoke>\n'


def minimax(*calls: str) -> str:
    return "<minimax:tool_call>\n" + "".join(calls) + "</minimax:tool_call>"


def step3(*calls: str) -> str:
    inner = "".join(f"<｜tool_call_begin｜>function<｜tool_sep｜>{call.strip()}<｜tool_call_end｜>\n" for call in calls)
    return f"<｜tool_calls_begin｜>\n{inner}<｜tool_calls_end｜>"


def dsml(*calls: str, section: str = "function_calls", mark: str = "｜DSML｜") -> str:
    return f"<{mark}{section}>\n" + "".join(calls) + f"</{mark}{section}>"


def harmony(name: str, arguments: Any, end: str = "<|call|>") -> str:
    return (
        f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        f"{dumps(arguments)}{end}"
    )


def cohere(*calls: tuple[str, Any]) -> str:
    items = [{"tool_call_id": str(i), "tool_name": name, "parameters": args} for i, (name, args) in enumerate(calls)]
    return f"<|START_ACTION|>{json.dumps(items, ensure_ascii=False, indent=4)}<|END_ACTION|>"


D31 = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
KIMI = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
BOTH = [WEATHER, PING]
FULL = {"city": "New York\n{not json}", "days": "5", "hourly": "True", "where": '{"lat": 1.5}', "tags": '["Ax", 2]'}
FULL_CALL = (
    "get_weather",
    {"city": "New York\n{not json}", "days": 5, "hourly": True, "where": {"lat": 1.5}, "tags": ["Ax", 2]},
)
FLAT = {"city": 'Łódź <b> & "q"', "days": "7", "unit": "null", "shape": "1.5"}
FLAT_CALL = ("get_weather", {"city": 'Łódź <b> & "q"', "days": 7, "unit": None, "shape": 1.5})

CASES = [
    Case("qwen", "Plain words, no call at all.\n", "Plain words, no call at all.\n"),
    Case("qwen", hermes(*WEATHER), "", [WEATHER]),
    Case("qwen", "Let me look.\n" + hermes(*ODDITY) + "\n" + hermes(*PING), "Let me look.", [ODDITY, PING]),
    Case("qwen", "\n\n" + hermes(*WEATHER) + "\nDone <now>.", "Done <now>.", [WEATHER]),
    Case("qwen", hermes("nobody", PARIS) + hermes(*PING), "", [PING]),
    Case("qwen", "<tool_call>\nnot json\n</tool_call>", "<tool_call>\nnot json\n</tool_call>"),
    Case("qwen", "a < b and <tool_c and <tool_call", "a < b and <tool_c and <tool_call"),
    Case("qwen", '<tool_call>{"arguments": {"city": "Rome"}, "name": "get_weather"}</tool_call>', "",
         [("get_weather", {"city": "Rome"})]),
    Case("qwen", '<tool_call>{"name": "ping"}</tool_call>', "", [PING]),
    Case("qwen", '<tool_call>{"name": "ns.find-it", "arguments": "{\\"q\\": 1}"}</tool_call>', "",
         [("ns.find-it", {"q": 1})]),
    Case("qwen", '<tool_call>{"name": "ping", "arguments": {}}<tool_call>{"name": "ping", "arguments": {}}', "",
         [PING, PING]),
    Case("hermes", hermes(*WEATHER, line="") + hermes(*ODDITY, line=""), "", [WEATHER, ODDITY]),
    Case("trinity", hermes(*WEATHER), "", [WEATHER]),
    Case("interns1", 'Ok.<|action_start|> <|plugin|>\n{"name": "ping", "parameters": {}}<|action_end|>', "Ok.", [PING]),
    Case("gigachat3", "<|function_call|>" + dumps({"name": "get_weather", "arguments": PARIS}), "", [WEATHER]),
    Case("gigachat3", "function call<|role_sep|>\n" + dumps({"name": "ping", "arguments": {}}), "", [PING]),
    Case("llama3", "<|python_tag|>" + dumps({"name": "get_weather", "parameters": PARIS}), "", [WEATHER]),
    Case("llama3", dumps({"name": "get_weather", "parameters": ODD}), "", [ODDITY]),
    Case("llama3", dumps({"type": "function", "function": "ping", "parameters": {}}), "", [PING]),
    Case("llama3", '{"name": "ping", "parameters": {}}; ' + dumps({"name": "get_weather", "parameters": PARIS}),
         "", [PING, WEATHER]),
    Case("llama3", '{"name": "Alice", "age": 7} is the answer', '{"name": "Alice", "age": 7} is the answer'),
    Case("llama3", '{"city": "Oslo"}', '{"city": "Oslo"}'),
    Case("llama3", "<|python_tag|>print(1)", "<|python_tag|>print(1)"),
    Case("llama3", "The set {1, 2}.", "The set {1, 2}."),
    Case("mistral", "[TOOL_CALLS] " + dumps([{"name": n, "arguments": a} for n, a in BOTH]), "", BOTH),
    Case("mistral", f"Hm [TOOL_CALLS]get_weather[ARGS]{dumps(ODD)}[TOOL_CALLS]ping[ARGS]{{}}", "Hm", [ODDITY, PING]),
    Case("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{dumps(PARIS)}", "", [WEATHER]),
    Case("mistral", f"[TOOL_CALLS]get_weather{dumps(PARIS)}", "", [WEATHER]),
    Case("mistral", "[TOOL_CALLS] nothing of the kind", "[TOOL_CALLS] nothing of the kind"),
    Case("cohere_command4", cohere(WEATHER, PING), "", BOTH),
    Case("apertus2509", f"<|tools_prefix|>[{dumps({'get_weather': PARIS})}, {dumps({'ping': {}})}]<|tools_suffix|>", "",
         BOTH),
    Case("deepseekv3", "Sure. " + deepseek(*WEATHER), "Sure.", [WEATHER]),
    Case("deepseekv3", deepseek(*ODDITY, end=False) + "\n" + deepseek(*PING, begin=False), "", [ODDITY, PING]),
    Case("deepseekv31", D31.format(deepseek31(*ODDITY) + deepseek31(*PING)), "", [ODDITY, PING]),
    Case("kimi_k2", "Hi " + KIMI.format(kimi("get_weather", 0, ODD) + kimi("ping", 1, {})), "Hi", [ODDITY, PING],
         ["functions.get_weather:0", "functions.ping:1"]),
    Case("kimi_k2", kimi("ns.find-it", 12, {"a": "b"}), "", [("ns.find-it", {"a": "b"})], ["functions.ns.find-it:12"]),
    Case("gpt-oss", harmony(*ODDITY), "", [ODDITY]),
    Case("gpt-oss", harmony(*WEATHER, end="") + harmony(*PING), "", BOTH),
    Case("gpt-oss", " to=functions.ping<|channel|>commentary json<|message|>{}<|call|>", "", [PING]),
    Case("gpt-oss", f"<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{dumps(PARIS)}",
         "", [WEATHER]),
    Case("gpt-oss", "I to=see <|x|>", "I to=see <|x|>"),
    Case("qwen3_coder", "Now.\n" + coder("get_weather", **FULL), "Now.", [FULL_CALL]),
    Case("qwen3_coder", coder("get_weather", **FLAT) + "\n" + coder("ping"), "", [FLAT_CALL, PING]),
    Case("qwen3_coder", "<function=ping>\n</function>", "", [PING]),
    Case("qwen3_coder", "<tool_call>\n<function of it", "<tool_call>\n<function of it"),
    Case("step3p5", coder("get_weather", **FULL), "", [FULL_CALL]),
    Case("glm45", glm("get_weather", **FULL) + "\n" + glm("ping"), "", [FULL_CALL, PING]),
    Case("glm47", "Well. " + glm("get_weather", line="", **FLAT), "Well.", [FLAT_CALL]),
    Case("glm", "<tool_call> is a tag", "<tool_call> is a tag"),
    Case("hunyuan", "<tool_calls>" + glm("get_weather<tool_sep>", **FULL) + "</tool_calls>", "", [FULL_CALL]),
    Case("minimax-m2", minimax(invoke("", "get_weather", **FULL), invoke("", "ping")), "", [FULL_CALL, PING]),
    Case("step3", "Go\n" + step3(invoke("steptml:", "get_weather", **FLAT), invoke("steptml:", "ping")), "Go",
         [FLAT_CALL, PING]),
    Case("deepseekv32", dsml(
        '<｜DSML｜invoke name="get_weather"><｜DSML｜parameter name="city" string="true">12</｜DSML｜parameter>'
        '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter></｜DSML｜invoke>',
        invoke("｜DSML｜", "ping")), "", [("get_weather", {"city": "12", "days": 2}), PING]),
    Case("deepseekv32", dsml(f'<｜DSML｜invoke name="get_weather">{dumps(PARIS)}</｜DSML｜invoke>'), "", [WEATHER]),
    Case("deepseekv4", dsml(invoke("｜DSML｜", "get_weather", **FLAT), section="tool_calls"), "", [FLAT_CALL]),
    Case("gigachat35", dsml(invoke("｜GCML｜", "ping"), section="tool_calls", mark="｜GCML｜"), "", [PING]),
    Case("pythonic", '[get_weather(city="Par\\"is", days=3), ping()]', "",
         [("get_weather", {"city": 'Par"is', "days": 3}), PING]),
    Case("pythonic", "So <|python_start|>[get_weather(where={'a': [1, None]}, hourly=True,)]<|python_end|>", "So",
         [("get_weather", {"where": {"a": [1, None]}, "hourly": True})]),
    Case("pythonic", "See [a link](http://x) and [1, 2] or [nobody(x=1)].",
         "See [a link](http://x) and [1, 2] or [nobody(x=1)]."),
    Case("lfm2", "<|tool_call_start|>[get_weather(city='Paris', days=3), nobody(a=1), ping()]<|tool_call_end|>Ok", "Ok",
         BOTH),
    Case("lfm2", f"<|tool_call_start|>[{dumps({'name': 'get_weather', 'arguments': PARIS})}]<|tool_call_end|>", "",
         [WEATHER]),
    Case("gemma4", '<|tool_call>call:get_weather{city:<|"|>Par "is", {x<|"|>,days:3,hourly:true,'
                   'tags:[<|"|>Ax<|"|>,-1.5],where:{deep:{k:null}}}<tool_call|>', "",
         [("get_weather", {"city": 'Par "is", {x', "days": 3, "hourly": True, "tags": ["Ax", -1.5],
                           "where": {"deep": {"k": None}}})]),
    Case("gemma4", "Now <|tool_call>call:ping{}<tool_call|>", "Now", [PING]),
]  # fmt: skip
