"""One step between the scheduler and the runner: a plan of rows, and its result. Bytes and integers, nothing else.

A row is (slot, start, count): the request on device row `slot` computes `count` tokens from position `start` on.
A first chunk, a later chunk, a decode and a verify of k drafts differ only in these numbers.
"""

import msgspec

from radixlm.protocol.arrays import Array, empty_i32, enc_hook, ext_hook
from radixlm.protocol.extras import Extras, LogprobOptions
from radixlm.protocol.sampling import SamplingParams

SAMPLE = 1  # flag: sample a token from the row's last position
HOST = 2  # flag: the row's input ids come in `StepPlan.tokens`; otherwise count is 1 and the device row has the token
LAST = 4  # flag: the prompt ends with this row and nothing is sampled; a model that pools answers with its vector
MASKED = 8  # flag: beside SAMPLE; the host says, while the step runs, which tokens may be sampled


class Reading(msgspec.Struct, frozen=True, array_like=True):
    """What a row is read out for beside its next token. Offsets count positions from the row's start.

    targets: int32 [n], the prompt tokens that follow the positions from offset `first` on: they are scored. The hidden
    vectors of the positions from offset `hidden` on are wanted; None: of none. A sampled token is scored where the
    slot has `SlotInit.logprobs`.
    """

    first: int
    targets: Array
    hidden: int | None = None


class SlotInit(msgspec.Struct, frozen=True):
    """A request starts (or resumes) on a device row in this step; sent once.

    `prompt` (int32) is filled only when the sampler needs history (penalties): the original prompt. `outputs`
    (int32) are output tokens sampled before a retraction, empty on a first start. `stop_ids` may not be sampled
    before `min_new_tokens` outputs exist. `logprobs`: what is listed at each position that is scored. `embeds` (float32
    [n, hidden_size]) stand for the embeddings of the first n tokens, whose ids mean nothing then. `second_at`: where
    the second of two texts begins, for models that tell them apart.
    """

    slot: int
    params: SamplingParams
    stop_ids: tuple[int, ...]
    prompt: Array
    outputs: Array
    logprobs: LogprobOptions | None = None
    embeds: Array | None = None
    second_at: int | None = None


class StepPlan(msgspec.Struct, frozen=True):
    """Everything the runner needs for one step. All arrays int32; R rows, in attention order.

    Rows that decode (one device token) come first, `decode_rows` of them; chunks follow.
    `outputs[r]` is the number of output tokens the row's request has sampled before this step.
    `page_updates` has rows (slot, index, page): page table entry `index` of `slot` becomes `page`; they are applied,
    in order, before the rows run. `started` is applied before the page updates. Slots need no closing: a slot's next
    SlotInit overwrites it. `readings` by row, for the rows that are read out for more than their next token.
    """

    step: int
    decode_rows: int
    slots: Array
    starts: Array
    counts: Array
    flags: Array
    outputs: Array
    tokens: Array
    page_updates: Array
    started: list[SlotInit]
    readings: dict[int, Reading] = {}

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self, enc_hook=enc_hook)

    @staticmethod
    def decode(data: bytes) -> "StepPlan":
        return msgspec.msgpack.decode(data, type=StepPlan, ext_hook=ext_hook)


class StepResult(msgspec.Struct, frozen=True):
    """What a step produced: `tokens` int32 [R], the sampled id of each row with SAMPLE, -1 for the others.

    -2 marks a row whose logits were not finite. `error` is set when the step failed as a whole: its rows produced
    nothing and the KV they would have written must not be used. `extras` by row, for the rows that have any. `ends` by
    row, for those with MASKED whose constraint is over with this token: None, or why it cannot go on. `replayed`: the
    step was, from a captured graph.
    """

    step: int
    tokens: Array = msgspec.field(default_factory=empty_i32)
    error: str | None = None
    extras: dict[int, Extras] = {}
    ends: dict[int, str | None] = {}
    replayed: bool = False

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self, enc_hook=enc_hook)

    @staticmethod
    def decode(data: bytes) -> "StepResult":
        return msgspec.msgpack.decode(data, type=StepResult, ext_hook=ext_hook)


NOT_SAMPLED = -1
NOT_FINITE = -2
