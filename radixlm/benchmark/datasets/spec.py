"""What describes a dataset, the rule for drawing lengths, and the table of datasets."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from radixlm.base.errors import ConfigError
from radixlm.base.registry import Registry, Row
from radixlm.benchmark.outcome import Request
from radixlm.benchmark.tokens import Vocabulary


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """The options of all datasets; each reads its own. Lengths are in tokens."""

    path: str = ""
    num_prompts: int = 1000
    tokenize_prompt: bool = False
    prompt_suffix: str = ""
    random_input_len: int = 1024
    random_output_len: int = 1024
    random_range_ratio: float = 0.0
    sharegpt_output_len: int | None = None
    sharegpt_context_len: int | None = None
    gsp_num_groups: int = 64
    gsp_prompts_per_group: int = 16
    gsp_system_prompt_len: int = 2048
    gsp_question_len: int = 128
    gsp_output_len: int = 256
    gsp_range_ratio: float = 1.0
    gsp_ordered: bool = False
    gsp_group_distribution: str = "uniform"
    gsp_zipf_alpha: float | None = None


Builder = Callable[[DatasetSpec, Vocabulary, np.random.Generator], list[Request]]

DATASETS: Registry[Builder] = Registry(
    "dataset",
    [
        Row("sharegpt", "radixlm.benchmark.datasets.conversations:sharegpt"),
        Row("custom", "radixlm.benchmark.datasets.conversations:custom"),
        Row("random", "radixlm.benchmark.datasets.conversations:random_text"),
        Row("random-ids", "radixlm.benchmark.datasets.synthetic:random_ids"),
        Row("generated-shared-prefix", "radixlm.benchmark.datasets.synthetic:generated_shared_prefix"),
    ],
)


def build(name: str, spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> list[Request]:
    """The requests of dataset `name`, the same for the same spec, vocabulary and seed.

    ConfigError if an option is out of range, a file cannot be read, or nothing is left to send.
    """
    requests = DATASETS.load(name)(spec, vocabulary, np.random.default_rng([seed, 0]))
    if not requests:
        raise ConfigError(f"dataset {name} gave no request to send")
    return requests


def draw_lengths(
    rng: np.random.Generator, full_tokens: int, ratio: float, count: int, option: str
) -> npt.NDArray[np.int64]:
    """`count` lengths, uniform over the integers of [max(int(full x ratio), 1), full].

    With ratio 0 their mean is about half of `full_tokens`; with ratio 1 all are `full_tokens`.
    """
    if full_tokens < 1:
        raise ConfigError(f"{option} must be at least 1, not {full_tokens}")
    if not 0.0 <= ratio <= 1.0:
        raise ConfigError(f"the range ratio of {option} must lie between 0 and 1, not {ratio}")
    return rng.integers(max(int(full_tokens * ratio), 1), full_tokens, count, endpoint=True)


def read_file(path: str, dataset: str) -> bytes:
    """The dataset file; ConfigError if none was given or it cannot be read."""
    if not path:
        raise ConfigError(f"dataset {dataset} is read from a file: give --dataset-path, or use --dataset-name random-ids")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
