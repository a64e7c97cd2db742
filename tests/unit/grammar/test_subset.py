"""What of JSON Schema XGrammar is trusted with, what is refused before any compilation, and structural tags."""

from typing import Any

import pytest

from radixlm.grammar.base import GrammarError
from radixlm.grammar.limits import why_refused
from radixlm.grammar.subset import gaps, regex_gaps
from radixlm.grammar.tags import Tag, Tags, parse, schemas
from radixlm.protocol.grammar import Kind

TRUSTED: list[Any] = [
    True,
    {},
    {"title": "x", "description": "y"},
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": [1, "b"]}, "maxItems": 3}}},
    {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
    {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"const": 1}}},
]
NAMED: list[tuple[Any, str]] = [
    (False, "a schema that is no object"),
    ({"maxLength": 2}, "a schema without a type"),
    ({"type": "string", "maxLength": 2}, "/maxLength"),
    ({"type": ["string", "null"]}, "/type that is not one known type"),
    ({"type": "object", "properties": {"a": {"not": {}, "type": "null"}}}, "/properties/a/not"),
    ({"anyOf": [{"type": "null"}], "type": "null"}, "/type beside anyOf"),
    ({"$ref": "other.json"}, "/$ref to another document"),
    ({"type": "integer", "minimum": 10**30}, "/minimum that is no small integer"),
    ({"type": "array", "minItems": 1.0}, "/minItems that is no small integer"),
    ({"type": "object", "required": ["a"]}, "/required of what is not in properties"),
    ({"$defs": {"x": {"uniqueItems": True, "type": "array"}}, "type": "null"}, "/$defs/x/uniqueItems"),
]


@pytest.mark.parametrize("schema", TRUSTED)
def test_what_is_trusted(schema: Any) -> None:
    assert list(gaps(schema)) == []


@pytest.mark.parametrize(("schema", "gap"), NAMED)
def test_what_is_not_is_named_with_its_place(schema: Any, gap: str) -> None:
    assert gap in list(gaps(schema))


def test_another_backend_may_ignore_more() -> None:
    assert list(gaps({"type": "integer", "minimum": 1}, ignored=frozenset({"minimum"}))) == ["/minimum"]


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json_schema", "{" * 70 + "}" * 70, "nested"),
        ("json_schema", "{", "not valid JSON"),
        ("json_schema", "[1]", "must be a JSON object"),
        ("structural_tag", "true", "must be a JSON object"),
        ("regex", "(" * 65, "nested"),
        ("regex", "a{5,100001}", "repetition"),
        ("regex", "a" * 20_000, "bytes"),
        ("ebnf", "root ::= \ud800", "Unicode"),
    ],
)
def test_limits(kind: Kind, text: str, words: str) -> None:
    assert words in (why_refused(kind, text) or "")


@pytest.mark.parametrize(
    ("kind", "text"), [("json_schema", "true"), ("regex", "(" * 64), ("ebnf", "root ::= [a-z]{3}")]
)
def test_within_the_limits(kind: Kind, text: str) -> None:
    assert why_refused(kind, text) is None


def test_structural_tags_are_read() -> None:
    text = '{"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["<"], "tags_only": true}'
    assert parse(text) == Tags((Tag("<a>", {}, ""),), ("<",), tags_only=True)
    assert parse('{"format": {}}') is None
    nested = {"type": "sequence", "elements": [{"type": "tag", "content": {"type": "json_schema", "json_schema": 1}}]}
    assert schemas({"format": nested}) == [1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "needs a format, or structures"),
        ('{"structures": [1], "triggers": ["<"]}', r"structures\[0\] needs begin and end"),
        ('{"structures": [{"begin": "a", "end": ""}], "triggers": ["a"]}', r"structures\[0\].schema"),
        ('{"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["b"]}', "none of the triggers"),
        ('{"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": []}', "triggers"),
        ('{"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["a"], "at_least_one": 1}', "true or"),
    ],
)
def test_structural_tags_that_are_none(text: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        parse(text)


@pytest.mark.parametrize("pattern", [r"a+", r"[a-z]{3}\.[^\]x]", r"^yes$", r"(?:ab|c)*\d\x41", r"\^\$"])
def test_plain_expressions_are_trusted(pattern: str) -> None:
    assert list(regex_gaps(pattern)) == []


@pytest.mark.parametrize(
    ("pattern", "gap"),
    [
        (r"[\p{L}]{3}", r"the escape \p"),
        (r"\Ayes\Z", r"the escape \A"),
        (r"\h{3}", r"the escape \h"),
        (r"\07", r"the escape \0"),
        ("a$b", "$ inside"),
        ("a^b", "^ inside"),
        ("[[:digit:]]{3}", "by name"),
        ("(?i)yes", "(?"),
    ],
)
def test_expressions_that_would_be_read_otherwise(pattern: str, gap: str) -> None:
    assert gap in next(regex_gaps(pattern))


def test_values_beside_a_type_must_be_of_it() -> None:
    assert list(gaps({"type": "string", "enum": ["a", "b"]})) == []
    assert list(gaps({"type": "number", "const": 1})) == []
    for schema in (
        {"type": "integer", "const": 1.5},
        {"type": "string", "const": 5},
        {"type": "integer", "const": True},
    ):
        assert "type that a value" in next(gaps(schema))
