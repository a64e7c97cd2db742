"""What every tokenizer file comes down to, and the edits all kinds need. Knows no file format."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import tokenizers
from tokenizers.processors import TemplateProcessing


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer as read from its files.

    `special_tokens` maps "bos_token", "eos_token", ... to their text; `more_eos_ids` end a generation beside the EOS
    token; `chat_templates` are by name, "default" being the usual one.
    """

    backend: tokenizers.Tokenizer
    special_tokens: dict[str, str]
    chat_templates: dict[str, str]
    more_eos_ids: list[int] = field(default_factory=list)


def set_affixes(
    backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str], add_bos: bool | None, add_eos: bool | None
) -> None:
    """Make encoding add BOS and EOS as asked (None: as it does now), replacing the post-processor if it differs."""
    bos, eos = special_tokens.get("bos_token"), special_tokens.get("eos_token")
    probe, plain = backend.encode("a"), backend.encode("a", add_special_tokens=False)
    has_bos = bos is not None and probe.tokens[:1] == [bos] and plain.tokens[:1] != [bos]
    has_eos = eos is not None and probe.tokens[-1:] == [eos] and plain.tokens[-1:] != [eos]
    want_bos = has_bos if add_bos is None else add_bos and bos is not None
    want_eos = has_eos if add_eos is None else add_eos and eos is not None
    if (want_bos, want_eos) == (has_bos, has_eos):
        return
    used = ([bos] if want_bos else []) + ([eos] if want_eos else [])
    backend.post_processor = TemplateProcessing(
        single=[*([bos] if want_bos else []), "$A", *([eos] if want_eos else [])],
        special_tokens=[(text, backend.token_to_id(text)) for text in used if text is not None],
    )
