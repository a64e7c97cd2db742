"""All grammar backends behind one interface: what they accept is the same, and what they refuse says why."""

import json
import re
from functools import cache
from typing import Any

import pytest

from radixlm.grammar.base import Grammar, GrammarBackend, GrammarError, Source, Whitespace
from radixlm.grammar.table import BACKENDS
from radixlm.protocol.grammar import Kind
from tests.unit.grammar.vocabulary import OTHER_STOP, STOP, VOCABULARY, allowed, follows, longest_first

ALL = ("xgrammar", "llguidance", "outlines")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ENUM = {"enum": ["on", "off", 3, None]}
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "required": ["v"],
            "additionalProperties": False,
        }
    },
}
TAG = {
    "structures": [{"begin": "<f=a>", "schema": PERSON, "end": "</f>"}, {"begin": "<f=b>", "schema": ENUM, "end": "."}],
    "triggers": ["<f="],
}
NAMED: dict[str, Any] = {**TAG, "at_least_one": True, "tags_only": True}
EBNF = 'root ::= "let " name (", " name)* ";"\nname ::= [a-z] [a-z0-9]*'
# kind, text, answers, texts that are none, the backends that take it
CORPUS: list[tuple[Kind, str, list[str], list[str], tuple[str, ...]]] = [
    ("regex", r"(yes|no)", ["yes", "no"], ["", "ye", "yesno", "maybe"], ALL),
    ("regex", r"a{2,4}b?", ["aa", "aaaab"], ["a", "aaaaa", "b"], ALL),
    ("regex", r"[0-9]{3}-[0-9]{4}", ["123-4567"], ["1234567", "123-456"], ALL),
    ("json_schema", json.dumps(ENUM), ['"on"', "3", "null"], ['"of"', "4", "on"], ALL),
    (
        "json_schema",
        json.dumps(PERSON),
        ['{"name":"ł","age":-12}', '{ "name": "", "age": 0, "ok": true}'],
        ['{"name":"x"}', '{"name":1,"age":2}', '{"name":"x","age":1,"no":2}', "[]", '{"name":"\n","age":1}'],
        ALL,
    ),
    ("json_schema", json.dumps(TREE), ['{"v":1,"kids":[{"v":2}]}'], ['{"kids":[]}'], ALL),
    ("ebnf", EBNF, ["let a;", "let x1, y;"], ["let ;", "let a", "let A;"], ALL[:2]),
    (
        "structural_tag",
        json.dumps(TAG),
        ["free < text", 'so <f=b>"on". and <f=a>{"name":"x","age":1}</f>', ""],
        ["<f=c>", '<f=b>"no".', '<f=b>"on"'],
        ALL[:2],
    ),
    (
        "structural_tag",
        json.dumps(NAMED),
        ['<f=b>"on".', '<f=b>3.\n<f=b>"off".'],
        ["", "free", '<f=b>"on". text'],
        ALL[:2],
    ),
    ("structural_tag", json.dumps({**NAMED, "stop_after_first": True}), ["<f=b>3."], ["<f=b>3.\n<f=b>3."], ALL[:2]),
]
PATTERNS = [
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    r"[A-Z][a-z]+ [A-Z][a-z]+",
    r"(\+[0-9]{1,3} )?[0-9]{3}-[0-9]{4}",
    r"#[0-9a-f]{6}",
    r"v[0-9]+\.[0-9]+\.[0-9]+",
    r"[a-z]+@[a-z]+\.(com|org)",
    r"(red|green|blue)(, (red|green|blue)){0,3}",
    r"-?[0-9]+(\.[0-9]+)?",
    r"[a-z_]{3,8}",
    r"0x[0-9A-F]+",
    r"(ab|ba)+",
    r"[^\n]{5}",
    r"a?b?c?d",
    r"(GET|POST) /[a-z/]*",
    r"\$[0-9]{1,3}(,[0-9]{3})*",
    r"[aeiou]{2}[^aeiou\s]",
    r"(0|1){8}",
    r"żółw|krąg",
    r"[\u4e00-\u4e05]{2}",
    r"\[([0-9],)*[0-9]\]",
]


@cache
def backend(name: str) -> GrammarBackend:
    return BACKENDS.load(name)(VOCABULARY)


def grammar(name: str, kind: Kind, text: str, whitespace: Whitespace | None = None) -> Grammar:
    return backend(name).compile(Source(kind, text, whitespace or Whitespace()))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("kind", "text", "answers", "others", "takers"), CORPUS)
def test_backends_agree(
    kind: Kind, text: str, answers: list[str], others: list[str], takers: tuple[str, ...], name: str
) -> None:
    reasons = BACKENDS.load(name).why_not(Source(kind, text))
    assert bool(reasons) is (name not in takers), reasons
    if reasons:
        return
    made = grammar(name, kind, text)
    for answer in answers:
        assert follows(made, answer.encode()), answer
        assert follows(made, answer.encode(), longest_first(answer.encode())), answer
    for other in others:
        assert not follows(made, other.encode()), other


@pytest.mark.parametrize("name", ALL)
def test_a_walk_through_twenty_patterns_always_matches(name: str) -> None:
    import random

    for number, pattern in enumerate(PATTERNS):
        made, draw = grammar(name, "regex", pattern), random.Random(number)
        for _ in range(3):
            matcher, text = made.matcher(), b""
            for _ in range(200):
                may = allowed(matcher)
                assert may, (pattern, text)
                if may <= {STOP, OTHER_STOP} or (matcher.may_end() and (draw.random() < 0.3 or len(text) > 40)):
                    break
                token = draw.choice(sorted(may - {STOP, OTHER_STOP}))
                assert matcher.accept(token)
                text += VOCABULARY.texts[token]
            assert re.fullmatch(pattern, text.decode()), (pattern, text)


@pytest.mark.parametrize("name", ALL)
def test_rollback_and_the_end(name: str) -> None:
    matcher = grammar(name, "regex", "abc?").matcher()
    start = allowed(matcher)
    assert matcher.accept(ord("a")) and matcher.accept(ord("b"))
    assert allowed(matcher) == {ord("c"), STOP, OTHER_STOP}
    matcher.rollback(2)
    assert allowed(matcher) == start and not matcher.may_end()
    assert matcher.accept(256 + 7) and matcher.may_end()  # "ab" as one token
    assert matcher.accept(OTHER_STOP)
    assert not allowed(matcher) & set(range(256))


@pytest.mark.parametrize(
    ("name", "whitespace", "answers", "others"),
    [
        (name, whitespace, answers, others)
        for name in ALL
        for whitespace, answers, others in (
            (Whitespace(0), ['{"a":1}'], ['{ "a":1}', '{"a": 1}']),
            (Whitespace(3), ['{ "a":1}', '{"a": 1}'], ['{    "a":1}', '{"a":    1}']),
            (Whitespace(3, "[_]{0,2}"), ['{__"a":1}'], ['{ "a":1}', '{___"a":1}']),
        )
        if not (name == "xgrammar" and whitespace.pattern)
    ],
)
def test_whitespace_is_bounded(name: str, whitespace: Whitespace, answers: list[str], others: list[str]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    made = grammar(name, "json_schema", json.dumps(schema), whitespace)
    assert all(follows(made, text.encode()) for text in answers)
    assert not any(follows(made, text.encode()) for text in others)


@pytest.mark.parametrize(
    ("name", "kind", "text", "words"),
    [
        ("xgrammar", "regex", "(((", "parenthesis"),
        ("llguidance", "regex", "a(b", "regular expression is not valid at position 2: unclosed group"),
        ("llguidance", "regex", "a(?=b)", "cannot be enforced at position 2: look-around"),
        ("llguidance", "regex", r"\bword\b", "word boundaries"),
        ("llguidance", "json_schema", '{"$ref": "#"}', "refers to itself"),
        (
            "llguidance",
            "json_schema",
            '{"minItems": 3, "maxItems": 1, "type": "array"}',
            "^no value follows",
        ),
        ("xgrammar", "regex", "a{3,1}", "^Lower bound is larger"),
        ("outlines", "regex", "(((", "regular expression is not valid"),
        ("outlines", "regex", r"\bword\b", "word boundaries"),
        ("xgrammar", "ebnf", "root ::= nothing", "nothing"),
        ("llguidance", "ebnf", "root ::= nothing", "nothing"),
        ("xgrammar", "json_schema", '{"$ref": "#/nowhere"}', "nowhere"),
        ("llguidance", "json_schema", '{"$ref": "#/nowhere"}', "nowhere"),
        ("llguidance", "json_schema", '{"type": "banana"}', "banana"),
        ("llguidance", "json_schema", '{"not": {}}', "not"),
        ("llguidance", "structural_tag", '{"structures": []}', "structures"),
        ("xgrammar", "structural_tag", '{"format": {"type": "nope"}}', "^Format type not recognized: nope"),
    ],
)
def test_what_is_not_valid_says_why(name: str, kind: Kind, text: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words) as caught:
        made = grammar(name, kind, text)
        allowed(made.matcher())
    assert not re.search(r"\n|\.cc:|NoExtension|^at \d|holds_alternative|NFA", str(caught.value))
