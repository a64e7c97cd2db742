"""The closed unions of messages between tokenizer manager, scheduler and detokenizer. msgspec structs; never pickle.

Requests are known between processes by an integer key that the tokenizer manager hands out; a client's own request id
is a label and stays in the tokenizer manager.
"""

from typing import Literal

import msgspec

from radixlm.protocol.arrays import Array, enc_hook, ext_hook
from radixlm.protocol.extras import Extras, LogprobOptions
from radixlm.protocol.grammar import GrammarSpec
from radixlm.protocol.sampling import SamplingParams


class CacheNamespace(msgspec.Struct, frozen=True, array_like=True):
    """Requests share cached prefixes only inside one namespace. Values of different kinds never alias."""

    lora: str = ""
    cache_salt: str = ""
    extra_key: str = ""


class TextOptions(msgspec.Struct, frozen=True):
    """What the detokenizer needs to know of a request: how its tokens become text."""

    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False


class FinishReason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request ended. `matched` is a token id, or the stop string or pattern; `length` the token limit hit;
    `field` the request's field to blame for an abort."""

    type: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None
    status_code: int | None = None
    err_type: str | None = None
    field: str | None = None


# ---- to the scheduler -------------------------------------------------------------------------------------------


class TokenizedGenerateReqInput(msgspec.Struct, frozen=True, tag=True):
    """One choice of one request. `input_ids` int32 [n], n >= 1. `arrival_time` in Unix seconds.

    With `stream` tokens are sent as they come, otherwise once at the end. Hidden vectors of the positions from
    `hidden_start` on are wanted; None: of none. `embeds` (float32 [n, hidden_size]) replace the prompt's embeddings;
    `input_ids` are then placeholders. `second_at`: where the second of two texts begins, for models that tell them
    apart. With `grammar` the request is held until a ReleaseReq.
    """

    key: int
    input_ids: Array
    sampling: SamplingParams
    text: TextOptions
    stream: bool
    arrival_time: float
    namespace: CacheNamespace = CacheNamespace()
    priority: int | None = None
    logprobs: LogprobOptions | None = None
    routing_key: str = ""
    hidden_start: int | None = None
    embeds: Array | None = None
    second_at: int | None = None
    grammar: GrammarSpec | None = None


class ReleaseReq(msgspec.Struct, frozen=True, tag=True):
    """A request that waits for its grammar may run, or never will: `problem` says why, `field` what is to blame. The
    loop tells the scheduler."""

    key: int
    problem: str | None = None
    field: str | None = None


class AbortReq(msgspec.Struct, frozen=True, tag=True):
    """Stop these requests. Idempotent and legal in every state; each one known still ends with a Finished."""

    keys: list[int]
    message: str = "Aborted"


class ControlReq(msgspec.Struct, frozen=True, tag=True):
    """A control verb's call; `body` is the msgpack of the verb's request struct (see protocol/control.py)."""

    call: int
    verb: str
    body: bytes = b""


class ShutdownReq(msgspec.Struct, frozen=True, tag=True):
    """Leave the loop and exit 0; what still runs is dropped (the tokenizer manager has drained before)."""


ToScheduler = TokenizedGenerateReqInput | ReleaseReq | AbortReq | ControlReq | ShutdownReq

# ---- from the scheduler -----------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True, array_like=True):
    """Sent with a request's first tokens, or with its end if it had none. Times in seconds."""

    key: int
    prompt_tokens: int
    cached_tokens: int
    queue_time: float
    text: TextOptions


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """Sent once per request, with its last tokens. Counts come from the request record and are final."""

    key: int
    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    retractions: int


class BatchTokenIDOutput(msgspec.Struct, frozen=True, tag=True):
    """New tokens of several requests, columnar: request `keys[i]` (int64) got `counts[i]` (int32) of `tokens` (int32).

    A request that is in `started` or `finished` is also in `keys`, perhaps with count 0. `extras` by key, for those
    in `keys` that have any.
    """

    keys: Array
    counts: Array
    tokens: Array
    started: list[Started]
    finished: list[Finished]
    extras: dict[int, Extras] = {}


class BatchStrOutput(msgspec.Struct, frozen=True, tag=True):
    """A BatchTokenIDOutput with the text each request's tokens added; `texts[i]` belongs to `keys[i]`."""

    keys: Array
    counts: Array
    tokens: Array
    texts: list[str]
    started: list[Started]
    finished: list[Finished]
    extras: dict[int, Extras] = {}


class ControlReply(msgspec.Struct, frozen=True, tag=True):
    """The answer to `ControlReq.call`: msgpack of the verb's reply struct, or an error that names the reason."""

    call: int
    body: bytes = b""
    error: str | None = None
    status: int = 200


class SchedulerReady(msgspec.Struct, frozen=True, tag=True):
    """The scheduler can serve. `capacity_tokens` is the one number every limit and report derives from: the longest
    prompt + output that one request can hold. `report` are the start-up lines, `facts` go into /server_info."""

    capacity_tokens: int
    max_total_num_tokens: int
    max_running_requests: int
    page_size: int
    report: list[str]
    facts: dict[str, str | int | float | bool | None]


class SchedulerStats(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The scheduler's pulse, at least once a second, also when idle; counters are totals since start.

    `kv_*_tokens` partition the pool: free, evictable (cached, unlocked), used. `effective_input_tokens_total` counts
    the prompts of requests that started, once each. `stage_s_total` by "stage|overlap" and `passes_total` by mode are
    those of engine/stages.py.
    """

    time: float
    step: int
    num_running_reqs: int = 0
    num_queue_reqs: int = 0
    num_grammar_queue_reqs: int = 0
    num_retracted_requests_total: int = 0
    kv_available_tokens: int = 0
    kv_evictable_tokens: int = 0
    kv_used_tokens: int = 0
    max_total_num_tokens: int = 0
    gen_throughput: float = 0.0
    cache_hit_rate: float = 0.0
    new_token_ratio: float = 0.0
    prefill_compute_tokens_total: int = 0
    prefill_cache_tokens_total: int = 0
    decode_tokens_total: int = 0
    evicted_tokens_total: int = 0
    conservation_errors_total: int = 0
    decode_sum_seq_lens: int = 0
    num_unique_running_routing_keys: int = 0
    retracted_input_tokens_total: int = 0
    retracted_output_tokens_total: int = 0
    effective_input_tokens_total: int = 0
    process_cpu_s_total: float = 0.0
    stage_s_total: dict[str, float] = {}
    passes_total: dict[str, int] = {}


class FatalError(msgspec.Struct, frozen=True, tag=True):
    """The sending process cannot go on; `message` is the cause in one line."""

    message: str


FromScheduler = BatchTokenIDOutput | BatchStrOutput | ControlReply | SchedulerReady | SchedulerStats | FatalError

# ---- to and from the tokenizer workers --------------------------------------------------------------------------


class TokenizeReq(msgspec.Struct, frozen=True, tag=True):
    """Texts to tokenize; `special[i]`: add to text i what the tokenizer adds to a prompt."""

    call: int
    texts: list[str]
    special: list[bool]


class TokenizeReply(msgspec.Struct, frozen=True, tag=True):
    """The answer to `TokenizeReq.call`: `tokens` (int32) of all texts, `counts[i]` (int32) of them belong to text i."""

    call: int
    counts: Array
    tokens: Array
    error: str | None = None


Message = ToScheduler | FromScheduler | TokenizeReq | TokenizeReply

_encoder = msgspec.msgpack.Encoder(enc_hook=enc_hook)
_decoder = msgspec.msgpack.Decoder(Message, ext_hook=ext_hook)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """The message in `data`; msgspec.ValidationError when it is not one."""
    return _decoder.decode(data)
