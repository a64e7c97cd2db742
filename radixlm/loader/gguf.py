"""Weights out of a GGUF file, dequantized, under their Hugging Face names. Knows no model class."""

from collections.abc import Iterator

import torch
from torch import Tensor

from radixlm.base.errors import ModelError
from radixlm.config.card import ModelCard
from radixlm.loader.gguf_config import ROPE_FACTORS
from radixlm.loader.gguf_header import GGUFHeader, TensorInfo
from radixlm.quantization.gguf import dequantize

PIECE_ELEMENTS = 1 << 17  # dequantized at a time: what is made of them on the way stays in a core's cache
PERMUTED = ("llama",)  # families whose query and key rows the converter reorders for interleaved rotary pairs
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def gguf_weights(header: GGUFHeader, card: ModelCard, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Each tensor in `dtype`, one at a time; a tensor of unknown name comes under that name."""
    for info in header.tensors.values():
        if info.name == ROPE_FACTORS:
            continue  # a table derived from the configuration
        tensor = _dequantized(header, info, dtype)
        part = info.name.split(".")[-2]
        if header.architecture in PERMUTED and part in ("attn_q", "attn_k"):
            tensor = _unpermuted(tensor, card.num_heads if part == "attn_q" else card.num_kv_heads)
        yield _hf_name(info.name), tensor


def _hf_name(name: str) -> str:
    """ "blk.3.attn_q.weight" to "model.layers.3.self_attn.q_proj.weight"."""
    match name.split("."):
        case ["blk", index, part, suffix] if part in _OF_BLOCK:
            return f"model.layers.{index}.{_OF_BLOCK[part]}.{suffix}"
        case [part, suffix] if part in _WHOLE:
            return f"{_WHOLE[part]}.{suffix}"
    return name


def _dequantized(header: GGUFHeader, info: TensorInfo, dtype: torch.dtype) -> Tensor:
    out = torch.empty(info.shape, dtype=dtype)
    rows = out.view(-1, info.shape[-1])
    data = header.bytes_of(info).reshape(len(rows), -1)
    step = max(1, PIECE_ELEMENTS // info.shape[-1])
    for first in range(0, len(rows), step):
        values = dequantize(data[first : first + step], info.type_id)
        if not values.flags.writeable:  # a view of the mapped file, which torch will not take quietly
            values = values.copy()
        rows[first : first + step] = torch.from_numpy(values)
    return out


def _unpermuted(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head from (pair, half) order back to (half, pair)."""
    if tensor.shape[0] % (2 * heads):
        raise ModelError(f"the weights do not fit the configuration: {tensor.shape[0]} rows for {heads} heads")
    return tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
