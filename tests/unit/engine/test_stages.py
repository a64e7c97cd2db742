"""Every second between two laps belongs to exactly one stage."""

import pytest

from radixlm.engine.stages import StageClock


def test_laps_add_up_by_stage_and_overlap() -> None:
    times = iter([10.0, 10.5, 12.5, 12.75, 20.0])
    stages = StageClock(lambda: next(times))
    stages.lap("idle")
    stages.lap("run_batch", overlapped=True)
    stages.lap("run_batch")
    stages.lap("run_batch", overlapped=True)
    assert stages.seconds == {"idle|none": 0.5, "run_batch|full": 9.25, "run_batch|none": 0.25}
    assert sum(stages.seconds.values()) == pytest.approx(10.0)


def test_passes_by_mode() -> None:
    stages = StageClock()
    for prefill, replayed in ((True, False), (False, True), (False, True)):
        stages.passed(prefill, replayed)
    assert stages.passes == {"prefill_none": 1, "decode_cuda_graph": 2}
