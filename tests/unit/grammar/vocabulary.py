"""A small vocabulary and a walk over it: every byte, some longer tokens, and two end tokens."""

import numpy as np

from radixlm.grammar.base import Grammar, GrammarBackend, Matcher, Source, Vocabulary

WORDS = [b'{"', b'":', b'", "', b"true", b"false", b"null", b"aa", b"ab", b"12", b"  ", b"\n\n", "ł".encode(), b"</"]
STOP, OTHER_STOP = 256 + len(WORDS), 257 + len(WORDS)
SIZE = 280
VOCABULARY = Vocabulary([bytes([b]) for b in range(256)] + WORDS + [b"", b""], (STOP, OTHER_STOP), SIZE)


def allowed(matcher: Matcher) -> set[int]:
    """The tokens that may come next."""
    mask = np.full(VOCABULARY.words, 0x55555555, np.int32)
    matcher.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:SIZE]
    return set(np.flatnonzero(bits).tolist())


def longest_first(text: bytes) -> list[int]:
    """`text` in tokens, each as long as can be."""
    tokens = []
    while text:
        word = max((w for w in WORDS if text.startswith(w)), key=len, default=b"")
        tokens.append(256 + WORDS.index(word) if word else text[0])
        text = text[len(word) or 1 :]
    return tokens


def follows(grammar: Grammar, text: bytes, tokens: list[int] | None = None) -> bool:
    """Whether `text` is a whole answer; every token must be in the mask before it is accepted, and only then."""
    matcher = grammar.matcher()
    for token in tokens if tokens is not None else list(text):
        may = token in allowed(matcher)
        if matcher.accept(token) is not may:
            raise AssertionError(f"token {token}: the mask says {may}")
        if not may:
            return False
    ends = {STOP, OTHER_STOP} & allowed(matcher)
    assert ends in (set(), {STOP, OTHER_STOP}) and matcher.may_end() is bool(ends)
    return bool(ends)


def compiled(backend: type[GrammarBackend], source: Source) -> Grammar:
    return backend(VOCABULARY).compile(source)
