"""The metadata of a GGUF file as plain values. Knows the container format; not what any key means."""

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np

from radixlm.base.errors import ModelError

# GGUF value types (github.com/ggml-org/ggml, docs/gguf.md): number formats by type code, then the special three.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9


class _Cursor:
    """A reading position in the file's bytes."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise ModelError("the GGUF file ends inside its metadata")
        self._at += count
        return taken

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _BOOL:
            return self.number("B") != 0
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            element, count = self.number("I"), self.number("Q")
            if element in _NUMBERS:
                dtype = np.dtype("<" + _NUMBERS[element])
                return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
            return [self.value(element) for _ in range(count)]
        raise ModelError(f"the GGUF file has a value of unknown type {kind}")


def read_metadata(path: Path) -> dict[str, Any]:
    """Every key and value before the tensors; arrays become lists. ModelError when the file is not GGUF 2 or 3."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(data)
            if cursor.take(4) != b"GGUF":
                raise ModelError(f"{path} is not a GGUF file")
            version = cursor.number("I")
            if version not in (2, 3):
                raise ModelError(f"{path} is GGUF version {version}; versions 2 and 3 can be read")
            cursor.number("Q")  # tensor count
            metadata = {}
            for _ in range(cursor.number("Q")):
                key = cursor.string()
                metadata[key] = cursor.value(cursor.number("I"))
            return metadata
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
