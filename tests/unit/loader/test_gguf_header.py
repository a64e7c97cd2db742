"""GGUF headers: what is read, what is refused, and every way of being cut short."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Type

from radixlm.base.errors import ModelError
from radixlm.loader.card import load_card
from radixlm.loader.gguf import gguf_weights
from radixlm.loader.gguf_header import read_header
from radixlm.loader.source import ModelSource
from radixlm.quantization.gguf import dequantize
from tests.helpers.tiny import CARD


def write(path: Path, family: str = "llama", extra: Callable[[gguf.GGUFWriter], None] | None = None) -> Path:
    """A header as of a small llama, and one tensor."""
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(20)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_array("tokenizer.ggml.tokens", ["a", "ü", ""])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.0, 2.0])
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_tensor("token_embd.weight", np.arange(48, dtype=np.float32).reshape(3, 16))
    if extra is not None:
        extra(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "a.gguf"))
    assert header.architecture == "llama"
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "ü", ""]
    assert header.metadata["tokenizer.ggml.scores"] == [0.5, 1.0, 2.0]
    assert header.metadata["tokenizer.ggml.add_bos_token"] is True
    info = header.tensors["token_embd.weight"]
    assert (info.shape, info.size_bytes) == ((3, 16), 192)
    assert header.bytes_of(info).view(np.float32).tolist() == list(range(48))


def test_card(tmp_path: Path) -> None:
    card = load_card(ModelSource("it", write(tmp_path / "a.gguf"), "gguf"), {"max_position_embeddings": 32})
    assert (card.vocab_size, card.head_dim, card.context_len, card.tie_word_embeddings) == (3, 8, 32, True)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, len(whole), 3), len(whole) - 1]:
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError) as caught:
            read_header(cut)
        assert str(caught.value).startswith(str(cut))


def test_lengths_beyond_reason_are_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf")
    content = path.read_bytes()
    at = content.index(b"tokenizer.ggml.scores") + len("tokenizer.ggml.scores") + 8
    path.write_bytes(content[:at] + b"\xff" * 8 + content[at + 8 :])
    with pytest.raises(ModelError, match="truncated"):
        read_header(path)


def test_refusals(tmp_path: Path) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(ModelError) as caught:
            load_card(ModelSource("it", path, "gguf"))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    other = tmp_path / "text.gguf"
    other.write_text("not a model" * 10)
    assert refusal(other) == f"{other} is not a GGUF file"
    assert "cannot be read" in refusal(tmp_path / "gone.gguf")
    old = write(tmp_path / "old.gguf")
    old.write_bytes(b"GGUF\x01" + old.read_bytes()[5:])
    assert "version 1" in refusal(old)
    assert refusal(write(tmp_path / "b.gguf", "bert")).endswith(
        "'bert', which is not supported; known in GGUF: llama, qwen2, qwen3"
    )
    assert "mixture" in refusal(write(tmp_path / "c.gguf", extra=lambda writer: writer.add_expert_count(8)))
    assert "split" in refusal(write(tmp_path / "d.gguf", extra=lambda writer: writer.add_uint16("split.count", 2)))
    freqs = np.full(4, 3.0, np.float32)
    odd = write(tmp_path / "e.gguf", extra=lambda writer: writer.add_tensor("rope_freqs.weight", freqs))
    assert "does not follow" in refusal(odd)
    ext = "llama.rope.scaling.yarn_ext_factor"

    def yarn(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_float32(ext, 1.0)

    assert f"{ext} is not supported" in refusal(write(tmp_path / "f.gguf", extra=yarn))


def test_unknown_tensors_keep_their_names(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.gguf", extra=lambda writer: writer.add_tensor("blk.0.ssm.weight", np.ones(4, np.float32))
    )
    assert [name for name, _ in gguf_weights(read_header(path), CARD, torch.float32)] == [
        "model.embed_tokens.weight",
        "blk.0.ssm.weight",
    ]


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0])
def test_dequantize_undoes_quantize(kind: Type) -> None:
    values = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    raw = gguf.quants.quantize(values, kind).view(np.uint8)
    assert np.abs(dequantize(raw, int(kind)) - values).max() < 0.35


@pytest.mark.parametrize("kind", list(gguf.quants._type_traits), ids=lambda kind: kind.name)
def test_every_block_type_is_read(kind: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor read in blocks of rows is what the library makes of the whole."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    columns = 256 if block == 1 else block
    # Small bytes: exponents of scales stay far from infinity.
    raw = np.random.default_rng(0).integers(0, 60, (7, columns // block * block_bytes), np.uint8)
    path = write(tmp_path / "a.gguf", extra=lambda writer: writer.add_tensor("x.weight", raw, raw_dtype=kind))
    monkeypatch.setattr("radixlm.loader.gguf.PIECE_ELEMENTS", 2 * columns)
    got = dict(gguf_weights(read_header(path), CARD, torch.float32))["x.weight"]
    want = gguf.quants.dequantize(raw, kind)
    assert got.shape == (7, columns)
    assert np.isfinite(want).all()
    assert np.array_equal(got.numpy(), want)


def test_types_without_a_reader_are_named() -> None:
    with pytest.raises(ModelError, match="type I32 cannot be dequantized"):
        dequantize(np.zeros((1, 8), np.uint8), int(Type.I32))
