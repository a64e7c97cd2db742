"""Arrays inside messages: packed bytes on the wire, numpy arrays in structs. Knows no message."""

from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

I32: TypeAlias = NDArray[np.int32]
I64: TypeAlias = NDArray[np.int64]
F64: TypeAlias = NDArray[np.float64]
F32: TypeAlias = NDArray[np.float32]

_DTYPES: dict[int, np.dtype[Any]] = {
    code: np.dtype(kind) for code, kind in enumerate((np.int32, np.int64, np.float64, np.float32), 1)
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

# A struct field that holds an array; its dtype and shape travel with it. One or two dimensions, little-endian.
Array: TypeAlias = Annotated[Any, msgspec.Meta(description="numpy int32, int64, float32 or float64 array")]


def enc_hook(value: Any) -> Any:
    """msgspec hook: an array becomes extension type 1-4 (by dtype) holding the column count and the raw bytes."""
    if isinstance(value, np.ndarray):
        columns = value.shape[1] if value.ndim == 2 else 0
        header = columns.to_bytes(4, "little")
        return msgspec.msgpack.Ext(_CODES[value.dtype], header + value.tobytes())
    raise TypeError(f"cannot encode {type(value)}")


def ext_hook(code: int, data: memoryview) -> Any:
    """msgspec hook: the inverse of `enc_hook`; the array is a read-only view of the message's bytes."""
    dtype = _DTYPES.get(code)
    if dtype is None:
        raise ValueError(f"unknown extension type {code}")
    columns = int.from_bytes(data[:4], "little")
    array = np.frombuffer(data, dtype=dtype, offset=4)
    return array.reshape(-1, columns) if columns else array


def empty_i32() -> I32:
    return np.empty(0, np.int32)
