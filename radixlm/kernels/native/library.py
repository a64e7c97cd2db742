"""Loads the compiled kernels and gives their functions argument types. Knows symbols and signatures, no tensor shape.

Functions take raw pointers: the caller vouches that tensors are CPU, of the named dtype, and laid out as documented in
the C++ source.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_float, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from radixlm.base import log
from radixlm.kernels.native.build import BuildError, built_library

logger = log.get(__name__)

FORMATS = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "float"}
LINEAR_DTYPES = (torch.bfloat16, torch.float32)

POINTER, COUNT, REAL = c_void_p, c_int64, c_float
SIGNATURES = {
    "pack": (POINTER, COUNT, POINTER, COUNT, COUNT),
    "linear": (POINTER, COUNT, POINTER, POINTER, POINTER, COUNT, COUNT, COUNT),
    "rms_norm": (POINTER, COUNT, COUNT, POINTER, POINTER, COUNT, COUNT, COUNT, REAL),
    "add_rms_norm": (POINTER, POINTER, POINTER, POINTER, COUNT, COUNT, REAL),
    "rotary": (POINTER, COUNT, POINTER, POINTER, POINTER, COUNT, COUNT, COUNT),
    "silu_mul": (POINTER, POINTER, COUNT, COUNT),
    "gelu_tanh_mul": (POINTER, POINTER, COUNT, COUNT),
    "attention": (POINTER, POINTER, POINTER, POINTER, COUNT, COUNT, COUNT, POINTER, POINTER, REAL, POINTER, POINTER),
}


class AttentionStep(ctypes.Structure):
    """A step's rows as attention.cpp's `radixlm_step` has them: addresses, then sizes."""

    _fields_ = tuple(
        [(name, POINTER) for name in ("slots", "starts", "offsets", "order", "page_table", "pieces", "index")]
        + [
            (name, COUNT)
            for name in (
                "page_table_row",
                "page_size",
                "tokens",
                "num_pieces",
                "heads",
                "kv_heads",
                "head_dim",
                "window",
                "keys_to_read",
            )
        ]
        + [("soft_cap", REAL)]
    )


class Kernel:
    """A compiled function. `name` is a key of SIGNATURES; `address` is where the code is."""

    def __init__(self, dll: ctypes.CDLL, name: str, suffix: str, tape: "Tape") -> None:
        self.name = name
        self._call = dll[f"radixlm_{name}_{suffix}"]
        self._call.argtypes = SIGNATURES[name]
        self._call.restype = None
        self._tape = tape
        self.address = ctypes.cast(self._call, c_void_p).value

    def __call__(self, *arguments: Any) -> None:
        self._call(*arguments)
        if self._tape.calls is not None:
            self._tape.calls.append(Call(self, arguments))


class Call(NamedTuple):
    """A call that was made."""

    kernel: Kernel
    arguments: tuple[Any, ...]


@dataclass
class Tape:
    """Where calls are written down; `calls` is None while they are not."""

    calls: list[Call] | None = None


class Library:
    """The compiled kernels, by tensor dtype.

    Short functions keep the interpreter lock, since taking it back costs more than they run; the others release it.
    """

    def __init__(self, path: str) -> None:
        self._tape = Tape()
        releasing, keeping = ctypes.CDLL(path), ctypes.PyDLL(path)
        self.pack = self._by_dtype(releasing, "pack", LINEAR_DTYPES)
        self.linear = {
            (dtype, result): Kernel(releasing, "linear", f"{FORMATS[dtype]}_{FORMATS[result]}", self._tape)
            for dtype in LINEAR_DTYPES
            for result in dict.fromkeys((dtype, torch.float32))
        }
        self.rms_norm, self.add_rms_norm = (
            {
                (dtype, weight): Kernel(keeping, name, f"{FORMATS[dtype]}_{FORMATS[weight]}", self._tape)
                for dtype in FORMATS
                for weight in dict.fromkeys((dtype, torch.float32))
            }
            for name in ("rms_norm", "add_rms_norm")
        )
        self.rotary = self._by_dtype(keeping, "rotary", tuple(FORMATS))
        self.gate_mul = {
            activation: self._by_dtype(keeping, f"{activation}_mul", tuple(FORMATS))
            for activation in ("silu", "gelu_tanh")
        }
        self.attention = {
            (query, pool): Kernel(releasing, "attention", f"{FORMATS[query]}_{FORMATS[pool]}", self._tape)
            for query in LINEAR_DTYPES
            for pool in FORMATS
        }
        self.read: Callable[[int, int], float] = releasing.radixlm_read
        releasing.radixlm_read.argtypes = (POINTER, COUNT)
        releasing.radixlm_read.restype = REAL
        self.packed_elements: Callable[[int, int], int] = _count(releasing, "packed_elements", COUNT, COUNT)
        self.attention_rows: Callable[[int], int] = _count(releasing, "attention_rows", COUNT)
        self.attention_keys: int = _count(releasing, "attention_keys")()
        self.run: Callable[[Any, int, int], None] = releasing.radixlm_run
        releasing.radixlm_run.argtypes = (POINTER, COUNT, COUNT)
        releasing.radixlm_run.restype = None

    @contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """Meanwhile every kernel call is also written down, in order, in the list that this gives."""
        calls = self._tape.calls = []
        try:
            yield calls
        finally:
            self._tape.calls = None

    def _by_dtype(self, dll: ctypes.CDLL, name: str, dtypes: tuple[torch.dtype, ...]) -> dict[torch.dtype, Kernel]:
        return {dtype: Kernel(dll, name, FORMATS[dtype], self._tape) for dtype in dtypes}


def _count(dll: ctypes.CDLL, name: str, *arguments: type) -> Callable[..., int]:
    function = dll[f"radixlm_{name}"]
    function.argtypes = arguments
    function.restype = COUNT
    return function


@cache
def outcome() -> Library | str:
    """The library, or in one line why there is none; the first call compiles it if it must, and logs the reason."""
    if os.environ.get("RADIXLM_NATIVE") == "0":
        return "switched off by RADIXLM_NATIVE=0"
    try:
        return Library(str(built_library()))
    except (BuildError, OSError) as error:
        logger.warning("native CPU kernels are not used, torch's are: %s", error)
        return str(error)


@cache
def library() -> Library | None:
    """The compiled kernels, or None where torch must do."""
    found = outcome()
    return found if isinstance(found, Library) else None


def why_not() -> str | None:
    """Why there is no library here, in one line; None when there is one."""
    found = outcome()
    return found if isinstance(found, str) else None
