"""The header of a GGUF file: its metadata and its tensor directory. Knows the format, no key's meaning and no torch.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from radixlm.base.errors import ModelError
from radixlm.quantization.gguf import byte_size

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_SIZE = struct.Struct("<Q")


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of the directory: `shape` as in PyTorch (rows first), `start` and `size_bytes` within the file."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    start: int
    size_bytes: int


@dataclass(frozen=True)
class GGUFHeader:
    """What a GGUF file says before its tensor data. Arrays in `metadata` are lists."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    @property
    def architecture(self) -> str:
        """GGUF's own name of the model family, such as "llama"; it prefixes the family's metadata keys."""
        return str(self.metadata.get("general.architecture", ""))

    def bytes_of(self, tensor: TensorInfo) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The tensor's raw bytes, mapped read-only from the file: uint8 [size_bytes]."""
        return np.asarray(np.memmap(self.path, np.uint8, "r", tensor.start, (tensor.size_bytes,)))


def read_header(path: Path) -> GGUFHeader:
    """Read and check the header; ModelError when the file is no GGUF file, damaged or shorter than it says."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, _Cursor(data))
    except (struct.error, EOFError):
        raise ModelError(f"{path} is truncated: its header is not complete") from None
    except KeyError:
        raise ModelError(f"{path} is damaged: its header cannot be read") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as a GGUF file: {error}") from None


class _Cursor:
    """Reads values in turn from a buffer."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> int:
        """Move on by `size` bytes and return where they start."""
        start = self.at
        if size > len(self.data) - start:
            raise EOFError
        self.at = start + size
        return start

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        layout = f"<{count}{code}"
        return struct.unpack_from(layout, self.data, self.take(struct.calcsize(layout)))

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        """`count` strings; vocabularies are most of a header."""
        data, at, most = self.data, self.at, len(self.data)
        found = []
        for _ in range(count):
            (size,) = _SIZE.unpack_from(data, at)
            start, at = at + _SIZE.size, at + _SIZE.size + size
            if at > most:
                raise EOFError
            found.append(data[start:at].decode("utf-8", "replace"))  # vocabularies hold stray bytes
        self.at = at
        return found

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(_SCALARS[kind])
        kind, count = self.number("I"), self.number("Q")
        if kind == _STRING:
            return self.strings(count)
        if kind in _SCALARS:
            return list(self.numbers(_SCALARS[kind], count))
        return [self.value(kind) for _ in range(count)]


def _parse(path: Path, cursor: _Cursor) -> GGUFHeader:
    if bytes(cursor.data[:4]) != MAGIC:
        raise ModelError(f"{path} is not a GGUF file")
    cursor.take(len(MAGIC))
    version = cursor.number("I")
    if version not in VERSIONS:
        raise ModelError(
            f"{path} has GGUF version {version} or is big-endian; versions 2 and 3, little-endian, are read"
        )
    num_tensors, num_keys = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.number("I"))
    directory = [_entry(cursor) for _ in range(num_tensors)]
    alignment = int(metadata.get("general.alignment", DEFAULT_ALIGNMENT))
    base = -(-cursor.at // alignment) * alignment
    tensors = {
        name: TensorInfo(name, shape, type_id, base + offset, byte_size(type_id, shape))
        for name, shape, type_id, offset in directory
    }
    need = max((tensor.start + tensor.size_bytes for tensor in tensors.values()), default=0)
    if need > len(cursor.data):
        raise ModelError(f"{path} is truncated: {len(cursor.data)} bytes of {need}")
    return GGUFHeader(path, metadata, tensors)


def _entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    dims = cursor.numbers("Q", cursor.number("I"))
    return name, tuple(reversed(dims)), cursor.number("I"), cursor.number("Q")
