"""Messages and plans survive the wire unchanged, and what is not a message is refused."""

import msgspec
import numpy as np
import pytest

from radixlm.protocol import messages
from radixlm.protocol.arrays import empty_i32
from radixlm.protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    Finished,
    FinishReason,
    SchedulerStats,
    Started,
    TextOptions,
    TokenizedGenerateReqInput,
    decode,
    encode,
)
from radixlm.protocol.plan import HOST, SAMPLE, SlotInit, StepPlan, StepResult
from radixlm.protocol.sampling import SamplingParams


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_a_request_survives_the_wire() -> None:
    sent = TokenizedGenerateReqInput(
        key=2**40,
        input_ids=ints(1, 2, 3),
        sampling=SamplingParams(stop=("a", "é"), logit_bias={5: -1.5}, seed=-(2**62)),
        text=TextOptions(stop=("a", "é")),
        stream=True,
        arrival_time=1.5,
    )
    got = decode(encode(sent))
    assert isinstance(got, TokenizedGenerateReqInput)
    assert got.input_ids.dtype == np.int32 and got.input_ids.tolist() == [1, 2, 3]
    assert (got.sampling, got.text, got.key, got.namespace) == (sent.sampling, sent.text, sent.key, sent.namespace)


def test_a_batch_of_tokens_survives_the_wire() -> None:
    reason = FinishReason("stop", matched="\n\n")
    sent = BatchTokenIDOutput(
        keys=np.array([7, 2**33], np.int64),
        counts=ints(0, 2),
        tokens=ints(4, 5),
        started=[Started(7, 10, 3, 0.25, TextOptions())],
        finished=[Finished(2**33, reason, 10, 2, 3, 1)],
    )
    got = decode(encode(sent))
    assert isinstance(got, BatchTokenIDOutput)
    assert got.keys.tolist() == [7, 2**33] and got.tokens.tolist() == [4, 5]
    assert got.started == sent.started and got.finished == sent.finished


@pytest.mark.parametrize("message", [AbortReq([1, 2]), SchedulerStats(time=1.0, step=3)])
def test_plain_messages_survive_the_wire(message: messages.Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("data", [b"", b"\x80", b"junk", msgspec.msgpack.encode({"type": "Unknown"})])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data)


def test_a_plan_and_its_result_are_bytes() -> None:
    plan = StepPlan(
        step=3,
        decode_rows=1,
        slots=ints(4, 0),
        starts=ints(9, 0),
        counts=ints(1, 3),
        flags=ints(SAMPLE, SAMPLE | HOST),
        outputs=ints(2, 0),
        tokens=ints(5, 6, 7),
        page_updates=ints(0, 0, 1, 0, 1, 2).reshape(-1, 3),
        started=[SlotInit(0, SamplingParams(), (2,), empty_i32(), empty_i32())],
    )
    again = StepPlan.decode(plan.encode())
    assert again.encode() == plan.encode()
    assert again.page_updates.tolist() == [[0, 0, 1], [0, 1, 2]]
    assert again.started[0].prompt.shape == (0,)
    result = StepResult.decode(StepResult(3, ints(8, -1), "out of memory").encode())
    assert (result.step, result.tokens.tolist(), result.error) == (3, [8, -1], "out of memory")
    empty = StepPlan.decode(msgspec.structs.replace(plan, page_updates=np.zeros((0, 3), np.int32)).encode())
    assert empty.page_updates.shape == (0, 3)
