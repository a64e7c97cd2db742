"""The routes of embeddings, classes and scores: formats, both forms of prompts, limits, and what is refused where."""

import asyncio
import base64
import math

import numpy as np
import openai
import pytest

from radixlm.config.card import PoolingCard
from tests.wire.fake_extras import logprob
from tests.wire.fake_manager import FakeManager, FakeTemplate, FakeTokenizer
from tests.wire.fake_pooler import FakePooler, vector
from tests.wire.serving import live_server

EMBEDS = PoolingCard(modes=("lasttoken",), normalize=True, matryoshka=True, dimensions=(2, 3))
SCORES = PoolingCard(modes=("cls",), labels=("one",))
CLASSES = PoolingCard(modes=("cls",), labels=("good", "bad", "ugly"))


@pytest.fixture(scope="module")
def embedder():
    with live_server(FakePooler(EMBEDS)) as server:
        yield server


@pytest.fixture(scope="module")
def ranker():
    with live_server(FakePooler(SCORES, encoder=True)) as server:
        yield server


@pytest.fixture(scope="module")
def classifier():
    with live_server(FakePooler(CLASSES)) as server:
        yield server


class YesNoTokenizer(FakeTokenizer):
    def encode(self, text, add_special_tokens=True):
        return {"yes": [8], "no": [16]}.get(text) or super().encode(text, add_special_tokens)


class YesNoTemplate(FakeTemplate):
    source = 'Note that the answer can only be "yes" or "no".'


@pytest.fixture(scope="module")
def generator():
    manager = FakeManager()
    manager.tokenizer = YesNoTokenizer()
    with live_server(manager, template=YesNoTemplate()) as server:
        yield server


def ids(text):
    return [ord(c) for c in text]


def close(got, want):
    return np.allclose(np.array(got, np.float32), np.array(want, np.float32), atol=1e-6)


# ---- /v1/embeddings


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("hi", [ids("hi")]),
        (["hi", "you"], [ids("hi"), ids("you")]),
        ([5, 6], [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
def test_embeddings(embedder, given, prompts):
    answer = embedder.http.post("/v1/embeddings", json={"model": "any", "input": given}).json()
    assert answer["object"] == "list" and answer["model"] == "/models/fake"
    assert [one["index"] for one in answer["data"]] == list(range(len(prompts)))
    assert all(one["object"] == "embedding" for one in answer["data"])
    assert close([one["embedding"] for one in answer["data"]], [vector(prompt) for prompt in prompts])
    total = sum(map(len, prompts))
    assert answer["usage"] == {
        "prompt_tokens": total,
        "total_tokens": total,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def test_base64_and_dimensions(embedder):
    body = {"input": "hello", "encoding_format": "base64", "dimensions": 2}
    data = embedder.http.post("/v1/embeddings", json=body).json()["data"]
    short = vector(ids("hello"))[:2]
    assert close(np.frombuffer(base64.b64decode(data[0]["embedding"]), "<f4"), short / np.linalg.norm(short))


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"input": ""}, "input", "input is empty"),
        ({"input": ["a", " "]}, "input", "input[1] is empty"),
        ({"input": []}, "input", "cannot be empty"),
        ({"input": ["a", 5]}, "input", "mixes"),
        ({"input": [[1], []]}, "input", "[1] cannot be empty"),
        ({"input": [{"text": "a"}]}, "input", "media"),
        ({"input": ["a"] * 8193}, "input", "at most 8192"),
        ({"input": "a", "dimensions": 4}, "dimensions", "one of 2, 3"),
        ({"input": "a", "dimensions": 0}, "dimensions", "at least 1 and at most 4"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", ""),
        ({"input": "a", "lora_path": "x"}, "lora_path", "not supported"),
        ({"input": "a" * 2000}, "input", "longer"),
    ],
)
def test_bad_embedding_requests(embedder, body, field, message):
    answer = embedder.http.post("/v1/embeddings", json=body)
    assert answer.status_code == 400
    assert answer.json()["param"] == field and message in answer.json()["message"]


def test_the_openai_client_as_it_is(embedder):
    with openai.OpenAI(base_url=f"{embedder.base}/v1", api_key="x", max_retries=0) as client:
        answer = client.embeddings.create(model="m", input=["hi", "hello"])
        assert close([one.embedding for one in answer.data], [vector(ids("hi")), vector(ids("hello"))])
        assert len(client.embeddings.create(model="m", input="hi", dimensions=3).data[0].embedding) == 3

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{embedder.base}/v1", api_key="x", max_retries=0) as client:
            return await client.embeddings.create(model="m", input=[104, 105], encoding_format="float")

    assert close(asyncio.run(ask()).data[0].embedding, vector(ids("hi")))


# ---- /encode and /classify


@pytest.mark.parametrize("path", ["/encode", "/classify"])
def test_encode(embedder, path):
    one = embedder.http.post(path, json={"text": "hi", "rid": "mine", "dimensions": 3}).json()
    short = vector(ids("hi"))[:3]
    assert close(one["embedding"], short / np.linalg.norm(short))
    assert one["meta_info"]["id"] == "mine" and one["meta_info"]["prompt_tokens"] == 2
    assert one["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    many = embedder.http.post(path, json={"input_ids": [[5], [6, 7]], "return_prompt_token_ids": True}).json()
    assert [answer["prompt_token_ids"] for answer in many] == [[5], [6, 7]]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": []}, "text"),
        ({"text": "a", "is_cross_encoder_request": True}, "text"),
        ({"text": [["a", "b"], ["c"]]}, "text"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid"),
        ({"text": "a", "return_pooled_hidden_states": True}, "return_pooled_hidden_states"),
    ],
)
def test_bad_encode_requests(embedder, body, field):
    answer = embedder.http.post("/encode", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field


def test_pairs_for_a_cross_encoder(ranker):
    answers = ranker.http.post("/encode", json={"text": [["q", "doc"], ["q", "d"]], "is_cross_encoder_request": True})
    assert close(
        [one["embedding"] for one in answers.json()], [vector([1, *ids("qdoc")])[:1], vector([1, *ids("qd")])[:1]]
    )
    assert ranker.manager.requests[-1].second_at == 2


# ---- /v1/classify, /v1/rerank, /v1/score


def test_classes(classifier):
    answer = classifier.http.post("/v1/classify", json={"input": ["hi", "you"]}).json()
    assert answer["id"].startswith("classify-") and answer["object"] == "list"
    for place, text in enumerate(("hi", "you")):
        shares = np.exp(vector(ids(text))[:3])
        one = answer["data"][place]
        assert close(one["probs"], shares / shares.sum()) and one["num_classes"] == 3
        assert one["label"] == CLASSES.labels[int(shares.argmax())] and one["index"] == place


def test_documents_are_sorted(ranker):
    body = {"query": "q", "documents": ["aa", "aaaa", [{"type": "text", "text": "aaa"}]], "top_n": 2}
    answer = ranker.http.post("/v1/rerank", json=body).json()
    assert [one["index"] for one in answer] == [1, 2]
    assert answer[0]["document"] == "aaaa" and answer[0]["meta_info"]["prompt_tokens"] == 6
    assert close(answer[0]["score"], vector([1, *ids("qaaaa")])[0])
    assert "document" not in ranker.http.post("/v1/rerank", json=body | {"return_documents": False}).json()[0]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"query": "q", "documents": []}, "documents"),
        ({"query": " ", "documents": ["a"]}, "query"),
        ({"query": "q", "documents": ["a", ""]}, "documents[1]"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "q", "documents": ["a"], "instruct": "do"}, "instruct"),
        ({"query": "q", "documents": [[{"type": "image_url"}]]}, "documents[0]"),
    ],
)
def test_bad_rerank_requests(ranker, body, field):
    answer = ranker.http.post("/v1/rerank", json=body)
    assert answer.status_code == 400 and answer.json()["param"] == field


def test_a_yes_or_no_reranker(generator):
    body = {"query": "q", "documents": ["d", "e"], "instruct": "judge"}
    answer = generator.http.post("/v1/rerank", json=body).json()
    yes, no = math.exp(logprob(8)), math.exp(logprob(16))
    assert [one["index"] for one in answer] == [0, 1]
    assert close([one["score"] for one in answer], [yes / (yes + no)] * 2)
    assert generator.manager.requests[-1].text == "instruct=judge;<user>q<user>e<assistant>"


@pytest.mark.parametrize(
    ("body", "prompts"),
    [
        ({"query": "q: ", "items": ["a", "b"]}, ["q: a", "q: b"]),
        ({"query": "q", "items": "a", "item_first": True}, ["aq"]),
        ({"query": [1, 2], "items": [[3], [4, 5]]}, [[1, 2, 3], [1, 2, 4, 5]]),
        ({"items": ["a"]}, ["a"]),
    ],
)
def test_scores_of_labels(generator, body, prompts):
    asked = body | {"label_token_ids": [8, 16]}
    answer = generator.http.post("/v1/score", json=asked).json()
    likely = [math.exp(logprob(8)), math.exp(logprob(16))]
    assert answer["object"] == "scoring" and close(answer["scores"], [likely] * len(prompts))
    assert [request.text or request.input_ids for request in generator.manager.requests[-len(prompts) :]] == prompts
    shares = generator.http.post("/v1/score", json=asked | {"apply_softmax": True, "temperature": 2.0}).json()["scores"]
    powers = np.exp(np.array([logprob(8), logprob(16)]) / 2)
    assert close(shares[0], powers / powers.sum())
    assert answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"query": "q", "items": ["a"]}, "label_token_ids"),
        ({"query": "q", "items": ["a"], "label_token_ids": [70000]}, "label_token_ids"),
        ({"query": "q", "items": ["a"], "label_token_ids": [1] * 1025}, "label_token_ids"),
        ({"query": "q", "items": ["a"], "label_token_ids": [[1], [2]]}, "label_token_ids"),
        ({"query": "q", "items": [[1]], "label_token_ids": [1]}, "items"),
        ({"query": "q", "items": [], "label_token_ids": [1]}, "items"),
        ({"query": "q", "items": ["a"], "label_token_ids": [1], "temperature": 2.0}, "temperature"),
        (
            {"query": "q", "items": ["a"], "label_token_ids": [1], "temperature": 1e-9, "apply_softmax": True},
            "temperature",
        ),
        ({"query": "q", "items": ["a"], "label_token_ids": [1], "score_extraction_token": 4}, "score_extraction_token"),
    ],
)
def test_bad_score_requests(generator, body, field):
    answer = generator.http.post("/v1/score", json=body)
    assert answer.status_code == 400 and answer.json()["param"] == field


def test_scores_of_a_classifier(classifier, ranker):
    answer = classifier.http.post("/v1/score", json={"query": "q", "items": ["a"], "apply_softmax": True}).json()
    powers = np.exp(vector(ids("qa"))[:3])
    assert close(answer["scores"], [powers / powers.sum()])
    assert close(ranker.http.post("/v1/score", json={"query": "q", "items": "a"}).json()["scores"], [[1.0]])
    assert ranker.manager.requests[-1].second_at == 2


# ---- what does not fit the model


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "a"}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/api/chat", {"model": "m", "messages": [{"role": "user", "content": "a"}]}),
        ("/v1/classify", {"input": "a"}),
        ("/v1/rerank", {"query": "q", "documents": ["a"]}),
        ("/v1/score", {"query": "q", "items": ["a"]}),
    ],
)
def test_an_embedding_server_does_nothing_else(embedder, path, body):
    answer = embedder.http.post(path, json=body)
    assert answer.status_code == 400 and "embeddings" in answer.text


@pytest.mark.parametrize("path", ["/encode", "/classify", "/v1/embeddings", "/v1/classify"])
def test_a_generating_server_makes_no_embeddings(generator, path):
    answer = generator.http.post(path, json={"input": "a", "text": "a"})
    assert answer.status_code == 400 and "--is-embedding" in answer.text


def test_what_a_server_says_of_itself(embedder, generator):
    assert embedder.http.get("/model_info").json()["is_generation"] is False
    assert generator.http.get("/model_info").json()["is_generation"] is True
    assert embedder.http.get("/health_generate").status_code == 200
