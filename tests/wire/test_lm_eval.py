"""EleutherAI's lm-eval against a running server: the scores are those of its own Hugging Face backend, to one item."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radixlm.loader.demo import demo_path
from tests.wire.live import LiveServer, live_server

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TASKS = Path(__file__).parent / "data" / "lm_eval"
SAMPLES = {"radixlm_choice": 12, "radixlm_prose": 4, "radixlm_write": 8}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server("demo", "--dtype", "float32", "--mem-fraction-static", "0.2") as running:
        yield running


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The demo's weights in lm-eval's own backend, and a folder with its tokenizer for the clients."""
    import torch
    import transformers
    from lm_eval.models.huggingface import HFLM

    path, folder = demo_path(), tmp_path_factory.mktemp("tokenizer")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    tokenizer.save_pretrained(folder)
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8), folder


def scores(backend: Any, *tasks: str, chat: bool = False, limit: int = 12, **model_args: Any) -> dict[str, Any]:
    """Each task's metrics, over at most `limit` of its items."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # the tasks name their data from there
        results = lm_eval.simple_evaluate(
            model=backend,
            model_args=model_args or None,
            tasks=list(tasks),
            task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
            apply_chat_template=chat,
            bootstrap_iters=0,
            limit=limit,
        )
    assert results is not None
    for task in tasks:
        assert results["n-samples"][task]["effective"] == min(SAMPLES[task], limit)
    return {task: {key.split(",")[0]: value for key, value in results["results"][task].items()} for task in tasks}


def test_completions(server: LiveServer, hf: tuple[Any, Path]) -> None:
    reference, tokenizer = hf
    tasks = ("radixlm_choice", "radixlm_prose", "radixlm_write")
    want = scores(reference, *tasks)
    got = scores(
        "local-completions",
        *tasks,
        model="demo",
        base_url=f"{server.url}/v1/completions",
        tokenizer=str(tokenizer),
        tokenizer_backend="huggingface",
        num_concurrent=2,
        batch_size=2,
    )
    assert want["radixlm_choice"]["acc"] >= 0.5  # more than chance: there is something to get wrong
    assert abs(got["radixlm_choice"]["acc"] - want["radixlm_choice"]["acc"]) <= 1 / 12
    assert abs(got["radixlm_write"]["exact_match"] - want["radixlm_write"]["exact_match"]) <= 1 / 8
    assert math.isclose(got["radixlm_prose"]["bits_per_byte"], want["radixlm_prose"]["bits_per_byte"], rel_tol=1e-4)


def test_chat_completions(server: LiveServer, hf: tuple[Any, Path]) -> None:
    reference, _ = hf
    want = scores(reference, "radixlm_write", chat=True, limit=4)
    got = scores(
        "local-chat-completions",
        "radixlm_write",
        chat=True,
        limit=4,
        model="demo",
        base_url=f"{server.url}/v1/chat/completions",
        num_concurrent=2,
    )
    assert abs(got["radixlm_write"]["exact_match"] - want["radixlm_write"]["exact_match"]) <= 1 / 4
