"""Where a text may be cut so that its pieces' tokens, one after the other, are the whole's. Knows no model."""

import json
import re
from typing import Any

_WORD = re.compile(r"[A-Za-z](?= [A-Za-z])")
_PROBES = ("ab cd", "a b", "Ab CD", "ZZ y")
# They leave ASCII alone and join no ASCII character to one before it.
_LOCAL_NORMALIZERS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})


def added_before(backend: Any) -> list[int] | None:
    """The ids that the tokenizer adds before a text, if asked to; None where `cut` is not for it.

    That is, unless it starts anew at every space between two ASCII letters and adds nothing behind a text.

    backend: a tokenizers.Tokenizer.
    """
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip or token.single_word or " " in token.content for token in added):
        return None
    normalizer, splitter = backend.normalizer, backend.pre_tokenizer
    if splitter is None or (normalizer is not None and not _is_local(json.loads(normalizer.__getstate__()))):
        return None
    for probe in _PROBES:
        space = probe.index(" ")
        pieces = [offsets for _, offsets in splitter.pre_tokenize_str(probe)]
        if (space, len(probe)) not in pieces:
            return None
    plain, whole = (backend.encode(_PROBES[0], add_special_tokens=special).ids for special in (False, True))
    before: list[int] = whole[: len(whole) - len(plain)]
    return before if whole == before + plain else None


def _is_local(normalizer: dict[str, Any]) -> bool:
    if normalizer["type"] == "Sequence":
        return all(map(_is_local, normalizer["normalizers"]))
    return normalizer["type"] in _LOCAL_NORMALIZERS


def cut(text: str, pieces: int) -> list[str]:
    """`text` in up to `pieces` pieces of about one length, each but the first beginning with a space and a letter."""
    found, begin = [], 0
    for number in range(1, pieces):
        at = _WORD.search(text, max(begin, len(text) * number // pieces))
        if at is None:
            break
        found.append(text[begin : at.end()])
        begin = at.end()
    return [*found, text[begin:]]
