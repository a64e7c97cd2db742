"""A tokenizer out of GGUF metadata, on the `tokenizers` library. Knows llama.cpp's vocabulary conventions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from radixlm.base.errors import ModelError
from radixlm.loader.gguf_header import read_header
from radixlm.loader.tokenizer_parts import TokenizerParts, set_affixes

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # values of tokenizer.ggml.token_type

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _WORDS + r"\p{N}{1,3}" + _REST
_QWEN2 = _WORDS + r"\p{N}" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The scheme behind each value of tokenizer.ggml.pre that can be read.
_SCHEMES = {
    **dict.fromkeys(("default", "gpt-2", "phi-2"), "gpt2"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), "digits"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx"), "llama3"),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), "qwen2"),
    "tekken": "tekken",
}
_SPLITS = {"llama3": _LLAMA3, "qwen2": _QWEN2, "tekken": _TEKKEN}
_WHOLE_WORDS = ("llama3", "tekken")  # schemes that look a whole word up before they merge, and add BOS by default
_SPACE = "\u2581"


def read_gguf(path: Path) -> TokenizerParts:
    """The tokenizer that the .gguf file at `path` carries; ModelError when it has none or of an unknown kind."""
    metadata = {k.removeprefix("tokenizer.ggml."): v for k, v in read_header(path).metadata.items()}
    model, tokens = metadata.get("model"), metadata.get("tokens")
    if not tokens:
        raise ModelError(f"{path} carries no tokenizer; give one with --tokenizer-path")
    if model == "gpt2":
        backend, adds_bos = _byte_level(metadata)
    elif model == "llama":
        backend, adds_bos = _sentencepiece(metadata), True
    else:
        raise ModelError(f"the GGUF tokenizer model {model!r} is not supported; give one with --tokenizer-path")
    _add_tokens(backend, metadata)
    special_tokens = {
        name: tokens[metadata[key]]
        for name, key in (
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("unk_token", "unknown_token_id"),
            ("pad_token", "padding_token_id"),
        )
        if 0 <= metadata.get(key, -1) < len(tokens)
    }
    set_affixes(backend, special_tokens, metadata.get("add_bos_token", adds_bos), metadata.get("add_eos_token", False))
    more_eos_ids = [metadata[key] for key in ("eot_token_id", "eom_token_id") if key in metadata]
    return TokenizerParts(backend, special_tokens, _chat_templates(metadata), more_eos_ids)


def _vocabulary(metadata: dict[str, Any]) -> dict[str, int]:
    """Token to id, without the entries that only pad the vocabulary to the model's size."""
    types = _types(metadata)
    return {
        token: id_
        for id_, token in enumerate(metadata["tokens"])
        if not (types[id_] == _UNUSED and token == f"[PAD{id_}]")
    }


def _types(metadata: dict[str, Any]) -> Sequence[int]:
    types: Sequence[int] = metadata.get("token_type") or [1] * len(metadata["tokens"])
    return types


def _byte_level(metadata: dict[str, Any]) -> tuple[tokenizers.Tokenizer, bool]:
    """Byte-level BPE, and whether such models add BOS when the file does not say."""
    name = metadata.get("pre", "default")
    scheme = _SCHEMES.get(name)
    if scheme is None:
        known = ", ".join(_SCHEMES)
        raise ModelError(f"the GGUF pre-tokenizer {name!r} is not supported (known: {known}); use --tokenizer-path")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("merges", [])]
    backend = tokenizers.Tokenizer(BPE(_vocabulary(metadata), merges, ignore_merges=scheme in _WHOLE_WORDS))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=scheme not in _SPLITS)
    if scheme == "digits":
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    elif scheme in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[scheme]), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    else:
        backend.pre_tokenizer = byte_level
    if scheme == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend, scheme in _WHOLE_WORDS


def _sentencepiece(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    """SentencePiece BPE: merges are not stored, but follow from the scores: the best-scored result merges first."""
    vocabulary = _vocabulary(metadata)
    tokens, scores = metadata["tokens"], metadata.get("scores")
    if not scores:
        raise ModelError("the GGUF tokenizer has no scores; give one with --tokenizer-path")
    unknown = metadata.get("unknown_token_id", 0)
    model = BPE(vocabulary, _merges(vocabulary, scores), unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    prefix = metadata.get("add_space_prefix", True)
    steps = [normalizers.Prepend(_SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _merges(vocabulary: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, id_ in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[id_], left, right, token[:cut], token[cut:]))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def _add_tokens(backend: tokenizers.Tokenizer, metadata: dict[str, Any]) -> None:
    """Make control tokens special, and user-defined ones match as a whole; their ids are in the vocabulary already."""
    kinds = list(zip(metadata["tokens"], _types(metadata), strict=True))
    special = [AddedToken(t, special=True, normalized=False) for t, kind in kinds if kind in (_CONTROL, _UNKNOWN)]
    defined = [AddedToken(t, special=False, normalized=False) for t, kind in kinds if kind == _USER_DEFINED]
    backend.add_special_tokens(special)
    backend.add_tokens(defined)


def _chat_templates(metadata: dict[str, Any]) -> dict[str, str]:
    """`tokenizer.chat_template`, and `tokenizer.chat_template.NAME` for the others."""
    prefix = "tokenizer.chat_template"
    named = {k.removeprefix(prefix).removeprefix("."): v for k, v in metadata.items() if k.startswith(prefix)}
    return {name or "default": text for name, text in named.items() if isinstance(text, str)}
