"""The paced engine: every live request gets its tokens, streams one by one and the others at their end."""

import numpy as np

from radixlm.engine.paced import Pacer, spoken_ids
from radixlm.protocol.messages import AbortReq, TextOptions, TokenizedGenerateReqInput
from radixlm.protocol.sampling import SamplingParams


def request(key: int, tokens: int, stream: bool) -> TokenizedGenerateReqInput:
    sampling = SamplingParams(max_new_tokens=tokens)
    return TokenizedGenerateReqInput(key, np.arange(5, dtype=np.int32), sampling, TextOptions(), stream, 0.0)


def test_streams_and_others_get_what_they_asked_for() -> None:
    pacer = Pacer(np.array([7, 8], np.int32))
    for one in (request(1, 3, True), request(2, 2, False), request(3, 9, True)):
        pacer.take(one)
    said: dict[int, list[int]] = {1: [], 2: [], 3: []}
    ends = {}
    for step in range(4):
        if step == 2:
            pacer.take(AbortReq([3, 3, 99]))
        output = pacer.tick()
        assert (output is None) == (step == 3)
        if output is not None:
            assert [one.key for one in output.started] == ([1, 2, 3] if step == 0 else [])
            at = np.concatenate(([0], np.cumsum(output.counts)))
            for place, key in enumerate(output.keys.tolist()):
                said[key] += output.tokens[at[place] : at[place + 1]].tolist()
            ends |= {one.key: one for one in output.finished}
    assert {key: len(tokens) for key, tokens in said.items()} == {1: 3, 2: 2, 3: 2}
    assert {key: (one.reason.type, one.completion_tokens) for key, one in ends.items()} == {
        1: ("length", 3),
        2: ("length", 2),
        3: ("abort", 2),
    }
    assert pacer.live == 0 and {id_ for ids in said.values() for id_ in ids} <= {7, 8}


def test_a_request_aborted_before_it_began_still_ends() -> None:
    pacer = Pacer(np.array([7], np.int32))
    pacer.take(request(1, 3, True))
    pacer.take(AbortReq([1]))
    output = pacer.tick()
    assert output is not None and output.keys.tolist() == [1] and output.counts.tolist() == [0]
    assert [one.reason.type for one in output.finished] == ["abort"] and pacer.tick() is None


def test_spoken_ids_are_those_that_are_text_of_their_own() -> None:
    assert spoken_ids([b"a", b"\n", b"\xc3", b"", b" b"]).tolist() == [0, 4]
    assert spoken_ids([b"\xc3", b""]).tolist() == [0, 1]
