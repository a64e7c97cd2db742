"""Vectors and scores without HTTP, of a manager that answers from a table."""

import asyncio

import numpy as np
import pytest

from radixlm.api import pooled
from radixlm.base.errors import RequestError
from radixlm.config.card import PoolingCard
from radixlm.server.pooled.encode import EncodeBody
from radixlm.server.pooled.score import ScoreBody
from tests.wire.fake_extras import logprob
from tests.wire.fake_manager import FakeManager
from tests.wire.fake_pooler import FakePooler, vector


def test_vectors() -> None:
    async def ask(**fields):
        return await pooled.vectors(FakePooler(PoolingCard(modes=("cls",))), pooled.body_of(EncodeBody, **fields), "v7")

    one = asyncio.run(ask(text="hi"))
    assert np.allclose(one["embedding"], vector([104, 105])) and one["meta_info"]["weight_version"] == "v7"
    assert len(asyncio.run(ask(input_ids=[[1], [2, 3]]))) == 2
    with pytest.raises(RequestError, match="dimensions"):
        asyncio.run(ask(text="hi", dimensions=2))
    with pytest.raises(RequestError, match="text"):
        asyncio.run(ask(text=5))


def test_scores() -> None:
    async def ask(manager, **fields):
        return await pooled.scores(manager, pooled.body_of(ScoreBody, **fields))

    result = asyncio.run(ask(FakeManager(), query="q", items=["a", "b"], label_token_ids=[8]))
    assert result.scores == [[pytest.approx(np.exp(logprob(8)))]] * 2 and result.prompt_tokens == 4
    scorer = FakePooler(PoolingCard(modes=("cls",), labels=("x",)))
    assert np.allclose(asyncio.run(ask(scorer, query="q", items="a")).scores, [vector([113, 97])[:1]])
    with pytest.raises(RequestError, match="scores nothing"):
        asyncio.run(ask(FakePooler(PoolingCard(modes=("cls",))), query="q", items="a"))
