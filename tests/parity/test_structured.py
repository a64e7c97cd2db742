"""The demo model under 200 JSON schemas and 20 patterns: what it finishes parses, validates and matches."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from jsonschema import Draft202012Validator

from radixlm.config.groups import Config
from radixlm.engine.grammars import grammar_room
from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.loader.tokenizer import Tokenizer, load_tokenizer
from radixlm.loader.weights import load_model
from radixlm.protocol.grammar import GrammarSpec, Kind
from radixlm.protocol.sampling import SamplingParams
from tests.helpers.engine import LocalEngine, Output
from tests.helpers.judges import NoJudge
from tests.helpers.schemas import generated, suite
from tests.unit.grammar.test_backends import PATTERNS

pytestmark = pytest.mark.slow
AT_ONCE = 32
FROM_SUITE, GENERATED = 230, 100
FAILED = "Failed to compile json_schema grammar: "
PROMPT = "Here is an example of the JSON:\n"


class Demo:
    """The demo model with its grammars, in this process."""

    def __init__(self) -> None:
        source = resolve("demo")
        card = load_card(source)
        self.tokenizer: Tokenizer = load_tokenizer(source)
        loaded = load_model(source, card, torch.float32, torch.device("cpu"), "auto", 0)
        flags = {"max_running_requests": AT_ONCE, "max_total_tokens": 8192, "skip_server_warmup": True}
        room = grammar_room(Config.from_flat({"model_path": "demo"}), card, self.tokenizer, NoJudge)
        self.engine = LocalEngine(loaded, card, 0, room, **flags)
        self._prompt = self.tokenizer.encode(PROMPT)
        closers = (b'"', b'"}', b'",', b"}", b"]", b'"]', b"]}")
        pieces = self.tokenizer.token_bytes()
        self._bias = {id_: 6.0 for id_, piece in enumerate(pieces) if piece in closers}
        self._bias |= dict.fromkeys(card.eos_token_ids, 30.0)

    def ask(self, kind: Kind, texts: list[str], max_new_tokens: int) -> list[Output]:
        """An answer to each, sampled; ends of strings and answers are made likelier, so that most come to an end."""
        keys = []
        for number, text in enumerate(texts):
            params = SamplingParams(max_new_tokens=max_new_tokens, seed=number, logit_bias=self._bias)
            keys.append(self.engine.submit(self._prompt, params, grammar=GrammarSpec(kind, text)))
        self.engine.finish()
        return [self.engine.outputs[key] for key in keys]

    def text(self, output: Output) -> str:
        return b"".join(self.tokenizer.piece(t) for t in output.tokens if not self.tokenizer.is_special(t)).decode()


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    running = Demo()
    yield running
    running.engine.grammars.close()


def random_schemas(count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    @hypothesis_seed(20)
    @settings(max_examples=count, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(generated())
    def draw(schema: dict[str, Any]) -> None:
        found.append(schema)

    draw()
    return found


def test_finished_answers_validate(demo: Demo) -> None:
    schemas = [*random_schemas(GENERATED), *random.Random(7).sample(suite(), FROM_SUITE)]
    kept = finished = 0
    for schema, output in zip(schemas, demo.ask("json_schema", [json.dumps(s) for s in schemas], 32), strict=True):
        assert output.finished is not None
        reason = output.finished.reason
        if reason.type == "abort":  # a keyword that nobody enforces, or another document
            assert reason.status_code == 400 and len(reason.message or "") > len(FAILED), (schema, reason)
            assert (reason.message or "").startswith(FAILED)
            continue
        kept += 1
        if reason.type == "stop":
            finished += 1
            value = json.loads(demo.text(output))
            assert Draft202012Validator(schema).is_valid(value), (schema, demo.text(output))
    assert kept >= 200 and finished >= 0.7 * kept, (kept, finished)


def test_twenty_patterns_match(demo: Demo) -> None:
    outputs = demo.ask("regex", PATTERNS, 24)
    endless = []
    for pattern, output in zip(PATTERNS, outputs, strict=True):
        assert output.finished is not None and output.finished.reason.type in ("stop", "length")
        if output.finished.reason.type == "stop":
            assert re.fullmatch(pattern, demo.text(output)), (pattern, demo.text(output))
        else:
            endless.append((pattern, demo.text(output)))
    assert len(endless) <= 2, endless
