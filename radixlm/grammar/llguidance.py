"""llguidance behind the grammar interface: an Earley parser over a lazily built lexer. Imports the library on use."""

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec

from radixlm.grammar import complaints
from radixlm.grammar.base import GrammarError, Source, Vocabulary, Whitespace
from radixlm.grammar.tags import Tags, parse
from radixlm.protocol.arrays import I32

_SPECIAL = b"\xff"  # the library's mark in front of tokens that are no text
_MATCHER_BYTES = 1 << 20
_HEADER = '%llguidance {"no_forcing": true}'  # else only some way to write forced text in tokens would be allowed


class LLGuidance:
    """Compiles lazily and with limits of its own; refuses every keyword of JSON Schema that it does not enforce."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._library: Any = import_module("llguidance")
        self._tokenizer = self._library.LLTokenizer(
            self._library.TokenizerWrapper(_Texts(vocabulary)),
            n_vocab=vocabulary.size,
            eos_token=list(vocabulary.stop_ids),
        )

    @classmethod
    def why_not(cls, source: Source) -> list[str]:
        if find_spec("llguidance") is None:
            return ["it is not installed (pip install llguidance)"]
        if source.kind == "structural_tag" and parse(source.text) is None:
            return ["it takes structural tags with structures and triggers only"]
        return []

    def compile(self, source: Source) -> "_Compiled":
        matcher = self._library.LLMatcher
        kinds: dict[str, Callable[[], str]] = {
            "json_schema": lambda: f"{_HEADER}\nstart: {_json(msgspec.json.decode(source.text), source.whitespace)}",
            "regex": lambda: f"{_HEADER}\n{_lark_of_regex(matcher.grammar_from_regex(source.text))}",
            "ebnf": lambda: _lark_of_ebnf(source.text),
            "structural_tag": lambda: _lark_of_tags(source),
        }
        try:
            grammar = kinds[source.kind]()
        except ValueError as error:
            raise complaints.of_llguidance(str(error)) from None
        first = matcher(self._tokenizer, grammar, log_level=0)
        if first.is_error():
            raise complaints.of_llguidance(first.get_error())
        return _Compiled(first, len(grammar))


class _Texts:
    """The vocabulary as the library asks for it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.stop_ids[0]
        self.bos_token_id = None
        named = ((id_, text or _SPECIAL + b"<%d>" % id_) for id_, text in enumerate(vocabulary.texts))
        self.tokens = [_SPECIAL + b"<%d>" % id_ if id_ in vocabulary.stop_ids else text for id_, text in named]
        self.tokens += [_SPECIAL + b"<%d>" % id_ for id_ in range(len(self.tokens), vocabulary.size)]
        self.special_token_ids = [id_ for id_, text in enumerate(self.tokens) if text.startswith(_SPECIAL)]
        self._ids = {text: id_ for id_, text in enumerate(self.tokens)}
        self._longest = max(len(text) for text in self.tokens)

    def __call__(self, text: bytes | str) -> list[int]:
        """Some tokens with this text: the longest that fits, each time."""
        data = text.encode() if isinstance(text, str) else text
        ids, at = [], 0
        while at < len(data):
            size = min(self._longest, len(data) - at)
            while size > 1 and data[at : at + size] not in self._ids:
                size -= 1
            ids.append(self._ids.get(data[at : at + size], 0))
            at += size
        return ids


class _Compiled:
    def __init__(self, first: Any, grammar_chars: int) -> None:
        self._first = first
        self.size_bytes = _MATCHER_BYTES + 16 * grammar_chars

    def matcher(self) -> "_Matcher":
        return _Matcher(self._first.deep_copy())


class _Matcher:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, mask: I32) -> None:
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            raise complaints.of_llguidance(self._matcher.get_error())

    def accept(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))

    def may_end(self) -> bool:
        return bool(self._matcher.is_accepting() or self._matcher.is_stopped())

    def rollback(self, tokens: int) -> None:
        self._matcher.rollback(tokens)


def _spaces(whitespace: Whitespace) -> dict[str, Any]:
    if whitespace.pattern is not None:
        return {"whitespace_pattern": whitespace.pattern}
    if whitespace.most == 0:
        return {"whitespace_flexible": False}
    return {"whitespace_pattern": rf"[ \n\r\t]{{0,{whitespace.most}}}"}


def _json(schema: Any, whitespace: Whitespace) -> str:
    """JSON by `schema` as a Lark term. What only the library's own users may say in a schema is replaced."""
    if schema is False:
        raise GrammarError("the schema is false, so no value follows it")
    words = schema if isinstance(schema, Mapping) else {}
    return f"%json {json.dumps({**words, 'x-guidance': {**_spaces(whitespace), 'lenient': False}})}"


def _lark_of_regex(grammar: str) -> str:
    """The Lark text in what the library makes of a regular expression."""
    return str(json.loads(grammar)["grammars"][0]["lark_grammar"])


def _lark_of_ebnf(text: str) -> str:
    converter: Any = import_module("llguidance.gbnf_to_lark")
    try:
        return f"{_HEADER}\n{str(converter.gbnf_to_lark(text)).replace('%llguidance {}', '', 1)}"
    except Exception as error:  # it raises nothing more special for a rule that is not there
        raise complaints.of_llguidance(str(error)) from None


def _lark_of_tags(source: Source) -> str:
    """A structural tag as a Lark grammar: lazy text up to a trigger, the tag, and so on."""
    tags = parse(source.text)
    if tags is None:
        raise GrammarError("only structural tags with structures and triggers can be used")
    names = " | ".join(f"tag_{index}" for index in range(len(tags.tags)))
    firsts = " | ".join(f"first_{index}" for index in range(len(tags.tags)))
    lines = [_HEADER, f"start: {_order(tags, names, firsts)}", r"TEXT: /(.|\n)*/"]
    for index in range(len(tags.tags)):
        lines += _tag_rules(tags, index, source.whitespace)
    return "\n".join(lines)


def _order(tags: Tags, names: str, firsts: str) -> str:
    """How often tags come, and what may stand between them."""
    if tags.stop_after_first:
        return f"({firsts})" if tags.at_least_one else f"({names} | TEXT)"
    if tags.tags_only:
        every = rf'({firsts}) ("\n" ({firsts}))*'
        return every if tags.at_least_one else f"({every})?"
    return f"({firsts}) ({names})* TEXT" if tags.at_least_one else f"({names})* TEXT"


def _tag_rules(tags: Tags, index: int, whitespace: Whitespace) -> list[str]:
    tag = tags.tags[index]
    trigger = next(trigger for trigger in tags.triggers if tag.begin.startswith(trigger))
    inner = f"{_json(tag.schema, whitespace)} {_literal(tag.end)}"
    rules = [
        f"trigger_{index}[lazy]: TEXT {_literal(trigger)}",
        f"tag_{index}: trigger_{index} {_literal(tag.begin.removeprefix(trigger))} {inner}",
    ]
    if tags.at_least_one or tags.tags_only:
        rules.append(f"first_{index}: {_literal(tag.begin)} {inner}")
    return rules


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
