"""DistilBERT (arXiv 1910.01108): BERT without token types."""

from typing import ClassVar

from radixlm.layers.score import ScoreHead
from radixlm.models.encoder import Encoder, LayerNames


class DistilBert(Encoder):
    prefix: ClassVar[str] = "distilbert."
    layer_prefix: ClassVar[str] = "transformer.layer"
    layer_names: ClassVar[LayerNames] = LayerNames(
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attention_output="attention.out_lin",
        attention_norm="sa_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
        output_norm="output_layer_norm",
    )
    unused: ClassVar[tuple[str, ...]] = ("vocab_",)  # the masked language model's head

    def head(self, labels: int) -> ScoreHead:
        size = self.card.hidden_size
        return ScoreHead(size, (("pre_classifier", size), ("classifier", labels)), self.place)
