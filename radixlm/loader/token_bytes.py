"""From a vocabulary entry to the bytes it contributes to text. Knows decoders of `tokenizers`; holds no vocabulary."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from radixlm.base.errors import ModelError

_SENTENCEPIECE = {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level BPE (GPT-2), character to byte."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


def piece_rule(decoder: Mapping[str, Any] | None) -> Callable[[str], bytes]:
    """The rule that turns one token's spelling into bytes, so that joined pieces are the decoded text.

    `decoder` is the decoder part of a tokenizer.json. A rule that depends on a token being first in the text (a
    leading space taken off) is left out: generated tokens always continue a prompt. ModelError when tokens have no
    bytes of their own under this decoder.
    """
    parts = _flatten(decoder)
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return _byte_level_rule()
    if kinds == {"WordPiece"}:
        return _wordpiece_rule(parts[0]["prefix"])
    if kinds & {"Replace", "Metaspace"} and kinds <= _SENTENCEPIECE:
        return _sentencepiece_rule(parts)
    names = ", ".join(sorted(kinds)) or "none"
    raise ModelError(f"the tokenizer's decoder ({names}) is not supported; byte-level, SentencePiece and WordPiece are")


def _flatten(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [part for inner in decoder["decoders"] for part in _flatten(inner)]
    return [decoder]


def _byte_level_rule() -> Callable[[str], bytes]:
    byte_of = byte_alphabet().__getitem__

    def rule(token: str) -> bytes:
        try:
            return bytes(map(byte_of, token))
        except KeyError:  # an added token that is spelled as plain text
            return token.encode()

    return rule


def _wordpiece_rule(prefix: str) -> Callable[[str], bytes]:
    """A token with the prefix continues a word, any other begins one after a space."""
    return lambda token: token.removeprefix(prefix).encode() if token.startswith(prefix) else b" " + token.encode()


def _sentencepiece_rule(parts: list[Mapping[str, Any]]) -> Callable[[str], bytes]:
    replacements: list[tuple[str, str]] = []
    for part in parts:
        if part["type"] == "Metaspace":
            replacements.append((part["replacement"], " "))
        elif part["type"] == "Replace":
            if "String" not in part["pattern"]:
                raise ModelError("the tokenizer's decoder replaces by regular expression, which is not supported")
            replacements.append((part["pattern"]["String"], part["content"]))
    byte_fallback = any(part["type"] == "ByteFallback" for part in parts)

    def rule(token: str) -> bytes:
        if byte_fallback and token[:3] == "<0x" and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes((int(match[1], 16),))
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return rule
