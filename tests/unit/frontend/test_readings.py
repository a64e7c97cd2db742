"""What a request may ask for beside its tokens."""

import numpy as np
import pytest

from radixlm.base.errors import RequestError
from radixlm.frontend import readings
from radixlm.frontend.choice import ChoiceRequest
from radixlm.protocol.extras import OUTPUTS_ONLY, LogprobOptions
from tests.helpers.tiny import CARD


def asking(**fields):
    return ChoiceRequest(text="hi", **fields)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"hidden_states": "full"}, "return_hidden_states"),
        ({"logprobs": LogprobOptions(0, 0, (24,))}, "token_ids_logprob"),
        ({"logprobs": LogprobOptions(0, 0, (-1,))}, "token_ids_logprob"),
        ({"logprobs": LogprobOptions(0, 25)}, "top_logprobs_num"),
        ({"input_embeds": np.zeros((2, 15), np.float32)}, "input_embeds"),
    ],
)
def test_what_the_model_or_the_server_cannot_give(fields, field):
    with pytest.raises(RequestError) as error:
        readings.check(asking(**fields), CARD, hidden_states=False)
    assert error.value.field == field


def test_what_it_can_give():
    embeds = np.zeros((2, 16), np.float32)
    asked = asking(hidden_states="last", logprobs=LogprobOptions(0, 24, (0, 23)), input_embeds=embeds)
    readings.check(asked, CARD, hidden_states=True)


@pytest.mark.parametrize(("start", "resolved"), [(0, 0), (4, 4), (5, 5), (OUTPUTS_ONLY, 5)])
def test_a_start_inside_the_prompt_or_behind_it(start, resolved):
    found = readings.logprobs_of(asking(logprobs=LogprobOptions(start, 2)), 5)
    assert found == LogprobOptions(resolved, 2)


def test_a_start_behind_the_prompt_or_too_much_of_it():
    with pytest.raises(RequestError, match="higher than the number of input tokens") as error:
        readings.logprobs_of(asking(logprobs=LogprobOptions(6)), 5)
    assert error.value.field == "logprob_start_len"
    with pytest.raises(RequestError, match=str(readings.MAX_PROMPT_LOGPROBS)) as error:
        readings.logprobs_of(asking(logprobs=LogprobOptions(0, 128)), 40_000)
    assert error.value.field == "top_logprobs_num"
    assert readings.logprobs_of(asking(logprobs=LogprobOptions(39_000, 128)), 40_000) is not None


def test_where_hidden_states_begin():
    assert readings.hidden_start_of(asking(), 5) is None
    assert readings.hidden_start_of(asking(hidden_states="full"), 5) == 0
    assert readings.hidden_start_of(asking(hidden_states="last"), 5) == 4


@pytest.mark.parametrize(
    "values", [[], [[]], [1.0], [[1.0], [1.0, 2.0]], [["x"]], [[None]], [["1"]], [[True]], [[float("nan")]], [[1e39]]]
)
def test_embeddings_that_are_no_finite_matrix(values):
    with pytest.raises(RequestError) as error:
        readings.embeds_of(values, "input_embeds")
    assert error.value.field == "input_embeds"


def test_embeddings_become_float32():
    matrix = readings.embeds_of([[1, 2.5], [3, 4]], "input_embeds")
    assert matrix.dtype == np.float32 and matrix.tolist() == [[1.0, 2.5], [3.0, 4.0]]
