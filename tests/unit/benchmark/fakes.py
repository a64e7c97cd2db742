"""A tiny tokenizer whose re-encoding differs from the ids it decoded, and a stub server in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

LETTERS = "abcdefghij"


class PairCodec:
    """Letters are ids 0-9, pairs of letters 10-109; 110 is special and put before prompts. Encoding is greedy."""

    vocab_size = 111
    special_ids = frozenset({110})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = [110] if add_special_tokens else []
        letters = [c for c in text if c in LETTERS]
        for i in range(0, len(letters) - 1, 2):
            ids.append(10 + 10 * LETTERS.index(letters[i]) + LETTERS.index(letters[i + 1]))
        return ids + ([LETTERS.index(letters[-1])] if len(letters) % 2 else [])

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        return [self.encode(text, add_special_tokens) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(LETTERS[i] if i < 10 else LETTERS[(i - 10) // 10] + LETTERS[i % 10] for i in ids if i < 110)


@contextmanager
def stub_server(*options: str) -> Iterator[int]:
    """The port of a running stub."""
    command = [sys.executable, "-m", "radixlm.benchmark.stub", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().rsplit(":", 1)[1])
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close() if process.stdout else None
