"""Recorded traffic, replayed at its own times: what was shared between requests is shared again."""

import msgspec
import numpy as np

from radixlm.base.errors import ConfigError
from radixlm.benchmark.datasets.spec import DatasetSpec, read_file
from radixlm.benchmark.outcome import Request
from radixlm.benchmark.tokens import Vocabulary

WORDS_PER_BLOCK = 128
FOLLOW_UP = " Go on."


class _Record(msgspec.Struct):
    """One line: arrival in milliseconds, lengths in tokens, and the names of the blocks its prompt is made of."""

    timestamp: float
    output_length: int
    hash_ids: list[int]
    input_length: int = 0


_record = msgspec.json.Decoder(_Record)


def mooncake(spec: DatasetSpec, vocabulary: Vocabulary, rng: np.random.Generator) -> list[Request]:
    """Mooncake's traces (arXiv 2407.00079): a block is its number and 128 times the same word, so prompts share a
    prefix exactly where the trace's did. Lengths are those of this text, not the trace's. The first record is due at 0.
    """
    codec = vocabulary.text_codec("dataset mooncake")
    records: list[_Record] = []
    for number, line in enumerate(read_file(spec.dataset_path, "mooncake").splitlines(), 1):
        if line.strip() and len(records) < spec.num_prompts:
            try:
                records.append(_record.decode(line))
            except msgspec.DecodeError as error:
                raise ConfigError(f"{spec.dataset_path}, line {number}: {error}") from None
    start = min((record.timestamp for record in records), default=0.0)
    requests: list[Request] = []
    for record in sorted(records, key=lambda record: record.timestamp):
        due_s = (record.timestamp - start) / 1000.0 * spec.mooncake_slowdown_factor
        prompt = "".join(str(block) + " hi" * WORDS_PER_BLOCK for block in record.hash_ids) or "hi"
        output = spec.sharegpt_output_len or max(record.output_length, 1)
        requests.append(Request(prompt, len(codec.encode(prompt)), output, due_s=due_s))
        requests += [Request(FOLLOW_UP, 0, output, follows=True) for _ in range(spec.mooncake_num_rounds - 1)]
    return requests
