"""The routes of models that generate nothing, and of scoring with those that do. Knows rows only."""

from radixlm.server.pooled import classify, embeddings, encode, rerank, score

ROWS = (*encode.ROWS, *embeddings.ROWS, *classify.ROWS, *score.ROWS, *rerank.ROWS)
