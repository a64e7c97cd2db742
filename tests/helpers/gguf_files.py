"""Writes Hugging Face models as GGUF files, the way llama.cpp's converter lays them out."""

from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf.constants import GGMLQuantizationType as Type
from torch import Tensor

from radixlm.config.card import RopeScaling
from radixlm.layers.rotary import Rotary

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    module, suffix = name.rsplit(".", 1)
    if module.startswith("model.layers."):
        index, part = module.removeprefix("model.layers.").split(".", 1)
        return f"blk.{index}.{_NAMES[part]}.{suffix}"
    return f"{_NAMES[module]}.{suffix}"


def permuted(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head from (half, pair) order, Hugging Face's, to (pair, half)."""
    return weight.view(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: transformers.PreTrainedModel, family: str, matrix_types: list[Type]) -> None:
    """Write `model` to `path`, its matrices in `matrix_types` by turns, vectors in F32.

    `model`'s own weights are set to what the file holds after rounding, so that it is the reference for it.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_eos_token_id(3)
    writer.add_eot_token_id(5)
    _add_rope(writer, config.rope_parameters, head_dim)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    matrices = 0
    for name, weight in model.named_parameters():
        kind = Type.F32
        if weight.dim() > 1:
            kind = matrix_types[matrices % len(matrix_types)]
            matrices += 1
        projection = name.split(".")[-2]
        turn = family == "llama" and projection in heads
        stored = permuted(weight.data, heads[projection]) if turn else weight.data
        raw = gguf.quants.quantize(stored.numpy(), kind)
        writer.add_tensor(gguf_name(name), raw, raw_dtype=kind)
        rounded = torch.from_numpy(gguf.quants.dequantize(raw, kind).copy()).view(weight.shape)
        if turn:
            count = heads[projection]
            rounded = rounded.view(count, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
        weight.data.copy_(rounded)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_rope(writer: gguf.GGUFWriter, rope: dict[str, float | str], head_dim: int) -> None:
    kind = rope["rope_type"]
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "llama3":
        theta, position = float(rope["rope_theta"]), torch.tensor([1])
        scaling = RopeScaling(
            kind="llama3",
            factor=float(rope["factor"]),
            original_max_position=int(rope["original_max_position_embeddings"]),
        )
        plain, scaled = (Rotary(head_dim, theta, how, torch.device("cpu")) for how in (None, scaling))
        angles = [torch.asin(rotary.tables(position)[1][0, 0, head_dim // 2 :]) for rotary in (plain, scaled)]
        writer.add_tensor("rope_freqs.weight", (angles[0] / angles[1]).numpy().astype(np.float32))
