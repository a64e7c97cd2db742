"""Counting the tokens of thinking by where their last characters lie."""

import pytest

from radixlm.server.parsing import ReasoningCounter

PIECES = [b"", b"Hm", b", \xc5", b"\x82", b"</think>", b">\n\n", b"Yes", b"<|special|>"]
SPECIAL = 7


class Tokenizer:
    bos_token_id = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        raise AssertionError

    def decode(self, ids: object, skip_special_tokens: bool = True) -> str:
        raise AssertionError

    def piece(self, id_: int) -> bytes:
        return PIECES[id_]

    def is_special(self, id_: int) -> bool:
        return id_ == SPECIAL


@pytest.mark.parametrize("step", [1, 3, 10])
@pytest.mark.parametrize(
    ("tokens", "skip", "spans", "count"),
    [
        ([1, 2, 3, 4, 6], True, [(0, 13)], 4),  # "Hm, ł</think>" and the tag's token is the last one
        ([1, 2, 3, 4, 6], True, [(0, None)], 5),
        ([1, 2, 3, 4, 6], True, [], 0),
        ([6, 1, 1, 6], True, [(3, 7)], 2),
        ([1, 5, 6], True, [(0, 3)], 1),  # a token that holds the tag's end and more belongs to the answer
        ([7, 1, 4, 6], True, [(0, 10)], 3),
        ([7, 1, 4, 6], False, [(11, 21)], 2),
        ([1, 6, 1, 6], True, [(0, 2), (5, 7)], 2),
    ],
)
def test_tokens_in_spans(
    tokens: list[int], skip: bool, spans: list[tuple[int, int | None]], count: int, step: int
) -> None:
    counter = ReasoningCounter(Tokenizer(), skip)
    for at in range(0, len(tokens), step):
        counter.feed(tokens[at : at + step])
    assert counter.count(spans) == count
