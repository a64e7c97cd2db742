"""GGUF's block formats: sizes and dequantization, by the `gguf` library. Knows no files or models."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radixlm.base.errors import ModelError


def type_name(type_id: int) -> str:
    """The name of a GGML tensor type, such as "Q4_K"."""
    from gguf.constants import GGMLQuantizationType

    try:
        return str(GGMLQuantizationType(type_id).name)
    except ValueError:
        return f"number {type_id}"


def byte_size(type_id: int, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of that type. `shape` has the fastest-varying dimension last; rows are whole blocks."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    if type_id not in set(GGMLQuantizationType):
        raise ModelError(f"GGUF tensor type {type_name(type_id)} is not known to the gguf library")
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(type_id)]
    if shape and shape[-1] % block:
        raise ModelError(
            f"a GGUF tensor of type {type_name(type_id)} has rows of {shape[-1]}, not whole blocks of {block}"
        )
    return math.prod(shape) // block * block_bytes


def dequantize(data: NDArray[np.uint8], type_id: int) -> NDArray[np.float32]:
    """data: uint8 [rows, bytes per row]. Returns float32 [rows, elements per row]. ModelError for an unknown type."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize as library_dequantize

    try:
        # as one row: the library goes through rows 16 by 16, which costs it more than the arithmetic
        values: Any = library_dequantize(data.reshape(1, -1), GGMLQuantizationType(type_id))
    except (NotImplementedError, ValueError):
        raise ModelError(f"GGUF tensor type {type_name(type_id)} cannot be dequantized") from None
    return np.asarray(values, dtype=np.float32).reshape(len(data), -1)
