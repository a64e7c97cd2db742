"""A stand-in for model and runner that computes through the page table, so that every wrong page shows in the tokens.

A token's "KV" is a hash of the whole sequence up to it. The next token is a hash of all KV entries that the row reads
through its page table; a page that was reused, shared or freed wrongly changes it.
"""

import numpy as np

from radixlm.protocol.plan import HOST, NOT_FINITE, NOT_SAMPLED, SAMPLE, SlotInit, StepPlan, StepResult

MASK = (1 << 64) - 1
BASE = 0x9E3779B97F4A7C15


def weights(length: int) -> np.ndarray:
    return np.arange(1, 2 * length, 2, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)


def chain(before: int, tokens: list[int]) -> list[int]:
    """The KV entries of `tokens` after an entry `before`."""
    entries = []
    for token in tokens:
        before = (before * BASE + token + 1) & MASK
        entries.append(before)
    return entries


def choose(total: int, seed: int, produced: int, vocab_size: int, minimum: int, stop_ids: tuple[int, ...]) -> int:
    """The token after a sequence whose weighted KV sum is `total`."""
    value = (total ^ (seed * BASE)) & MASK
    value = ((value ^ (value >> 31)) * 0xBF58476D1CE4E5B9) & MASK
    token = (value >> 33) % vocab_size
    while produced < minimum and token in stop_ids:
        token = (token + 1) % vocab_size
    return token


def oracle(
    prompt: list[int], seed: int, count: int, vocab_size: int, minimum: int, stop_ids: tuple[int, ...]
) -> list[int]:
    """The first `count` output tokens of a request that is alone in the world."""
    scale = [int(w) for w in weights(len(prompt) + count)]
    total, last = 0, 0
    outputs: list[int] = []
    pending = list(prompt)
    position = 0
    while len(outputs) < count:
        for entry in chain(last, pending):
            total = (total + entry * scale[position]) & MASK
            last = entry
            position += 1
        token = choose(total, seed, len(outputs), vocab_size, minimum, stop_ids)
        outputs.append(token)
        pending = [token]
    return outputs


class FenceError(AssertionError):
    """A page was written while a step in flight of another request may still use it."""


class FakeDevice:
    """Executes plans in order. `committed` is the last step whose result was handed back (for the fence check)."""

    def __init__(self, slots: int, longest_tokens: int, num_pages: int, page_size: int, vocab_size: int) -> None:
        self.page_size = page_size
        self.vocab_size = vocab_size
        self.table = np.zeros((slots, -(-longest_tokens // page_size)), np.int64)
        self.pool = np.zeros((num_pages + 1) * page_size, np.uint64)
        self.last = np.zeros(slots, np.int64)
        self.inits: dict[int, SlotInit] = {}
        self.occupant = np.zeros(slots, np.int64)
        self.occupants = 0
        self.weights = weights(longest_tokens + 1)
        self.used_step = np.full(num_pages + 1, -1, np.int64)
        self.used_by = np.zeros(num_pages + 1, np.int64)
        self.committed = -1
        self.computed_tokens = 0

    def run(self, plan: StepPlan) -> StepResult:
        plan = StepPlan.decode(plan.encode())
        for init in plan.started:
            self.inits[init.slot] = init
            self.occupants += 1
            self.occupant[init.slot] = self.occupants
        for slot, index, page in plan.page_updates.reshape(-1, 3).tolist():
            assert 0 < page < len(self.used_step)
            self.table[slot, index] = page
        tokens = np.full(len(plan.slots), NOT_SAMPLED, np.int32)
        host = 0
        assert len(set(plan.slots.tolist())) == len(plan.slots)
        for row in range(len(plan.slots)):
            slot, start, count = int(plan.slots[row]), int(plan.starts[row]), int(plan.counts[row])
            flags = int(plan.flags[row])
            assert (row < plan.decode_rows) == (not flags & HOST)
            if flags & HOST:
                inputs = plan.tokens[host : host + count].tolist()
                host += count
            else:
                assert count == 1 and flags & SAMPLE
                inputs = [int(self.last[slot])]
            total = self._forward(plan.step, slot, start, inputs)
            if flags & SAMPLE:
                init = self.inits[slot]
                token = choose(
                    total,
                    init.params.seed,
                    int(plan.outputs[row]),
                    self.vocab_size,
                    init.params.min_new_tokens,
                    init.stop_ids,
                )
                self.last[slot] = tokens[row] = token
        assert host == len(plan.tokens)
        return StepResult(plan.step, tokens)

    def _forward(self, step: int, slot: int, start: int, inputs: list[int]) -> int:
        end, page = start + len(inputs), self.page_size
        self.computed_tokens += len(inputs)
        positions = np.arange(end)
        pages = self.table[slot, positions // page]
        index = pages * page + positions % page
        self._check_fences(step, slot, pages, pages[start:])
        before = int(self.pool[index[start - 1]]) if start else 0
        self.pool[index[start:]] = np.array(chain(before, inputs), np.uint64)
        return int((self.pool[index] * self.weights[:end]).sum())

    def _check_fences(self, step: int, slot: int, used: np.ndarray, written: np.ndarray) -> None:
        me = self.occupant[slot]
        foreign = (self.used_step[written] > self.committed) & (self.used_by[written] != me)
        if foreign.any():
            raise FenceError(f"step {step} writes page {written[foreign][0]}, which a step in flight uses")
        shared = (self.used_step[used] > self.committed) & (self.used_by[used] != me)
        self.used_by[used] = np.where(shared, -1, me)
        self.used_step[used] = step


def spoil(result: StepResult, row: int) -> StepResult:
    """The same result with one sampled row not finite."""
    tokens = result.tokens.copy()
    if tokens[row] != NOT_SAMPLED:
        tokens[row] = NOT_FINITE
    return StepResult(result.step, tokens)
