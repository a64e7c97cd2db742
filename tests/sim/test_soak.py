"""The soak of tests/sim/soak.py, in two minutes."""

import pytest
import torch

from tests.sim.soak import soak


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_nothing_is_lost_in_a_small_pool(run_ahead: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seen = soak(60.0, seed=run_ahead, run_ahead=run_ahead)
    finally:
        torch.set_num_threads(threads)
    assert not seen.wrong, "\n".join(seen.wrong[:5])
    assert min(seen.requests, seen.aborted, seen.retractions, seen.cached_tokens) > 0, seen
    assert seen.growth_mib() < 64
