"""Fields that do not work yet: what passes and what is refused."""

import msgspec
import pytest

from radixlm.base.errors import RequestError
from radixlm.server import native
from radixlm.server.openai import chat, completions


@pytest.mark.parametrize("refusals", [native.REFUSED, completions.REFUSED, chat.REFUSED])
def test_every_refused_field_is_named_and_its_empty_values_pass(refusals):
    for row in refusals.rows:
        for nothing in (None, False, "", [], {}, [False, None], *row.harmless):
            refusals.check(msgspec.json.encode({row.name: nothing}))
        for something in (True, "x", [1], {"a": 1}, 7):
            with pytest.raises(RequestError, match=rf"^{row.name} is not supported yet") as error:
                refusals.check(msgspec.json.encode({row.name: something}))
            assert error.value.field == row.name


def test_no_field_is_both_served_and_refused():
    served = {
        native.REFUSED: native.GenerateBody,
        completions.REFUSED: completions.CompletionBody,
        chat.REFUSED: chat.ChatBody,
    }
    for refusals, body in served.items():
        assert not {row.name for row in refusals.rows} & set(body.__struct_fields__)
