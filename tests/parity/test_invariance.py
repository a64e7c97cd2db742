"""Deterministic inference on the CPU: what the native kernels promise, as whole answers."""

from pathlib import Path

import pytest
import torch

from radixlm.base.errors import ConfigError, RadixError
from radixlm.kernels.native.library import why_not
from radixlm.protocol.sampling import SamplingParams
from tests.helpers.engine import LocalEngine
from tests.helpers.invariance import answers, make_model

CPU = torch.device("cpu")


@pytest.mark.skipif(why_not() is not None, reason="the native kernels are not available")
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_one_prompt_has_one_answer(temperature: float, tmp_path: Path) -> None:
    loaded, card = make_model(tmp_path, CPU, torch.float32)
    params = SamplingParams(max_new_tokens=24, seed=5, temperature=temperature, top_p=0.8)
    got = answers(loaded, card, params, 8)
    assert len({tuple(tokens) for tokens in got}) == 1


def test_a_backend_that_cannot_promise_it_is_refused(tmp_path: Path) -> None:
    loaded, card = make_model(tmp_path, CPU, torch.float32)
    with pytest.raises((ConfigError, RadixError), match="its sums depend on the other rows"):
        LocalEngine(loaded, card, enable_deterministic_inference=True, attention_backend="torch_native")
