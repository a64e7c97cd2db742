"""Log probabilities in OpenAI's shapes: which tokens have entries, when, and how their texts look."""

import numpy as np
import pytest

from radixlm.base.errors import RequestError
from radixlm.protocol.extras import Extras, TokenLogprobs
from radixlm.protocol.messages import FinishReason
from radixlm.server.openai.infill import infill
from radixlm.server.openai.logprobs import ChatLogprobs, CompletionLogprobs, TokenTexts

EURO = "€".encode()
PIECES = [b"Hello", b" wor", b"ld", EURO[:1], EURO[1:2], EURO[2:], b"\n\n", b"!\n", b"<eos>", b"Hello"]
EOS = 8


class Pieces:
    """A tokenizer of PIECES; EOS is special."""

    bos_token_id = None

    def piece(self, id_):
        return PIECES[id_]

    def is_special(self, id_):
        return id_ == EOS

    def encode(self, text, add_special_tokens=True):
        return [id_ for id_, piece in enumerate(PIECES) if piece == text.encode()] or [0, 1]

    def decode(self, ids, skip_special_tokens=True):
        return b"".join(PIECES[id_] for id_ in ids).decode()


def extras(*tokens, top=0):
    count = len(tokens)
    values = np.array([-float(token) for token in tokens], np.float32)
    ids = np.array([[token, *range(9, 9 - top + 1, -1)][:top] for token in tokens], np.int32).reshape(count, -1)
    alternatives = np.array([[-float(token)] * top for token in tokens], np.float32).reshape(count, -1)
    return [Extras(output=TokenLogprobs(np.array(tokens, np.int32), values, ids, alternatives, values[:0]))]


def chat(no_stop_trim=False):
    return ChatLogprobs(TokenTexts(Pieces(), skip_special_tokens=True), no_stop_trim)


def tokens(entries):
    return [entry.token for entry in entries]


def test_an_entry_comes_once_its_text_has_been_given_out():
    logprobs = chat()
    assert tokens(logprobs.take(extras(0, 1), "Hello", None)) == [0]
    assert tokens(logprobs.take(extras(2), " wo", None)) == []
    assert tokens(logprobs.take([], "rld", None)) == [1, 2]


def test_a_character_in_pieces_comes_when_it_is_whole():
    logprobs = chat()
    assert tokens(logprobs.take(extras(3), "", None)) == []
    assert tokens(logprobs.take(extras(4), "", None)) == []
    entries = logprobs.take(extras(5), "€", None)
    assert bytes(byte for entry in entries for byte in entry.json["bytes"]) == EURO
    assert [entry.json["token"] for entry in entries] == [piece.decode("latin-1") for piece in PIECES[3:6]]


@pytest.mark.parametrize(
    ("reason", "text", "kept"),
    [
        (FinishReason("stop", matched=EOS), "Hello", [0]),
        (FinishReason("length", length=2), "Hello", [0, EOS]),
        (FinishReason("abort"), "Hello", [0, EOS]),
    ],
)
def test_the_token_it_stops_at_has_no_entry(reason, text, kept):
    entries = chat().take(extras(0, EOS), text, reason)
    assert tokens(entries) == kept
    assert all(entry.json["bytes"] is None for entry in entries if entry.token == EOS)
    assert tokens(chat(no_stop_trim=True).take(extras(0, EOS), text, reason)) == [0, EOS]


def test_tokens_of_a_stop_string_have_no_entry_but_the_one_it_cuts():
    reason = FinishReason("stop", matched="\n\n")
    assert tokens(chat().take(extras(0, 6), "Hello", reason)) == [0]
    assert tokens(chat().take(extras(0, 7, 6), "Hello!", FinishReason("stop", matched="\n"))) == [0, 7]
    assert tokens(chat(no_stop_trim=True).take(extras(0, 6), "Hello\n\n", reason)) == [0, 6]


def test_of_alternatives_with_equal_texts_the_likeliest_counts():
    part = TokenLogprobs(*(np.array(x) for x in ([1], [-1.0], [[0, 9, 2]], [[-0.5, -1.5, -2.5]], [])))
    shown = CompletionLogprobs(TokenTexts(Pieces(), True), top=3).object([Extras(output=part)])
    assert shown["top_logprobs"] == [{"Hello": -0.5, "ld": -2.5}]


def test_offsets_count_characters_from_the_prompt_on():
    logprobs = CompletionLogprobs(TokenTexts(Pieces(), True), top=0)
    logprobs.begin(0)
    assert logprobs.object([])["text_offset"] == [0]
    assert logprobs.object(extras(3, 4, 5, 1, EOS))["text_offset"] == [5, 6, 6, 6, 10]


def test_infill_asks_in_the_models_own_way(monkeypatch):
    with pytest.raises(RequestError, match="fill-in-the-middle"):
        infill(Pieces(), "a{", "b}")
    with pytest.raises(RequestError, match="fill-in-the-middle"):
        infill(None, "a", "b")
    names = [b"<fim_prefix>", b"<fim_suffix>", b"<fim_middle>"]
    monkeypatch.setattr(f"{__name__}.PIECES", PIECES + names)
    assert infill(Pieces(), "a{", "b}") == "<fim_prefix>a{<fim_suffix>b}<fim_middle>"
