"""The smallest model that runs, and checkpoints for it."""

import msgspec
import torch

from radixlm.config.card import ModelCard
from radixlm.loader.dummy import fill_dummy
from radixlm.models.base import Model
from radixlm.models.table import ARCHITECTURES
from tests.helpers.forward import Harness, Row

CPU = torch.device("cpu")
CARD = ModelCard(
    architecture="LlamaForCausalLM",
    model_type="llama",
    vocab_size=24,
    hidden_size=16,
    intermediate_size=20,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    context_len=64,
)
TIED = msgspec.structs.replace(CARD, tie_word_embeddings=True)


def build(card: ModelCard) -> Model:
    return ARCHITECTURES.load(card.architecture)(card, torch.float32, CPU)


def checkpoint(card: ModelCard, seed: int = 0) -> dict[str, torch.Tensor]:
    model = build(card)
    fill_dummy(model.parameters(), seed)
    return {parameter.name: parameter.data.clone() for parameter in model.parameters()}


def logits(model: Model) -> torch.Tensor:
    return Harness(model).step([Row(0, [1, 5, 7])])[0]
