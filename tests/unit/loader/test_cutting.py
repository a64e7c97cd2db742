"""Pieces of a text: their tokens are the text's, wherever a tokenizer allows cutting; others are left whole."""

import random
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from radixlm.loader.cutting import added_before, cut
from tests.helpers.vocabularies import SAMPLE, byte_level

TEXTS = [
    "The quick brown fox's tail, 12 345 apples\r\n\n  and  two   spaces; naïve café\u0301 e \u0301 x 日本 語 a b c d",
    "def f(x):\n    return x + 1  # it's theirs, isn't it? A B C <s> D E <s>F G",
    " ".join(SAMPLE),
]


def backend(**parts: Any) -> Tokenizer:
    """Bytes and a few words, with another normalizer, splitter or post-processor."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("\u0120", "a"), ("\u0120a", "n"), ("o", "x"), ("x", "\u0120")]
    words = [*alphabet, *(left + right for left, right in merges), "<s>"]
    found = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    for name, part in parts.items():
        setattr(found, name, part)
    return found


@pytest.mark.parametrize("special", [False, True])
def test_pieces_have_the_tokens_of_the_whole(special: bool) -> None:
    whole = byte_level()
    rng = random.Random(3)
    for text in [*TEXTS, "".join(rng.choice(TEXTS)[rng.randrange(40) :] for _ in range(400))]:
        ids = whole.encode(text, special)
        for pieces in (1, 2, 3, 8, 1000):
            found = cut(text, pieces)
            assert "".join(found) == text and len(found) <= pieces
            parts = [whole.encode(piece, special and n == 0) for n, piece in enumerate(found)]
            assert [id_ for part in parts for id_ in part] == ids
        assert byte_level(threads=7).encode(text, special) == ids
    assert len(cut(TEXTS[1] * 9, 4)) == 4


def test_pieces_are_of_about_one_length() -> None:
    assert [len(piece) for piece in cut("ab " * 100, 4)] == [77, 75, 75, 73]
    assert cut("日本語" * 100, 4) == ["日本語" * 100] and cut("", 3) == [""]


def test_tokenizers_that_look_across_a_space_are_found_out() -> None:
    assert added_before(backend()) == []
    assert added_before(backend(normalizer=normalizers.Sequence([normalizers.NFC()]))) == []
    bos = processors.TemplateProcessing("<s> $A", "$A $B", [("<s>", 262)])
    eos = processors.TemplateProcessing("$A <s>", "$A $B", [("<s>", 262)])
    assert added_before(backend(post_processor=bos)) == [262] and added_before(backend(post_processor=eos)) is None
    assert added_before(backend(pre_tokenizer=None)) is None
    assert added_before(backend(normalizer=normalizers.Prepend("\u2581"))) is None
    assert added_before(backend(pre_tokenizer=pre_tokenizers.Whitespace())) is None
    for token in (AddedToken("New York"), AddedToken("<x>", rstrip=True), AddedToken("word", single_word=True)):
        other = backend()
        other.add_tokens([token])
        assert added_before(other) is None
