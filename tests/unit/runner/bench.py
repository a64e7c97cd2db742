"""A runner around the tiny model, driven row by row, and an oracle that samples one request alone in plain Python."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from radixlm.attention.torch_native import TorchNative
from radixlm.cache.pools.mha import MHAPool
from radixlm.kernels.sampling import exponential_noise
from radixlm.loader.dummy import fill_dummy
from radixlm.models.decoder import Decoder
from radixlm.protocol.arrays import empty_i32
from radixlm.protocol.plan import HOST, NOT_SAMPLED, SAMPLE, SlotInit, StepPlan, StepResult
from radixlm.protocol.sampling import SamplingParams
from radixlm.runner.capture import CaptureReport
from radixlm.runner.rows import Rows
from radixlm.runner.runner import Runner
from radixlm.runner.staging import Staging
from tests.helpers.forward import Harness, attention_facts
from tests.helpers.tiny import CARD, CPU, build

PAGE = 4
PAGES_PER_SLOT = CARD.context_len // PAGE + 1
GREEDY = SamplingParams(temperature=0.0)


def tiny_model() -> Decoder:
    """Random weights, scaled up so that its logits are far apart."""
    model = build(CARD)
    fill_dummy(model.parameters(), seed=5)
    for parameter in model.parameters():
        parameter.data.mul_(12.0 if parameter.data.dim() > 1 else 1.0)
    return model


class NoPool:
    """Captures nothing."""

    def capture_all(self, sizes: tuple[int, ...], capture: Any) -> CaptureReport:
        return CaptureReport(sizes, 0.0, 0)


class Bench:
    """Each slot owns its pages from the start; `step` runs rows and returns one token per row."""

    def __init__(self, model: Decoder, slots: int = 4) -> None:
        self.rows = Rows(slots, PAGES_PER_SLOT, CARD.vocab_size, Staging(CPU))
        pool = MHAPool(
            slots * PAGES_PER_SLOT, PAGE, CARD.num_layers, CARD.num_kv_heads, CARD.head_dim, torch.float32, CPU
        )
        for tensor in (*pool.keys, *pool.values):
            tensor.fill_(torch.nan)
        self.runner = Runner(model, TorchNative(attention_facts(CARD, torch.float32, PAGE), pool), self.rows)
        self.lengths = [0] * slots
        self.produced = [0] * slots
        self._steps = 0
        self._inits: list[SlotInit] = []
        self._pages = [(s, i, 1 + s + i * slots) for s in range(slots) for i in range(PAGES_PER_SLOT)]

    def start(
        self,
        slot: int,
        params: SamplingParams,
        prompt: Sequence[int] = (),
        outputs: Sequence[int] = (),
        stop_ids: tuple[int, ...] = (),
    ) -> None:
        """A request takes the slot with the next step."""
        history = np.array(prompt, np.int32) if params.penalized else empty_i32()
        self._inits.append(SlotInit(slot, params, stop_ids, history, np.array(outputs, np.int32)))
        self.lengths[slot], self.produced[slot] = 0, len(outputs)

    def plan(self, rows: Sequence[tuple[int, Sequence[int] | None]], sample: bool = True) -> StepPlan:
        """Rows (slot, tokens to compute), None for one token that the device has; decodes first."""
        rows = sorted(rows, key=lambda row: row[1] is not None)
        slots = [slot for slot, _ in rows]
        counts = [1 if tokens is None else len(tokens) for _, tokens in rows]
        flags = [(SAMPLE if sample or tokens is None else 0) | (0 if tokens is None else HOST) for _, tokens in rows]
        self._steps += 1
        plan = StepPlan(
            step=self._steps,
            decode_rows=sum(tokens is None for _, tokens in rows),
            slots=np.array(slots, np.int32),
            starts=np.array([self.lengths[slot] for slot in slots], np.int32),
            counts=np.array(counts, np.int32),
            flags=np.array(flags, np.int32),
            outputs=np.array([self.produced[slot] for slot in slots], np.int32),
            tokens=np.array([token for _, tokens in rows for token in tokens or ()], np.int32),
            page_updates=np.array(self._pages, np.int32).reshape(-1, 3),
            started=self._inits,
        )
        self._pages, self._inits = [], []
        for slot, count, flag in zip(slots, counts, flags, strict=True):
            self.lengths[slot] += count
            self.produced[slot] += bool(flag & SAMPLE)
        return plan

    def step(self, rows: Sequence[tuple[int, Sequence[int] | None]], sample: bool = True) -> dict[int, int]:
        """The sampled tokens by slot."""
        plan = self.plan(rows, sample)
        return by_slot(plan, self.runner.retire(self.runner.launch(plan)))


def by_slot(plan: StepPlan, result: StepResult) -> dict[int, int]:
    assert result.error is None, result.error
    found = zip(plan.slots.tolist(), result.tokens.tolist(), strict=True)
    return {slot: token for slot, token in found if token != NOT_SAMPLED}


def alone(
    model: Decoder,
    prompt: Sequence[int],
    params: SamplingParams,
    count: int,
    outputs: Sequence[int] = (),
    stop_ids: tuple[int, ...] = (),
) -> list[int]:
    """The next `count` tokens after `prompt` and `outputs`, one request by itself, by the definitions."""
    harness = Harness(model, page_size=PAGE, slots=1)
    produced = list(outputs)
    logits = harness.prefill(0, [*prompt, *outputs])[-1]
    for _ in range(count):
        token = _choose(_adjusted(logits.clone(), prompt, produced, params, stop_ids), params, len(produced))
        produced.append(token)
        logits = harness.prefill(0, [token])[-1]
    return produced[len(outputs) :]


def _adjusted(
    logits: torch.Tensor,
    prompt: Sequence[int],
    produced: Sequence[int],
    params: SamplingParams,
    stop_ids: tuple[int, ...],
) -> torch.Tensor:
    for token in {*prompt, *produced}:
        factor = params.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token in set(produced):
        logits[token] -= params.frequency_penalty * produced.count(token) + params.presence_penalty
    for token, value in params.logit_bias.items():
        logits[token] += value
    if len(produced) < params.min_new_tokens:
        logits[list(stop_ids)] = -torch.inf
    return logits


def _choose(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    if params.greedy:
        return int(logits.argmax())
    probs = torch.softmax(logits / params.temperature, 0)
    order = probs.argsort(descending=True).tolist()
    before = 0.0
    kept = []
    for rank, token in enumerate(order):
        p = float(probs[token])
        if before <= params.top_p and p >= params.min_p * float(probs[order[0]]) and rank < (params.top_k % 10**9):
            kept.append(token)
        before += p
    noise = exponential_noise(torch.tensor([params.seed]), torch.tensor([position]), torch.arange(len(logits)))[0]
    return max(kept, key=lambda token: float(probs[token] / noise[token]))
