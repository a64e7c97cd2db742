"""A run of native kernels written down once and repeated by one call, without Python in between. Knows calls only."""

import ctypes
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from radixlm.kernels.native.library import COUNT, POINTER, Call, Library

# as enum radixlm_kind in program.cpp; each with the argument that counts rows
KINDS = {"linear": 5, "rms_norm": 6, "add_rms_norm": 4, "rotary": 5, "silu_mul": 2, "attention": None}
ARGUMENTS = 10
_VIEWS = "view _unsafe_view slice select split split_with_sizes expand t as_strided alias detach"
_NO_WORK = frozenset(("empty", *_VIEWS.split()))


class NotRecordableError(Exception):
    """The function computed something outside the native kernels."""


class _Call(ctypes.Structure):
    """struct radixlm_call of program.cpp."""

    _fields_ = (
        ("kind", COUNT),
        ("function", POINTER),
        ("rows_at", COUNT),
        ("per_token", COUNT),
        ("real", ctypes.c_double),
        ("arguments", COUNT * ARGUMENTS),
    )


class _Memory(TorchDispatchMode):
    """Keeps every tensor that is made, and lets torch do nothing but make and view tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in _NO_WORK:
            raise NotRecordableError(f"torch computes {name}")
        made = func(*args, **(kwargs or {}))
        if name == "empty":
            self.kept.append(made)
        return made


class Program:
    """What `function` did with the native kernels, for any number of tokens up to those it was recorded with.

    Attributes:
        out: what `function` returned. Its first rows are good until the next run.
    """

    def __init__(self, kernels: Library, function: Callable[[], Tensor], tokens: int) -> None:
        """Runs `function` once. Whatever it reads that is not made by it must stay where it is.

        NotRecordableError when anything but the kernels computes.
        """
        memory = _Memory()
        with kernels.recording() as calls, memory:
            self.out = function()
        self._kept = memory.kept
        self._run: Callable[[Any, int, int], None] = kernels.run
        self._calls = (_Call * len(calls))(*(_packed(call, tokens) for call in calls))

    def run(self, tokens: int) -> None:
        """Do it again for the first `tokens` rows of everything."""
        self._run(self._calls, len(self._calls), tokens)


def _packed(call: Call, tokens: int) -> _Call:
    name, arguments = call.kernel.name, list(call.arguments)
    at = KINDS[name]
    rows = 0 if at is None else arguments[at]
    if rows % tokens:
        raise NotRecordableError(f"{name} has {rows} rows for {tokens} tokens")
    reals = [argument for argument in arguments if isinstance(argument, float)]
    arguments = [argument for argument in arguments if not isinstance(argument, float)]
    filled = [0 if argument is None else argument for argument in arguments]
    return _Call(
        list(KINDS).index(name),
        call.kernel.address,
        -1 if at is None else at,
        rows // tokens,
        *(reals or [0.0]),
        (COUNT * ARGUMENTS)(*filled),
    )
