"""outlines-core behind the grammar interface: regular expressions as automata over tokens. Imports it on use."""

from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from typing import Any

import msgspec

from radixlm.grammar import complaints
from radixlm.grammar.base import Source, Vocabulary, Whitespace, allow
from radixlm.grammar.subset import SHOWN_GAPS, gaps
from radixlm.protocol.arrays import I32

_DEFAULT_SPACES = r"[ ]?"  # what the library was made for: long runs would multiply its states
_AUTOMATON_BYTES = 16 << 20  # the library does not tell; a usual schema takes a few MiB
_IGNORED = frozenset({"minimum", "maximum"})


class Outlines:
    """Compiles ahead into one automaton over the whole vocabulary, so its size grows with the regular expression's."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._library: Any = import_module("outlines_core")
        self._stop_ids = vocabulary.stop_ids
        ids: dict[bytes, list[int]] = {}
        for id_, text in enumerate(vocabulary.texts):
            if text and id_ not in vocabulary.stop_ids:
                ids.setdefault(text, []).append(id_)
        self._vocabulary = self._library.Vocabulary(vocabulary.stop_ids[0], ids)

    @classmethod
    def why_not(cls, source: Source) -> list[str]:
        if find_spec("outlines_core") is None:
            return ["it is not installed (pip install 'radixlm[grammar]')"]
        if source.kind not in ("json_schema", "regex"):
            return [f"it has no {source.kind}"]
        if source.kind == "regex":
            return []
        found = list(islice(gaps(msgspec.json.decode(source.text), ignored=_IGNORED), SHOWN_GAPS))
        return [f"it does not enforce {', '.join(found)}"] if found else []

    def compile(self, source: Source) -> "_Compiled":
        library = self._library
        try:
            regex = source.text
            if source.kind == "json_schema":
                regex = library.json_schema.build_regex_from_schema(source.text, _spaces(source.whitespace))
            index = library.Index(regex, self._vocabulary)
        except (ValueError, TypeError, OverflowError) as error:
            raise complaints.of_outlines(str(error)) from None
        return _Compiled(library, index, self._stop_ids)


class _Compiled:
    size_bytes = _AUTOMATON_BYTES

    def __init__(self, library: Any, index: Any, stop_ids: tuple[int, ...]) -> None:
        self._library = library
        self._index = index
        self._stop_ids = stop_ids

    def matcher(self) -> "_Matcher":
        return _Matcher(self._library.Guide(self._index), self._stop_ids)


class _Matcher:
    def __init__(self, guide: Any, stop_ids: tuple[int, ...]) -> None:
        self._guide = guide
        self._stop_ids = stop_ids
        self._ended = False

    def fill(self, mask: I32) -> None:
        if self._ended:
            mask[:] = 0
            return
        self._guide.write_mask_into(mask.ctypes.data, len(mask), mask.itemsize)
        if self._guide.is_finished():
            allow(mask, self._stop_ids)

    def accept(self, token: int) -> bool:
        if token in self._stop_ids:
            self._ended = not self._ended and self.may_end()
            return self._ended
        if not self._guide.accepts_tokens([token]):
            return False
        self._guide.advance(token, return_tokens=False)
        return True

    def may_end(self) -> bool:
        return bool(self._guide.is_finished())

    def rollback(self, tokens: int) -> None:
        back = tokens - self._ended
        self._ended = False
        if back:
            self._guide.rollback_state(back)


def _spaces(whitespace: Whitespace) -> str:
    if whitespace.pattern is not None:
        return whitespace.pattern
    return "" if whitespace.most == 0 else _DEFAULT_SPACES
