"""The detokenizer: batches of interleaved requests, its state's life, and the process over real sockets."""

import threading

import numpy as np

from radixlm.frontend.detokenizer import Detokenizer
from radixlm.frontend.detokenizer_process import run
from radixlm.protocol.messages import (
    BatchStrOutput,
    BatchTokenIDOutput,
    Finished,
    FinishReason,
    Message,
    SchedulerStats,
    ShutdownReq,
    Started,
    TextOptions,
)
from radixlm.protocol.wire import Addresses, Receiver, Sender
from tests.helpers.vocabularies import byte_level

TOKENIZER = byte_level()


def batch(
    new: dict[int, list[int]],
    started: dict[int, TextOptions] | None = None,
    ended: dict[int, FinishReason] | None = None,
) -> BatchTokenIDOutput:
    tokens = [token for group in new.values() for token in group]
    return BatchTokenIDOutput(
        np.asarray(list(new), np.int64),
        np.asarray([len(group) for group in new.values()], np.int32),
        np.asarray(tokens, np.int32),
        [Started(key, 1, 0, 0.0, text) for key, text in (started or {}).items()],
        [Finished(key, reason, 1, 1, 0, 0) for key, reason in (ended or {}).items()],
    )


def ids(text: str) -> list[int]:
    return [token for character in text for token in TOKENIZER.encode(character, add_special_tokens=False)]


def test_interleaved_requests_keep_their_own_text() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    first, second = ids("hello안END"), ids("wörld")
    half = first.index(ids("안")[0]) + 1
    plain, stops = TextOptions(), TextOptions(stop=("END",))
    one = detokenizer.process(batch({7: first[:half], 9: []}, {7: stops, 9: plain}))
    assert one.texts == ["hello", ""]
    two = detokenizer.process(batch({9: second, 7: first[half:]}, ended={7: FinishReason("stop", "END")}))
    assert two.texts == ["wörld", "안"]
    assert detokenizer.live == 1
    three = detokenizer.process(batch({9: []}, ended={9: FinishReason("abort")}))
    assert three.texts == [""] and detokenizer.live == 0
    assert three.finished == batch({9: []}, ended={9: FinishReason("abort")}).finished


def test_tokens_of_an_unknown_request_do_no_harm() -> None:
    assert Detokenizer(TOKENIZER).process(batch({1: ids("a")})).texts == [""]


def test_the_process_moves_everything_in_order() -> None:
    addresses = Addresses.create()
    receiver, sender = Receiver(addresses.tokenizer, bind=True), Sender(addresses.detokenizer)
    worker = threading.Thread(target=run, args=(addresses, TOKENIZER), daemon=True)
    worker.start()
    sender.send(SchedulerStats(time=1.0, step=1))
    sender.send(batch({3: ids("hi")}, {3: TextOptions()}, {3: FinishReason("length", length=2)}))
    sender.send(SchedulerStats(time=2.0, step=2))
    sender.send(ShutdownReq())
    worker.join(10)
    assert not worker.is_alive()
    messages: list[Message] = []
    while len(messages) < 3:
        messages += receiver.drain(5.0)
    before, text, after = messages
    assert isinstance(before, SchedulerStats) and isinstance(after, SchedulerStats) and after.step == 2
    assert isinstance(text, BatchStrOutput) and text.texts == ["hi"] and text.tokens.tolist() == ids("hi")
    receiver.close()
    sender.close()
    addresses.remove()
