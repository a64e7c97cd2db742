"""Chat templates: the same text as transformers, the sandbox, content forms, and errors that name the message."""

import time
from pathlib import Path
from typing import Any

import pytest

from radixlm.base.errors import ConfigError, ModelError, RequestError
from radixlm.config.flags import flags_of
from radixlm.config.groups import ServerConfig
from radixlm.frontend.template import ChatTemplate, RenderTimeout, built_in_templates, load_chat_template
from tests.helpers.vocabularies import byte_level

TURNS = """\
{% for m in messages %}
  {%- if m.role == 'system' and not loop.first %}{{ raise_exception('system must come first') }}{% endif %}
[{{ m.role }}] {{ m.content | trim }}
  {% if m.tool_calls %}{% for c in m.tool_calls %}CALL {{ c.function.arguments | tojson }}{% endfor %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}[assistant]{% endif %}"""
TOOLS = """{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"""
LISTS = """{% macro show(m) %}<{{ m.content }}>{% endmacro %}{% for m in messages recursive %}
{{ loop.index0 }}/{{ loop.length }}
{%- if loop.last %}{{ show(m) }}{% endif %}{% else %}none{% endfor %}"""
LOOPS = """{% for m in messages %}{% if m.content == 'skip' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}
{% generation %}x{{ strftime_now('%Y') }}{% endgeneration %}"""
PARTS = """{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}
{% for part in m.content %}({{ part.text }}){% endfor %}{% endif %}{% endfor %}"""
BARE_TOOLS = "{{ tools[0].parameters.x }}{% for m in messages %}{{ m.content }}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "get", "description": "<b>&é", "parameters": {"x": 1}}}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def template(text: str) -> ChatTemplate:
    return ChatTemplate({"default": text}, {"bos_token": "<s>"})


@pytest.mark.parametrize("text", [TURNS, TOOLS, LOOPS, PARTS, LISTS])
@pytest.mark.parametrize("generate", [True, False])
@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_renders_what_transformers_renders(text: str, generate: bool, tools: list[dict[str, Any]] | None) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    call = {"function": {"name": "get", "arguments": {"x": "é<"}}, "type": "function", "id": "1"}
    history = [{"role": "system", "content": " s "}, user("a"), assistant("b", tool_calls=[call]), user("skip")]
    [expected], _ = render_jinja_template(
        [history], tools=tools, chat_template=text, add_generation_prompt=generate, bos_token="<s>"
    )
    assert template(text).render(history, tools, generate) == expected


def test_text_parts_are_joined_or_passed_as_the_template_wants() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert template(TOOLS).render([user(parts)]) == "<s>one two"
    assert "(one)(two)" in template(PARTS).render([user(parts)])


def test_an_assistants_tool_calls_need_no_content_and_their_arguments_become_objects() -> None:
    call = {"function": {"name": "get", "arguments": '{"x": "é"}'}}
    history = [
        user("a"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "r"},
    ]
    assert 'CALL {"x": "é"}' in template(TURNS).render(history)
    del history[1]["content"]
    assert 'CALL {"x": "é"}' in template(TURNS).render(history)


def test_a_last_assistant_message_is_continued_or_becomes_a_users() -> None:
    history = [user("a"), assistant("I am")]
    assert template(TURNS).render(history, continue_final_message=True).endswith("[assistant]I am")
    assert "[user] I am" in template(TURNS).render(history)
    assert "[assistant] I am" in template(TURNS).render(history, add_generation_prompt=False)
    assert "[user] I am" in template(TURNS).render([assistant("I am")])
    parts = [{"type": "text", "text": "I"}, {"type": "text", "text": "am"}]
    assert (
        template(TURNS).render([user("a"), assistant(parts)], continue_final_message=True).endswith("[assistant]I am")
    )
    for last in (user("b"), assistant("I am", tool_calls=[{"function": {"name": "f"}}])):
        with pytest.raises(RequestError) as caught:
            template(TURNS).render([user("a"), last], continue_final_message=True)
        assert caught.value.field == "continue_final_message"


def test_thoughts_among_an_assistants_parts_are_set_apart() -> None:
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}]
    shown = "{% for m in messages %}({{ m.reasoning_content }})[{{ m.content }}]{% endfor %}"
    assert template(shown).render([assistant(parts, tool_calls=[{"function": {"name": "f"}}])]) == "(hm)[yes]"
    with pytest.raises(RequestError, match="text only"):
        template(shown).render([user(parts)])


def test_a_template_that_ignores_developers_is_given_the_system() -> None:
    shown = "{% if m.role in ['system', 'user'] %}{{ m.role }}:{{ m.content }} {% endif %}"
    known = "{% for m in messages %}" + shown + "{% endfor %}"
    messages = [{"role": "Developer", "content": "be kind"}, user("a")]
    assert template(known).render(messages) == "system:be kind user:a "
    assert (
        template("{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}").render(messages).startswith("dev")
    )


def test_rendering_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixlm.frontend.template.RENDER_LIMIT_S", 0.05)
    monkeypatch.setattr("radixlm.frontend.template.PROBE_LIMIT_S", 0.05)
    loops = "{% for i in range(9999) %}{% for j in range(9999) %}x{{ j }}{% endfor %}{% endfor %}"
    silent = "{% for i in range(9999) %}{% for j in range(9999) %}{% set x = j %}{% endfor %}{% endfor %}"
    macro = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    collected = "{% set x %}" + loops + "{% endset %}{{ x }}"
    for slow in (loops, silent, macro, collected):
        began = time.monotonic()
        with pytest.raises(RenderTimeout, match=r"more than 0\.05 s"):
            template(slow).render([user("a")])
        assert time.monotonic() - began < 2


def test_tools_choose_their_own_template_and_form() -> None:
    two = ChatTemplate({"default": "plain", "tool_use": "with tools"}, {})
    assert two.render([user("a")]) == "plain"
    assert two.render([user("a")], [TOOL]) == "with tools"
    assert template(BARE_TOOLS).render([user("a")], [TOOL]) == "1a"


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([user("a"), {"content": "x"}], "messages[1].role"),
        ([user("a"), user(3)], "messages[1].content"),
        ([user([{"type": "image_url", "image_url": {}}])], "messages[0].content[0]"),
        ([user([{"type": "text"}])], "messages[0].content[0].text"),
        ([user("a"), assistant("", tool_calls=[{}])], "messages[1].tool_calls[0].function"),
        (
            [user("a"), assistant("", tool_calls=[{"function": {"name": "f", "arguments": "{"}}])],
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            [user("a"), assistant("", tool_calls=[{"function": {"name": "f", "arguments": "[1]"}}])],
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            [assistant("", tool_calls=[{"function": {"name": "f", "arguments": "[" * 100_000}}])],
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([user("a"), {"role": "wizard", "content": "x"}], "messages[1].role"),
        ([user("a"), {"role": "system", "content": "late"}], "messages"),
    ],
)
def test_a_malformed_history_is_named(messages: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        template(TURNS).render(messages)
    assert caught.value.field == field
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__.os }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ messages[0].content.nope.nope }}",
    ],
)
def test_what_a_template_may_not_do_is_a_refusal(text: str) -> None:
    with pytest.raises(RequestError):
        template(text).render([user("a")])


def test_variables_reach_the_template() -> None:
    assert template("{{ x }}{{ bos_token }}{{ messages | length }}").render([user("a")], x=1, bos_token="b") == "1b1"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chatml", "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"),
        ("llama-2", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST]"),
        (
            "llama-3",
            "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU"
            "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("gemma", "<s><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\n"),
        ("vicuna", "S USER: U ASSISTANT:"),
        ("alpaca", "S\n\n### Instruction:\nU\n\n### Response:\n"),
    ],
)
def test_built_in_templates(name: str, expected: str) -> None:
    found = ChatTemplate({"default": built_in_templates()[name].read_text()}, {"bos_token": "<s>", "eos_token": "</s>"})
    history = [{"role": "system", "content": "S"}, user("U")]
    assert found.render(history) == expected
    whole = found.render([*history, {"role": "assistant", "content": "A"}, user("V")])
    assert whole.index("S") < whole.index("U") < whole.index("A") < whole.index("V")
    bare = ChatTemplate({"default": built_in_templates()[name].read_text()}, {})
    assert bare.render([user("U"), {"role": "assistant", "content": "A"}, user("V")])


def test_the_flags_help_names_the_built_in_templates() -> None:
    helps = {one.name: one.flag.help for one in flags_of("server", ServerConfig)}
    assert helps["chat_template"].endswith(f"or {', '.join(built_in_templates())}")


def test_default_variables_give_way_to_a_requests() -> None:
    mine = ChatTemplate({"default": "{{ x }}{{ y }}"}, {}, {"x": 1, "y": 2})
    assert mine.render([user("a")]) == "12" and mine.render([user("a")], y=3) == "13"


@pytest.mark.parametrize(
    "text",
    [
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set n = 9 %}{{ n ** (n ** n) }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 10 ** 10 * [1] }}",
        "{{ '%9999999999d' % 1 }}",
    ],
)
def test_what_operators_make_is_limited(text: str) -> None:
    never = template("{% if false %}" + text + "{% endif %}fine")
    assert never.render([user("a")]) == "fine"
    with pytest.raises(RequestError, match="something too large"):
        template(text).render([user("a")])


def test_operators_do_what_they_did() -> None:
    text = "{{ 'a' ~ 1 ~ none }}{{ 2 * 3 }}{{ 'x' * 2 }}{{ [1] + [2] }}{{ 7 % 3 }}{{ '%s-%d' % ('a', 5) }}{{ 2 ** 10 }}"
    assert template(text).render([user("a")]) == "a1None6xx[1, 2]1a-51024"


def test_templates_are_found(tmp_path: Path) -> None:
    found = load_chat_template(byte_level())
    assert found is not None and found.render([user("a")]) == "<|user|>a"
    file = tmp_path / "mine.jinja"
    file.write_text("mine {{ bos_token }}")
    mine = load_chat_template(byte_level(), str(file))
    assert mine is not None and mine.render([user("a")]) == "mine <s>"
    file.write_text("{% if %}")
    with pytest.raises(ConfigError, match="line 1"):
        load_chat_template(byte_level(), str(file))
    with pytest.raises(ConfigError, match="no such file, and it is none of alpaca, chatml"):
        load_chat_template(byte_level(), "chatmml")
    with pytest.raises(ModelError, match="syntax error"):
        template("{{ ")
