"""How a /generate body becomes requests."""

import pytest

from radixlm.base.errors import RequestError
from radixlm.server.limits import MAX_RID_CHARS
from radixlm.server.native import GenerateBody, expand


def expanded(**fields):
    return expand(GenerateBody(**fields))


def test_a_single_prompt_is_one_request_and_one_object():
    [request], array = expanded(
        text="hi", rid="r", sampling_params={"max_new_tokens": 3}, cache_salt="s", extra_key="k"
    )
    assert not array
    assert (request.text, request.input_ids, request.rid) == ("hi", None, "r")
    assert request.sampling_params == {"max_new_tokens": 3}
    assert (request.namespace.cache_salt, request.namespace.extra_key) == ("s", "k")
    assert request.add_special_tokens and not request.apply_generation_defaults


def test_a_list_of_one_is_a_batch():
    assert expanded(text=["hi"])[1]
    assert expanded(input_ids=[[1, 2]])[1]
    assert not expanded(input_ids=[1, 2])[1]


def test_batches_times_n_are_prompt_major_with_own_ids_and_seeds():
    requests, array = expanded(text=["a", "b"], sampling_params={"n": 2, "sampling_seed": 5}, rid="r")
    assert array
    assert [request.text for request in requests] == ["a", "a", "b", "b"]
    assert [request.rid for request in requests] == [None] * 4
    seeds = [request.sampling_params["sampling_seed"] for request in requests]
    assert seeds[0] == seeds[2] == 5 and seeds[1] == seeds[3] != 5
    assert all("n" not in request.sampling_params for request in requests)


def test_per_prompt_lists_and_broadcasts():
    requests, _ = expanded(
        input_ids=[[1], [2]],
        rid="job",
        sampling_params=[{"temperature": 0}, {"temperature": 1}],
        extra_key=["x", None],
        cache_salt="s",
    )
    assert [request.rid for request in requests] == ["job_0", "job_1"]
    assert [request.sampling_params["temperature"] for request in requests] == [0, 1]
    assert [request.namespace.extra_key for request in requests] == ["x", ""]
    assert [request.namespace.cache_salt for request in requests] == ["s", "s"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "input_ids"),
        ({"text": []}, "text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[1], []]}, "input_ids"),
        ({"input_ids": [1, [2]]}, "input_ids"),
        ({"text": "a", "rid": ["x"]}, "rid"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
        ({"text": "a", "rid": "x" * (MAX_RID_CHARS + 1)}, "rid"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
        ({"text": "a", "sampling_params": [{}]}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 2}, {}]}, "n"),
        ({"text": "a", "sampling_params": {"n": 0}}, "n"),
        ({"text": ["a", "b"], "cache_salt": ["s"]}, "cache_salt"),
    ],
)
def test_refusals_name_the_field(fields, field):
    with pytest.raises(RequestError) as error:
        expanded(**fields)
    assert error.value.field == field and error.value.status == 400


def test_null_n_is_one():
    assert len(expanded(text="a", sampling_params={"n": None})[0]) == 1
