"""`python -m radixlm.kernels.selfcheck`: whether the kernels compile here and agree with float64; one JSON line each.

A program of its own, because a kernel that does not fit its machine may take the process with it.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from radixlm.kernels import triton
from radixlm.kernels.activation import gate_mul
from radixlm.kernels.linear import pack_linear
from radixlm.kernels.native import library as native
from radixlm.kernels.norm import add_rms_norm, rms_norm
from radixlm.kernels.rotary import rotary

TOKENS, WIDTH, HEADS, HEAD_DIM = 37, 576, 5, 64
# Largest error relative to the largest value: the output's own rounding, and float32 sums.
BOUND = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
EPS = 1e-5

Case = Callable[[torch.dtype, torch.device], tuple[Tensor, Tensor]]  # what the kernel gave, and the float64 result


def main() -> int:
    """Print a line {name, status, detail} for each check; status is ok, fail or skip. Returns 1 when one failed."""
    failed = False
    for line in checks():
        failed = failed or line["status"] == "fail"
        print(json.dumps(line), flush=True)
    return int(failed)


def checks() -> Iterator[dict[str, str]]:
    """Versions, then the kernels of the CPU, then those of the GPU where there is one."""
    yield {"name": "torch", "status": "ok", "detail": f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}"}
    began = time.monotonic()
    why_not = native.why_not()
    if why_not is None:
        yield {"name": "native kernels", "status": "ok", "detail": f"ready after {time.monotonic() - began:.1f} s"}
    else:
        yield {"name": "native kernels", "status": "skip", "detail": f"{why_not}; torch is used in their place"}
    yield from _device(torch.device("cpu"), "torch" if why_not else "native", (torch.float32, torch.bfloat16))
    if not torch.cuda.is_available():
        yield {"name": "CUDA", "status": "skip", "detail": "torch sees no CUDA device"}
        return
    found = torch.cuda.get_device_properties(0)
    detail = f"{found.name}, compute capability {found.major}.{found.minor}, {found.total_memory / 2**30:.1f} GiB"
    yield {"name": "CUDA", "status": "ok", "detail": detail}
    kind = "Triton" if triton.available() else "torch"
    dtypes = (torch.float32, torch.float16) + ((torch.bfloat16,) if found.major >= 8 else ())
    yield from _device(torch.device("cuda"), kind, dtypes)


def _device(device: torch.device, kind: str, dtypes: tuple[torch.dtype, ...]) -> Iterator[dict[str, str]]:
    for name, case in CASES.items():
        try:
            worst = max(_error(case, dtype, device) / BOUND[dtype] for dtype in dtypes)
        except Exception as error:  # whatever a compiler or a driver raises is the finding
            first = str(error).strip().splitlines() or [type(error).__name__]
            yield {"name": f"{name} on {device.type}", "status": "fail", "detail": f"{kind}: {first[0][:200]}"}
            continue
        status = "ok" if worst <= 1 else "fail"
        detail = f"{kind}: error {worst:.2f} of what rounding explains"
        yield {"name": f"{name} on {device.type}", "status": status, "detail": detail}


def _error(case: Case, dtype: torch.dtype, device: torch.device) -> float:
    """Largest relative error; inf for a wrong shape or a value that is not finite."""
    got, want = case(dtype, device)
    if got.shape != want.shape or got.dtype != dtype or not bool(torch.isfinite(got).all()):
        return float("inf")
    return float((got.double() - want).abs().max() / want.abs().max())


def _random(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + EPS) * weight.double()


def _rms_norm(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    x, weight = (_random(*shape, dtype=dtype, device=device) for shape in ((TOKENS, WIDTH), (WIDTH,)))
    return rms_norm(x, weight, EPS), _normed(x, weight)


def _add_rms_norm(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    x, weight = (_random(*shape, dtype=dtype, device=device) for shape in ((TOKENS, WIDTH), (WIDTH,)))
    residual = _random(TOKENS, WIDTH, dtype=dtype, device=device, seed=1)
    total = residual + x
    return add_rms_norm(x, residual, weight, EPS), _normed(total, weight)


def _gate_mul(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    x = _random(TOKENS, 2 * WIDTH, dtype=dtype, device=device)
    gate, up = x.double().chunk(2, -1)
    return gate_mul(x), gate * torch.sigmoid(gate) * up


def _rotary(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    x = _random(TOKENS, HEADS, HEAD_DIM, dtype=dtype, device=device)
    angles = torch.arange(TOKENS * HEAD_DIM // 2, device=device).view(TOKENS, 1, HEAD_DIM // 2) * 0.01
    cos = torch.cat((angles.cos(), angles.cos()), -1).float()
    sin = torch.cat((-angles.sin(), angles.sin()), -1).float()
    want = x.double() * cos.double() + x.double().roll(HEAD_DIM // 2, -1) * sin.double()
    return rotary(x, cos, sin), want


def _linear(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    weight = _random(WIDTH // 2, WIDTH, dtype=dtype, device=device, seed=1)
    x = _random(TOKENS, WIDTH, dtype=dtype, device=device)
    return pack_linear(weight, None)(x), x.double() @ weight.double().T


CASES: dict[str, Case] = {
    "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "gate_mul": _gate_mul,
    "rotary": _rotary,
    "linear": _linear,
}

if __name__ == "__main__":
    sys.exit(main())
