"""Steps nobody asked for: they run on the null page, as whole plans, and a model that cannot run says so."""

import numpy as np
import pytest

from radixlm.base.errors import RadixError
from radixlm.engine.trial import NUCLEUS, null_step, run_null_step
from radixlm.models.decoder import Decoder
from radixlm.protocol.plan import HOST, SAMPLE, StepPlan
from tests.unit.runner.bench import Bench, tiny_model


def test_a_null_step_is_a_whole_plan() -> None:
    plan = null_step([1, 1, 4, 2], 2)
    assert plan.slots.tolist() == [0, 1, 2, 3] and len(plan.tokens) == 6 and len(plan.started) == 4
    assert plan.flags.tolist() == [SAMPLE, SAMPLE, SAMPLE | HOST, SAMPLE | HOST]
    again = StepPlan.decode(plan.encode())
    assert again.counts.tolist() == [1, 1, 4, 2] and again.decode_rows == 2


@pytest.mark.parametrize(("counts", "decode_rows"), [([1], 0), ([1], 1), ([1, 1, 5, 3], 2), ([9], 0)])
def test_null_steps_run_and_touch_no_page(counts: list[int], decode_rows: int) -> None:
    bench = Bench(tiny_model())
    pool = bench.runner._attention.pool
    run_null_step(bench.runner, null_step(counts, decode_rows, NUCLEUS))
    for keys in pool.keys:
        assert np.isnan(keys[pool.page_size :].numpy()).all()


def test_a_model_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no kernel for this device")

    monkeypatch.setattr(Decoder, "forward", broken)
    with pytest.raises(RadixError, match="the model does not run: RuntimeError: no kernel for this device"):
        run_null_step(Bench(tiny_model()).runner, null_step([1], 0))
