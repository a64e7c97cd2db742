"""The packed linear kernel against a float64 product, for every tile shape, and its independence of the batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from radixlm.kernels.linear import PackedLinear, pack_linear
from radixlm.kernels.native.library import library, why_not
from radixlm.kernels.native.linear import NativeLinear

pytestmark = pytest.mark.skipif(library() is None, reason=str(why_not()))
DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(1, 2), (15, 8), (16, 34), (48, 64), (50, 66), (100, 576), (960, 576), (577, 1536)]


def make(out: int, width: int, dtype: torch.dtype, bias: bool, seed: int = 0) -> tuple[Tensor, Tensor | None]:
    g = torch.Generator().manual_seed(seed)
    weight = torch.randn(out, width, generator=g).to(dtype)
    return weight, torch.randn(out, generator=g).to(dtype) if bias else None


def native(weight: Tensor, bias: Tensor | None) -> NativeLinear:
    kernels = library()
    assert kernels is not None
    return NativeLinear(weight, bias, kernels)


def error_bound(x: Tensor, weight: Tensor, exact: Tensor) -> Tensor:
    """Rounding once to the output's dtype, and the worst case of float32 sums."""
    relative = 2.0**-8 if x.dtype is torch.bfloat16 else 2.0**-23
    magnitude = x.double().abs() @ weight.double().abs().T
    return exact.abs() * relative + magnitude * (x.shape[1] + 2) * 2.0**-24 + 1e-30


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_equals_float64(dtype: torch.dtype, shape: tuple[int, int], threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for rows in (1, 2, 3, 5, 7, 8, 9, 16, 17, 70):
            weight, bias = make(*shape, dtype, bias=rows % 2 == 0, seed=rows)
            x = torch.randn(rows, shape[1], generator=torch.Generator().manual_seed(rows)).to(dtype)
            exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
            y = native(weight, bias)(x)
            assert y.dtype is dtype
            assert ((y.double() - exact).abs() <= error_bound(x, weight, exact)).all()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_alone_and_in_any_batch(dtype: torch.dtype) -> None:
    weight, bias = make(200, 576, dtype, bias=True)
    layer = native(weight, bias)
    x = torch.randn(600, 576, generator=torch.Generator().manual_seed(1)).to(dtype)
    whole = layer(x)
    for first, count in [(0, 1), (599, 1), (3, 2), (10, 7), (40, 16), (100, 33), (77, 500)]:
        assert torch.equal(layer(x[first : first + count]), whole[first : first + count])


@pytest.mark.parametrize("dtype", DTYPES)
def test_wide_results_are_those_that_are_rounded(dtype: torch.dtype) -> None:
    weight, bias = make(333, 576, dtype, bias=True)
    layer = native(weight, bias)
    for rows in (1, 9, 70):
        x = torch.randn(rows, 576, generator=torch.Generator().manual_seed(rows)).to(dtype)
        wide = layer.wide(x)
        assert wide.dtype is torch.float32 and torch.equal(wide.to(dtype), layer(x))
        assert dtype is torch.float32 or (wide != layer(x)).float().mean() > 0.9


@pytest.mark.parametrize("dtype", DTYPES)
def test_writes_every_output_and_nothing_else(dtype: torch.dtype) -> None:
    kernels = library()
    assert kernels is not None
    out, width, rows, guard = 53, 40, 11, 64
    weight, _ = make(out, width, dtype, bias=False)
    layer = native(weight, None)
    x = torch.randn(rows, width).to(dtype)
    memory = torch.full((rows * out + 2 * guard,), float("nan"), dtype=dtype)
    at = memory.data_ptr() + guard * memory.element_size()
    kernels.linear[dtype, dtype](x.data_ptr(), width, layer.packed.data_ptr(), None, at, rows, out, width)
    assert torch.equal(memory[guard:-guard].view(rows, out), layer(x))
    assert memory[:guard].isnan().all() and memory[-guard:].isnan().all()


def test_takes_strided_rows_and_weights() -> None:
    weight, bias = make(64, 200, torch.float32, bias=True)
    wide = torch.randn(9, 300)
    x = wide[:, 50:150]
    y = native(weight[:, 20:120], bias)(x)
    torch.testing.assert_close(y, F.linear(x, weight[:, 20:120], bias), rtol=1e-5, atol=1e-4)


def test_no_rows() -> None:
    weight, bias = make(64, 32, torch.float32, bias=True)
    assert native(weight, bias)(torch.empty(0, 32)).shape == (0, 64)


def test_wrong_inputs_are_refused() -> None:
    layer = native(*make(64, 32, torch.float32, bias=False))
    for x in (torch.empty(2, 30), torch.empty(2, 32, dtype=torch.bfloat16), torch.empty(32, 2).T):
        with pytest.raises(ValueError, match="expected contiguous rows"):
            layer(x)


def test_pack_linear_chooses_it_and_leaves_the_rest_to_torch() -> None:
    assert isinstance(pack_linear(*make(8, 16, torch.bfloat16, bias=True)), NativeLinear)
    for weight, bias in (make(8, 16, torch.float16, bias=True), make(8, 15, torch.float32, bias=True)):
        layer = pack_linear(weight, bias)
        assert type(layer) is PackedLinear
        x = torch.randn(3, weight.shape[1]).to(weight.dtype)
        assert torch.equal(layer(x), F.linear(x, weight, bias))
