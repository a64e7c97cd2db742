"""A run of native kernels written down once and repeated by one call, without Python in between. Knows calls only."""

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from radixlm.kernels.native.library import COUNT, POINTER, SIGNATURES, Call, Library

# as enum radixlm_kind in program.cpp; each with the argument that counts rows
KINDS = {
    "linear": 5,
    "rms_norm": 6,
    "add_rms_norm": 4,
    "rotary": 5,
    "silu_mul": 2,
    "gelu_tanh_mul": 2,
    "attention": None,
}
ARGUMENTS = 11
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


class _Made(TorchDispatchMode):
    """Keeps every tensor that is made, and lets torch do nothing but make and view tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to be left out of that would import the compiler: 2 s

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in _NO_WORK:
            raise NotRecordableError(f"torch computes {name}")
        made = func(*args, **(kwargs or {}))
        if name == "empty":
            self.tensors.append(made)
        return made


class _Buffers:
    """Memory of its own for what a recording made, for any number of tokens up to `most_tokens`.

    Tensors take turns in it: one may lie where another lay that no later call reads. So a program needs little more
    memory than one layer, and finds it in the caches.
    """

    def __init__(
        self, made: Sequence[Tensor], calls: Sequence[Call], out: Tensor, tokens: int, most_tokens: int
    ) -> None:
        tensors = sorted(made, key=Tensor.data_ptr)
        self._begins = [tensor.data_ptr() for tensor in tensors]
        self._bytes = [tensor.nbytes for tensor in tensors]
        self._new: dict[int, Tensor] = {}  # by place among the tensors
        if any(size % tokens for size in self._bytes):
            raise NotRecordableError(f"a tensor is not of {tokens} tokens")
        uses = [{at for address in _addresses(call) if (at := self._find(address)) is not None} for call in calls]
        result = self._find(out.data_ptr())
        last = {at: number for number, used in enumerate(uses) for at in used}
        free: list[Tensor] = []
        for number, used in enumerate(uses):
            for at in used - self._new.keys():
                size = self._bytes[at] // tokens * most_tokens
                fitting = next((i for i, buffer in enumerate(free) if buffer.numel() == size), None)
                self._new[at] = torch.empty(size, dtype=torch.uint8) if fitting is None else free.pop(fitting)
            free += [self._new[at] for at in used if last[at] == number and at != result]
        if result is None:
            raise NotRecordableError("the result is no new tensor")
        self.out = self._new[result].view(out.dtype).view(most_tokens, *out.shape[1:])

    def moved(self, call: Call) -> Call:
        """The call with addresses in these buffers."""
        kinds = SIGNATURES[call.kernel.name]
        pairs = zip(call.arguments, kinds, strict=True)
        return Call(call.kernel, tuple(self._moved(a) if kind is POINTER and a else a for a, kind in pairs))

    def _moved(self, address: int) -> int:
        at = self._find(address)
        return address if at is None else self._new[at].data_ptr() + address - self._begins[at]

    def _find(self, address: int) -> int | None:
        at = bisect_right(self._begins, address) - 1
        return at if at >= 0 and address < self._begins[at] + self._bytes[at] else None


def _addresses(call: Call) -> list[int]:
    kinds = SIGNATURES[call.kernel.name]
    return [a for a, kind in zip(call.arguments, kinds, strict=True) if kind is POINTER and a]


class Program:
    """What `function` did with the native kernels, for any number of tokens up to `most_tokens`.

    Attributes:
        out: what `function` returned, for `most_tokens`. Its first rows are good until the next run.
    """

    def __init__(self, kernels: Library, function: Callable[[], Tensor], tokens: int, most_tokens: int) -> None:
        """Runs `function`, which does `tokens` of them, once. What it reads and does not make must stay where it is.

        NotRecordableError when anything but the kernels computes.
        """
        made = _Made()
        with kernels.recording() as calls, made:
            out = function()
        self._buffers = _Buffers(made.tensors, calls, out, tokens, most_tokens)
        self.out = self._buffers.out
        self._run: Callable[[Any, int, int], None] = kernels.run
        self._calls = (_Call * len(calls))(*(_packed(self._buffers.moved(call), tokens) for call in calls))

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
