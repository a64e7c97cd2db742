"""The tokenizer: text to ids, ids to text and bytes, special tokens, chat templates. Knows no torch and no request."""

import json
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path

from radixlm.base.errors import ModelError
from radixlm.config.facts import probe_host
from radixlm.loader.cutting import added_before, cut
from radixlm.loader.source import ModelSource
from radixlm.loader.token_bytes import piece_rule
from radixlm.loader.tokenizer_folder import read_folder
from radixlm.loader.tokenizer_gguf import read_gguf
from radixlm.loader.tokenizer_parts import TokenizerParts

_PIECE_CHARS = 512  # no thread is woken for less


class Tokenizer:
    """A vocabulary with everything a server asks of it.

    Attributes:
        bos_token_id: None when the vocabulary has none.
        eos_token_ids: the ids that end a generation according to the tokenizer's files.
        special_tokens: "bos_token", "eos_token", ... to their text, as chat templates want them.
        chat_templates: by name; "default" is the usual one, "tool_use" is for requests with tools. May be empty.
    """

    def __init__(self, parts: TokenizerParts, threads: int | None = None) -> None:
        """`threads`: the most that share one long text; half of the cores that are ours when unset."""
        backend = parts.backend
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._threads = probe_host().cores // 2 if threads is None else threads
        self.special_tokens = parts.special_tokens
        self.chat_templates = parts.chat_templates
        self.bos_token_id = self._id_of("bos_token")
        eos = self._id_of("eos_token")
        self.eos_token_ids = tuple(dict.fromkeys([*([] if eos is None else [eos]), *parts.more_eos_ids]))
        self._special_ids = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        decoder = backend.decoder
        self._piece = piece_rule(None if decoder is None else json.loads(decoder.__getstate__()))

    def _id_of(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self._backend.token_to_id(text)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`. `add_special_tokens` adds what the model's own post-processor adds (BOS, mostly)."""
        pieces = min(self._threads, len(text) // _PIECE_CHARS)
        before = self._added_before if pieces > 1 else None
        if before is None:
            ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
            return ids
        parts = self._backend.encode_batch_fast(cut(text, pieces), add_special_tokens=False)
        return list(chain(before if add_special_tokens else (), *(part.ids for part in parts)))

    @cached_property
    def _added_before(self) -> list[int] | None:
        return added_before(self._backend)

    def encode_pair(self, first: str, second: str) -> tuple[list[int], int | None]:
        """Ids of two texts as one prompt, and where those begin whose type says that they belong to the second.

        None: this tokenizer gives all tokens one type. Special tokens are added.
        """
        encoding = self._backend.encode(first, second)
        types = encoding.type_ids
        return encoding.ids, types.index(1) if 1 in types else None

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """`encode` of many texts at once, in parallel where there are cores."""
        return [e.ids for e in self._backend.encode_batch(list(texts), add_special_tokens=add_special_tokens)]

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """The text of a whole sequence; ids outside the vocabulary add nothing.

        `spaces_between_special_tokens` is accepted for its name's sake: it only ever had a meaning for tokenizers
        written in Python, and the text is the same either way.
        """
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_bytes(self, min_size: int = 0) -> list[bytes]:
        """The bytes each id adds to a text, by id; special tokens give their literal content.

        The list has at least `min_size` entries: models often have more rows than the vocabulary has ids.
        """
        return self._pieces + [b""] * (min_size - len(self._pieces))

    def piece(self, id_: int) -> bytes:
        """The bytes that one id adds to a text; none for an id outside the vocabulary."""
        return self._pieces[id_] if 0 <= id_ < len(self._pieces) else b""

    @cached_property
    def _pieces(self) -> list[bytes]:
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        pieces = [b""] * (max(vocabulary.values()) + 1)
        for token, id_ in vocabulary.items():
            pieces[id_] = self._piece(token)
        return pieces

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return len(self._pieces)

    def is_special(self, id_: int) -> bool:
        """Whether `skip_special_tokens` leaves this id out of the text."""
        return id_ in self._special_ids

    @property
    def special_ids(self) -> frozenset[int]:
        return self._special_ids

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")


def load_tokenizer(source: ModelSource, tokenizer_path: str | None = None) -> Tokenizer:
    """The tokenizer of the model at `source`, or the one at `tokenizer_path` (a folder, tokenizer.json or .gguf).

    ModelError, in one line, when there is none or it is of a kind that cannot be served.
    """
    path = source.path if tokenizer_path is None else Path(tokenizer_path).expanduser()
    if not path.exists():
        raise ModelError(f"there is no tokenizer at {path}")
    if path.suffix == ".gguf":
        return Tokenizer(read_gguf(path))
    return Tokenizer(read_folder(path if path.is_dir() else path.parent))
