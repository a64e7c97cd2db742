"""Keys of a step's chunks, side by side: the same as by the page, and only where they are read often enough."""

import pytest
import torch

from radixlm.attention.base import AttentionFacts
from radixlm.attention.gather import key_index, worth_gathering
from tests.helpers.forward import make_batch, shuffled_page_table

FACTS = AttentionFacts("cuda", torch.bfloat16, 1, 32, 8, 128, None)


@pytest.mark.parametrize("page_size", [1, 4, 7])
def test_the_index_is_every_chunk_s_keys_in_order(page_size: int) -> None:
    table = shuffled_page_table(5, 50)
    rows = [(3, 9, 1), (1, 4, 1), (0, 0, 11), (4, 6, 2), (2, 17, 30)]
    batch = make_batch(rows, table, page_size, decode_rows=2)
    expected = [
        int(table[slot, position // page_size]) * page_size + position % page_size
        for slot, start, count in rows[2:]
        for position in range(start + count)
    ]
    assert key_index(batch, 2).tolist() == expected


@pytest.mark.parametrize(
    ("rows", "pays"),
    [
        ([(0, 0, 8192)], True),
        ([(0, 24_576, 8192)], True),
        ([(0, 0, 1024)], False),
        ([(1, 700, 1), (0, 0, 8192)], True),
        ([(slot, 2048, 128) for slot in range(32)], False),
        ([(0, 100_000, 8192)], False),  # more than the memory that is free for it
    ],
)
def test_it_pays_for_many_queries(rows: list[tuple[int, int, int]], pays: bool) -> None:
    table = torch.zeros(32, 120_000, dtype=torch.int32)
    batch = make_batch(rows, table, 1)
    assert worth_gathering(FACTS, batch, batch.decode_rows) is pays
