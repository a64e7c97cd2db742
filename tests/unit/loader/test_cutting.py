"""Pieces of a text: their tokens are the text's, wherever a tokenizer allows cutting; others are left whole."""

import random
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from radixlm.loader.cutting import added_before, cut
from radixlm.loader.tokenizer_gguf import _SPLITS
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


REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+")
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)
DIGITS = pre_tokenizers.Digits(individual_digits=True)


def split(pattern: str, behavior: str = "isolated", invert: bool = False) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def sequence(*steps: Any) -> pre_tokenizers.Sequence:
    return pre_tokenizers.Sequence(list(steps))


KNOWN = {
    "gpt-2": WORDS,
    "gpt-2 in words": sequence(split(GPT2), BYTES),
    "smollm": sequence(DIGITS, WORDS),
    "qwen3.5": sequence(split(QWEN35), BYTES),
    "o200k": sequence(split(O200K, "removed", True), BYTES),
    "deepseek-3": sequence(*map(split, DEEPSEEK_3), BYTES),
    "deepseek-coder": sequence(*map(split, DEEPSEEK_CODER), DIGITS, BYTES),
    **{name: sequence(split(pattern), BYTES) for name, pattern in _SPLITS.items()},
}
TITLES = r"[A-Z][a-z]+( [A-Z][a-z]+)*"
ODD = {
    "titles": sequence(split(f"{TITLES}| ?\\p{{L}}+|\\s+|[^\\s\\p{{L}}]+"), BYTES),
    "titles before": sequence(split(TITLES), WORDS),
    "what is between titles": sequence(split(rf"\p{{N}}|{TITLES}"), BYTES),
    "looks back": sequence(split(r"(?<=[a-z]) \p{L}+| ?\p{L}+|\s+|[^\s\p{L}]+"), BYTES),
    "looks ahead": sequence(split(r"\p{L}+(?= [a-z])|\p{L}+ ?|\s+|[^\s\p{L}]+"), BYTES),
    "lower case only": sequence(split(r"[^\r\n\p{L}\p{N}]?[a-z]+|\s+"), BYTES),
    "half of Tekken": sequence(split(_SPLITS["tekken"].split("|")[0] + REST), BYTES),
    "no word": sequence(split(r"\p{N}{1,3}" + REST), BYTES),
    "words, but joined": sequence(split(_SPLITS["qwen2"], "contiguous"), BYTES),
    "words, but removed": sequence(split(_SPLITS["qwen2"], "removed"), BYTES),
    "words joined to the next": sequence(split(_SPLITS["qwen2"], "merged_with_next"), BYTES),
    "bytes first": sequence(BYTES, split(_SPLITS["qwen2"])),
    "a space before": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "nothing is split": BYTES,
    "a string": pre_tokenizers.Split(" ", "merged_with_next"),
    "spaces lost": pre_tokenizers.Whitespace(),
    "metaspace": pre_tokenizers.Metaspace(),
    "digits only": sequence(DIGITS, BYTES),
    "none": None,
}
FORMS = [normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD()]
NORMALIZERS = [
    *(None, *FORMS, normalizers.Sequence([]), normalizers.Sequence(FORMS)),
    *(normalizers.Lowercase(), normalizers.Replace("b c", "x"), normalizers.Strip(), normalizers.Prepend("_")),
]
ADDED = ["<s>", "ab", " b", "b c", "b\u3000c", "Ab\u00a0Cd", "\u00a8", "\u00e9", "e\u0301", "\u3000", "1"]
SCRAPS = [
    *"abcABz019 \n\t.,'<>_",
    *"  ",
    "Ab Cd",
    "New York",
    "'s",
    "\u0301",
    "\u00e9",
    "\u3000",
    "\u00a0",
    "一",
    "か",
    "각",
    "<s>",
]


@pytest.mark.parametrize("name", KNOWN)
def test_the_known_families_are_cut(name: str) -> None:
    for normalizer in NORMALIZERS[:7]:
        assert added_before(backend(pre_tokenizer=KNOWN[name], normalizer=normalizer)) == []


@pytest.mark.parametrize("name", ODD)
def test_what_is_not_known_is_not_cut(name: str) -> None:
    assert added_before(backend(pre_tokenizer=ODD[name])) is None


def test_added_tokens_are_seen_as_the_normalizer_leaves_them() -> None:
    for content in ("b\u3000c", "Ab\u00a0Cd", "\u00a8"):
        for form, found in (("NFC", []), ("NFKC", None), ("NFKD", None)):
            one = backend(normalizer=getattr(normalizers, form)())
            one.add_tokens([AddedToken(content, normalized=True)])
            assert added_before(one) == found


def merged(rng: random.Random, **parts: Any) -> Tokenizer:
    """A vocabulary that joins whatever is not kept apart: letters and spaces in any order."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(left, right) for left in "abcABz\u0120" for right in "abcABzCd\u0120" if rng.random() < 0.8]
    rng.shuffle(pairs)
    words = dict.fromkeys([*letters, *(left + right for left, right in pairs)])
    found = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, pairs))
    for name, part in parts.items():
        setattr(found, name, part)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_any_tokenizer_that_is_cut_gives_the_tokens_of_the_whole(seed: int) -> None:
    rng = random.Random(seed)
    splitters = [*KNOWN.values(), *ODD.values()]
    both = {True: 0, False: 0}
    for _ in range(400):
        whole = merged(rng, pre_tokenizer=rng.choice(splitters), normalizer=rng.choice(NORMALIZERS))
        for content in rng.sample(ADDED, rng.choice((0, 0, 1, 3))):
            whole.add_tokens([AddedToken(content, normalized=rng.random() < 0.7, lstrip=rng.random() < 0.05)])
        before = added_before(whole)
        both[before is not None] += 1
        for text in ("".join(rng.choices(SCRAPS, k=rng.randrange(4, 200))) for _ in range(10 if before == [] else 0)):
            parts = whole.encode_batch(cut(text, rng.choice((2, 3, 1000))))
            assert [id_ for part in parts for id_ in part.ids] == whole.encode(text).ids
    assert min(both.values()) > 30
