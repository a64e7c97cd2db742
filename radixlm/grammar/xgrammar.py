"""XGrammar behind the grammar interface (arXiv 2411.15100). Imports the library on use; it brings torch with it."""

import json
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from radixlm.grammar import complaints
from radixlm.grammar.base import Source, Vocabulary, Whitespace
from radixlm.grammar.subset import SHOWN_GAPS, gaps, regex_gaps
from radixlm.grammar.tags import Tags, parse, schemas
from radixlm.protocol.arrays import I32


class XGrammar:
    """Compiles ahead: all masks that do not depend on the context are made once. Releases the interpreter meanwhile."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._library: Any = import_module("xgrammar")
        info = self._library.TokenizerInfo(
            vocabulary.texts,
            self._library.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.stop_ids),
        )
        self._compiler = self._library.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    @classmethod
    def why_not(cls, source: Source) -> list[str]:
        if find_spec("xgrammar") is None:
            return ["it is not installed (pip install 'radixlm[grammar]')"]
        if source.whitespace.pattern is not None and source.kind in ("json_schema", "structural_tag"):
            return ["it takes no --constrained-json-whitespace-pattern"]
        found = [gap for schema in _schemas(source) for gap in islice(gaps(schema), SHOWN_GAPS)]
        if source.kind == "regex":
            found = list(islice(regex_gaps(source.text), SHOWN_GAPS))
        return [f"it does not enforce {', '.join(found[:SHOWN_GAPS])}"] if found else []

    def compile(self, source: Source) -> "_Compiled":
        kinds: dict[str, Callable[[], Any]] = {
            "json_schema": lambda: self._compiler.compile_json_schema(source.text, **_layout(source.whitespace)),
            "regex": lambda: self._compiler.compile_regex(source.text),
            "ebnf": lambda: self._compiler.compile_grammar(source.text),
            "structural_tag": lambda: self._compiler.compile_structural_tag(_tag_text(source)),
        }
        try:
            return _Compiled(self._library, kinds[source.kind]())
        except (RuntimeError, ValueError, TypeError) as error:
            raise complaints.of_xgrammar(str(error), source.kind == "ebnf") from None


class _Compiled:
    def __init__(self, library: Any, compiled: Any) -> None:
        self._library = library
        self._compiled = compiled
        self.size_bytes = int(compiled.memory_size_bytes)

    def matcher(self) -> "_Matcher":
        return _Matcher(self._library.GrammarMatcher(self._compiled))


class _Matcher:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, mask: I32) -> None:
        if self._matcher.is_terminated():
            mask[:] = 0
        elif not self._matcher.fill_next_token_bitmask(mask[None]):
            mask[:] = np.int32(-1)

    def accept(self, token: int) -> bool:
        return not self._matcher.is_terminated() and bool(self._matcher.accept_token(token))

    def may_end(self) -> bool:
        return bool(self._matcher.is_completed())

    def rollback(self, tokens: int) -> None:
        self._matcher.rollback(tokens)


def _schemas(source: Source) -> list[Any]:
    if source.kind == "json_schema":
        return [msgspec.json.decode(source.text)]
    if source.kind != "structural_tag":
        return []
    tags = parse(source.text)
    return schemas(msgspec.json.decode(source.text)) if tags is None else [tag.schema for tag in tags.tags]


def _layout(whitespace: Whitespace) -> dict[str, Any]:
    if whitespace.most == 0:
        return {"any_whitespace": False, "separators": (",", ":")}
    return {"any_whitespace": True, "max_whitespace_cnt": whitespace.most}


def _tag_text(source: Source) -> str:
    """The structural tag in the library's own form, with bounded white space."""
    tags, most = parse(source.text), source.whitespace.most
    if tags is not None:
        return json.dumps({"type": "structural_tag", "format": _triggered(tags, most)})
    return json.dumps(_bounded(msgspec.json.decode(source.text), most))


def _triggered(tags: Tags, most: int) -> dict[str, Any]:
    every = [
        {"type": "tag", "begin": tag.begin, "content": _json_format(tag.schema, most), "end": tag.end}
        for tag in tags.tags
    ]
    flags = {"at_least_one": tags.at_least_one, "stop_after_first": tags.stop_after_first}
    if tags.tags_only:
        return {"type": "tags_with_separator", "separator": "\n", "tags": every, **flags}
    return {"type": "triggered_tags", "triggers": list(tags.triggers), "tags": every, **flags}


def _json_format(schema: Any, most: int) -> dict[str, Any]:
    """The library counts from 1: where none is wanted, one is allowed."""
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": max(most, 1)}


def _bounded(value: Any, most: int) -> Any:
    if isinstance(value, list):
        return [_bounded(item, most) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "json_schema" and "json_schema" in value:
        return {"max_whitespace_cnt": max(most, 1), **value}
    return {key: _bounded(item, most) for key, item in value.items()}
