"""Tiny random models that pool, made by Hugging Face transformers, and an engine that serves one in this process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from torch import Tensor

from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.loader.weights import load_model
from radixlm.protocol.arrays import F32
from radixlm.protocol.sampling import SamplingParams
from tests.helpers.checkpoints import SIZES, VOCAB
from tests.helpers.engine import LocalEngine

ENCODER_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
    "initializer_range": 0.2,
    "pad_token_id": 1,
}
DECODER_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
ENCODER_FAMILIES = ("XLMRoberta", "DistilBert", "Roberta", "Bert")
DISTIL_SIZES = {"dim": 48, "hidden_dim": 80, "n_layers": 3, "n_heads": 4}
PROMPT = SamplingParams(max_new_tokens=0, temperature=0.0)


def make_model(name: str, folder: Path, **options: Any) -> transformers.PreTrainedModel:
    """Save a tiny model of this class (`name` is transformers' own) into `folder`, and return it."""
    family = next(part for part in (*DECODER_FAMILIES, *ENCODER_FAMILIES) if name.startswith(part))
    sizes = SIZES if family in DECODER_FAMILIES else ENCODER_SIZES
    sizes = {**sizes, **(DISTIL_SIZES if family == "DistilBert" else {}), **options}
    torch.manual_seed(5)
    model = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**sizes)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:  # norms and biases start at one and zero, which would hide mistakes
                weight.add_(torch.randn(weight.shape) * 0.2)
    model.save_pretrained(folder)
    return model


def save_tokenizer(folder: Path) -> None:
    """A WordPiece tokenizer of single letters with BERT's special tokens and pairs."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz"]
    vocabulary = {word: index for index, word in enumerate(words)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    ).save_pretrained(folder)


def prompts(lengths: Sequence[int], seed: int = 3) -> list[list[int]]:
    """Random token ids, none of them the padding id."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(4, VOCAB, (length,), generator=draw).tolist() for length in lengths]


class PooledEngine:
    """A LocalEngine around the model in `folder`; `flags` are the server's."""

    def __init__(self, folder: Path, embedding: bool = False, **flags: Any) -> None:
        source = resolve(str(folder))
        self.card = load_card(source, embedding=embedding)
        device = torch.device(flags.get("device", "cpu"))
        loaded = load_model(source, self.card, getattr(torch, flags.get("dtype", "float32")), device)
        self.engine = LocalEngine(loaded, self.card, **flags)

    def vectors(self, batch: Sequence[Sequence[int]], **asked: Any) -> F32:
        """What the prompts get, all submitted at once: float32 [n, D]."""
        keys = [self.engine.submit(prompt, PROMPT, **asked) for prompt in batch]
        self.engine.finish()
        outputs = [self.engine.outputs[key] for key in keys]
        assert all(output.finished is not None and output.finished.reason.type == "length" for output in outputs)
        found: F32 = np.stack([output.extras[0].embedding for output in outputs])
        return found

    def cached_tokens(self) -> int:
        """Of the request that ended last."""
        finished = list(self.engine.outputs.values())[-1].finished
        assert finished is not None
        return finished.cached_tokens


def reference(batch: Sequence[Sequence[int]], run: Callable[[Tensor], Tensor]) -> F32:
    """`run` over each prompt by itself (int64 [1, n], to [1, D]): float32 [n, D]."""
    with torch.inference_mode():
        found: F32 = torch.cat([run(torch.tensor([list(prompt)])) for prompt in batch]).float().numpy()
    return found
