"""/tokenize and /detokenize."""

import pytest

from tests.wire.fake_manager import CONTEXT_LEN
from tests.wire.serving import live_server


@pytest.fixture(scope="module")
def live():
    with live_server() as server:
        yield server


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_texts_to_tokens_and_back(live, prefix):
    one = live.http.post(f"{prefix}/tokenize", json={"prompt": "ab"}).json()
    assert one == {"tokens": [1, 97, 98], "count": 3, "max_model_len": CONTEXT_LEN}
    many = live.http.post(f"{prefix}/tokenize", json={"prompt": ["a", ""], "add_special_tokens": False}).json()
    assert (many["tokens"], many["count"]) == ([[97], []], [1, 0])
    assert live.http.post(f"{prefix}/detokenize", json={"tokens": [104, 105, 2]}).json() == {"text": "hi"}
    kept = live.http.post(f"{prefix}/detokenize", json={"tokens": [[104, 2], []], "skip_special_tokens": False})
    assert kept.json() == {"text": ["h\x02", ""]}
    assert live.http.post(f"{prefix}/detokenize", json={"tokens": []}).json() == {"text": ""}


def test_a_conversation_is_tokenized_as_chat_would(live):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So"}]
    body = {"messages": messages, "continue_final_message": True, "chat_template_kwargs": {"k": 1}}
    tokens = live.http.post("/tokenize", json=body).json()["tokens"]
    live.http.post("/v1/chat/completions", json=body)
    assert "".join(map(chr, tokens)) == live.manager.requests[-1].text == "k=1;<user>hi<assistant>So"


def test_the_bos_is_never_doubled(live):
    assert live.http.post("/tokenize", json={"prompt": "\x01ab"}).json()["tokens"] == [1, 97, 98]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": ["a"] * 8193}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user"}], "tools": [{"type": "function"}]}, "tools[0].function"),
        (
            "/tokenize",
            {"messages": [{"role": "user"}], "chat_template_kwargs": {"chat_template": "x"}},
            "chat_template_kwargs",
        ),
        ("/detokenize", {"tokens": [70000]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1, [2]]}, "tokens"),
        ("/detokenize", {}, None),
    ],
)
def test_refusals_name_the_field(live, path, body, field):
    refused = live.http.post(path, json=body)
    assert refused.status_code == 400 and refused.json()["param"] == field
