"""Decoding of bodies: whatever comes in, the error is ours and names the field."""

import msgspec
import pytest

from radixlm.server.errors import MalformedError, SchemaError
from radixlm.server.exchange import decode, request_id
from radixlm.server.native import GenerateBody
from radixlm.server.openai.chat import ChatBody
from radixlm.server.openai.completions import CompletionBody

GENERATE, COMPLETION, CHAT = (msgspec.json.Decoder(kind) for kind in (GenerateBody, CompletionBody, ChatBody))


@pytest.mark.parametrize(
    ("decoder", "body", "field"),
    [
        (GENERATE, b'{"text": 5}', "text"),
        (GENERATE, b'{"input_ids": ["a"]}', "input_ids[0]"),
        (GENERATE, b'{"input_ids": [[1, "b"]]}', "input_ids[0][1]"),
        (GENERATE, b'{"stream": "yes"}', "stream"),
        (COMPLETION, b"{}", None),
        (COMPLETION, b'{"prompt": "x", "temperature": "0.5"}', "temperature"),
        (COMPLETION, b'{"prompt": "x", "temperature": 1e400}', "temperature"),
        (CHAT, b'{"messages": ["hi"]}', "messages[0]"),
        (CHAT, b'{"messages": [], "logit_bias": {"1": "x"}}', "logit_bias[...]"),
        (CHAT, b'{"messages": [], "stream_options": 5}', "stream_options"),
        (CHAT, b"[]", None),
    ],
)
def test_wrong_types_name_the_field(decoder, body, field):
    with pytest.raises(SchemaError) as error:
        decode(body, decoder)
    assert error.value.field == field
    assert error.value.status == 400
    assert field is None or error.value.message.startswith(field)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"hello",
        b'{"text": "x",}',
        b'{"sampling_params": {"temperature": NaN}}',
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b'{"sampling_params": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    ],
)
def test_what_is_no_json_is_refused(body):
    with pytest.raises(MalformedError) as error:
        decode(body, GENERATE)
    assert error.value.status == 400


def test_null_is_the_same_as_absent():
    nothing = {name: None for name in CompletionBody.__struct_fields__ if name != "prompt"}
    assert decode(msgspec.json.encode(nothing | {"prompt": "x"}), COMPLETION) == CompletionBody(prompt="x")


@pytest.mark.parametrize(
    ("given", "kept"), [(b"trace-1", True), (b"", False), (b"a" * 500, False), (b"a\x01b", False), (b"\xe9", False)]
)
def test_request_ids(given, kept):
    identity = request_id({"headers": [(b"x-request-id", given)]})
    assert (identity == given.decode("latin-1")) is kept
    assert identity.isascii() and identity.isprintable() and identity
