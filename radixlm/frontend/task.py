"""What a server does: generate, or make vectors of prompts. One check with one set of messages."""

from radixlm.base.errors import RequestError
from radixlm.config.card import ModelCard

OTHER_TASK = "wrong_task"


def refuse_other_task(card: ModelCard, pooled: bool) -> None:
    """RequestError for a request that wants a vector (`pooled`) of a model that generates, or the other way round."""
    if pooled == (card.pooling is not None):
        return
    if pooled:
        message = "this server generates text; start it with --is-embedding to make embeddings with its model"
    elif card.pooling is not None and card.pooling.labels:
        message = "this server's model scores texts and generates none; use /v1/classify, /v1/rerank or /v1/score"
    else:
        message = "this server makes embeddings and generates no text; use /v1/embeddings"
    raise RequestError(message, code=OTHER_TASK)
