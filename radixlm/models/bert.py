"""BERT (arXiv 1810.04805), and RoBERTa and XLM-RoBERTa (arXiv 1907.11692, 1911.02116), which differ in the head."""

from typing import ClassVar

import torch

from radixlm.layers.score import ScoreHead
from radixlm.models.encoder import Encoder, LayerNames


class Bert(Encoder):
    """Classes are scored from the first token by way of BERT's pooler."""

    prefix: ClassVar[str] = "bert."
    layer_prefix: ClassVar[str] = "encoder.layer"
    layer_names: ClassVar[LayerNames] = LayerNames(
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        attention_output="attention.output.dense",
        attention_norm="attention.output.LayerNorm",
        up="intermediate.dense",
        down="output.dense",
        output_norm="output.LayerNorm",
    )
    unused: ClassVar[tuple[str, ...]] = ("pooler.", "cls.")

    def head(self, labels: int) -> ScoreHead:
        size = self.card.hidden_size
        maps = (("bert.pooler.dense", size), ("classifier", labels))
        return ScoreHead(size, maps, self.place, activation=torch.tanh)


class Roberta(Bert):
    """Positions begin behind the padding token's; the classifier has a hidden layer of its own."""

    prefix: ClassVar[str] = "roberta."
    unused: ClassVar[tuple[str, ...]] = ("pooler.", "lm_head.")

    def head(self, labels: int) -> ScoreHead:
        size = self.card.hidden_size
        maps = (("classifier.dense", size), ("classifier.out_proj", labels))
        return ScoreHead(size, maps, self.place, activation=torch.tanh)
