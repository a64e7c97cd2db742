"""Where a text may be cut so that its pieces' tokens, one after the other, are the whole's. Knows no model."""

import json
import re
from collections.abc import Sequence
from typing import Any

_WORD = re.compile(r"[A-Za-z](?= [A-Za-z])")
# They leave ASCII alone and join no ASCII character to one before it.
_LOCAL_NORMALIZERS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})

# What the split patterns of GPT-2, Llama 3, Qwen 2 to 3.5, Tekken, o200k and DeepSeek consist of: alternatives of which
# none looks back and none matches a letter and a space behind it. _WORDS match a space with the word after it.
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = (
    r" ?\p{L}+",
    r"\s?\p{L}+",
    _BEFORE + r"\p{L}+",
    _BEFORE + r"[\p{L}\p{M}]+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    *(f"{_BEFORE}{_UPPER}*{_LOWER}+{end}|{_BEFORE}{_UPPER}+{_LOWER}*{end}" for end in ("", f"{_CONTRACTIONS}?")),
)
_OTHERS = (
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", _CONTRACTIONS),
    *(r"\p{N}", r"\p{N}+", r" ?\p{N}+", r"\p{N}{1,3}"),
    *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"),
    *(r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", r" ?[\p{P}\p{S}]+[\r\n]*", r"\s?\p{P}+"),
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
    *("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
    *(r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+", r"[\r\n]"),
)


def _one_of(alternatives: Sequence[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, alternatives))})"


_ANY = _one_of((*_WORDS, *_OTHERS))
_LOCAL_SPLIT = re.compile(rf"{_ANY}(?:\|{_ANY})*")
_WORD_SPLIT = re.compile(rf"(?:{_ANY}\|)*{_one_of(_WORDS)}(?:\|{_ANY})*")


def added_before(backend: Any) -> list[int] | None:
    """The ids that the tokenizer adds before a text, if asked to; None where `cut` is not for it.

    That is, unless it is known to start anew at every space between two ASCII letters and adds nothing behind a text:
    all its parts must be ones of which that has been proved. To leave a text whole costs time, a wrong cut tokens.

    backend: a tokenizers.Tokenizer.
    """
    normalizer, splitter = backend.normalizer, backend.pre_tokenizer
    for token in backend.get_added_tokens_decoder().values():
        content = token.content if normalizer is None else normalizer.normalize_str(token.content)
        if token.lstrip or token.rstrip or token.single_word or " " in token.content + content:
            return None
    if normalizer is not None and not _is_local(json.loads(normalizer.__getstate__())):
        return None
    if splitter is None or not _starts_anew(json.loads(splitter.__getstate__())):
        return None
    plain, whole = (backend.encode("ab cd", add_special_tokens=special).ids for special in (False, True))
    before: list[int] = whole[: len(whole) - len(plain)]
    return before if whole == before + plain else None


def _is_local(normalizer: dict[str, Any]) -> bool:
    if normalizer["type"] == "Sequence":
        return all(map(_is_local, normalizer["normalizers"]))
    return normalizer["type"] in _LOCAL_NORMALIZERS


def _starts_anew(splitter: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer's pieces begin at every space between two ASCII letters, whatever else there is."""
    steps = splitter["pretokenizers"] if splitter["type"] == "Sequence" else [splitter]
    mapped = [step["type"] for step in steps[:-1] if step["type"] == "ByteLevel"]  # a space is a letter behind it
    return not mapped and all(map(_splits_locally, steps)) and any(map(_splits_words, steps))


def _splits_locally(step: dict[str, Any]) -> bool:
    if step["type"] == "ByteLevel":
        return not step["add_prefix_space"]
    return step["type"] == "Digits" or _pattern_is(_LOCAL_SPLIT, step)


def _splits_words(step: dict[str, Any]) -> bool:
    return bool(step.get("use_regex")) or _pattern_is(_WORD_SPLIT, step)


def _pattern_is(kind: re.Pattern[str], step: dict[str, Any]) -> bool:
    """Whether it is a split of which every match is a piece of its own, by such a pattern."""
    if step["type"] != "Split" or (step["behavior"], step["invert"]) not in (("Isolated", False), ("Removed", True)):
        return False
    return kind.fullmatch(step["pattern"].get("Regex", "")) is not None


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
