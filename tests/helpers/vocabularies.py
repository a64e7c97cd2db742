"""Small tokenizers made on the spot: one of byte-level BPE, one in SentencePiece's style."""

from functools import cache

import tokenizers
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

from radixlm.loader.tokenizer import Tokenizer
from radixlm.loader.tokenizer_parts import TokenizerParts, set_affixes

SAMPLE = [
    "the quick brown fox jumps over the lazy dog, then the dog sleeps",
    "def main(argument): return argument + 1  # a comment\n    pass\n",
    "안녕하세요 세계, 나는 토끼입니다. 안녕히 가세요",
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "🙂🙂👍🏽🇰🇷 alpha-beta-gamma 12345 67890",
]


@cache
def byte_level(threads: int = 1) -> Tokenizer:
    """256 byte tokens, some merges (parts of characters among them), specials <s> </s> <|user|>, plain token <tool>."""
    backend = tokenizers.Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(SAMPLE, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    return _finished(backend, threads)


@cache
def sentencepiece() -> Tokenizer:
    """Pieces with a space mark, byte fallback for what they lack, and the leading-space rule."""
    space = "\u2581"
    trained = tokenizers.Tokenizer(BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend(space), normalizers.Replace(" ", space)])
    trained.pre_tokenizer = pre_tokenizers.Split(space, "merged_with_next")
    trained.train_from_iterator(SAMPLE[:2], trainers.BpeTrainer(vocab_size=150))
    pieces = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocabulary = {name: id_ for id_, name in enumerate(names)}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    backend = tokenizers.Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = trained.normalizer
    backend.decoder = decoders.Sequence(
        [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _finished(backend)


def _finished(backend: tokenizers.Tokenizer, threads: int = 1) -> Tokenizer:
    specials = ["<s>", "</s>", "<|user|>"]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    backend.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    set_affixes(backend, named, add_bos=True, add_eos=False)
    template = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}"
    return Tokenizer(TokenizerParts(backend, named, {"default": template}), threads)
