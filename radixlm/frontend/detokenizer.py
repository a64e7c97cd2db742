"""Batches of new tokens to batches of new text, one pipeline per live request. Knows messages; no socket, no HTTP."""

from radixlm.base import log
from radixlm.frontend.text import TextPipeline, TokenTable
from radixlm.loader.tokenizer import Tokenizer
from radixlm.protocol.messages import BatchStrOutput, BatchTokenIDOutput

_log = log.get(__name__)


class Detokenizer:
    """Keeps the text state of every request between its Started and its Finished."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._table = TokenTable(tokenizer.token_bytes(), tokenizer.special_ids)
        self._live: dict[int, TextPipeline] = {}

    @property
    def live(self) -> int:
        """How many requests have text state."""
        return len(self._live)

    def process(self, batch: BatchTokenIDOutput) -> BatchStrOutput:
        """The same batch with the text that each request's tokens added."""
        for started in batch.started:
            self._live[started.key] = TextPipeline(self._table, started.text)
        reasons = {finished.key: finished.reason for finished in batch.finished}
        keys, counts, tokens = batch.keys.tolist(), batch.counts.tolist(), batch.tokens.tolist()
        texts: list[str] = []
        at = 0
        for key, count in zip(keys, counts, strict=True):
            pipeline = self._live.get(key)
            if pipeline is None:
                _log.error("tokens of request %d came before its start; their text is lost", key)
                texts.append("")
            else:
                texts.append(pipeline.feed(tokens[at : at + count], reasons.get(key)))
            at += count
        for key in reasons:
            self._live.pop(key, None)
        return BatchStrOutput(
            batch.keys, batch.counts, batch.tokens, texts, batch.started, batch.finished, batch.extras
        )
