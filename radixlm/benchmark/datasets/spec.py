"""What describes a dataset, the rule for drawing lengths, and the table of datasets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from radixlm.base.errors import ConfigError
from radixlm.base.registry import Registry, Row
from radixlm.benchmark.outcome import Request
from radixlm.benchmark.tokens import Vocabulary, added_tokens, fit_texts, prompt_lengths
from radixlm.config.flags import at_least, flag, within

ROWS = (
    Row("sharegpt", "radixlm.benchmark.datasets.conversations:sharegpt"),
    Row("custom", "radixlm.benchmark.datasets.conversations:custom"),
    Row("random", "radixlm.benchmark.datasets.conversations:random_text"),
    Row("random-ids", "radixlm.benchmark.datasets.synthetic:random_ids"),
    Row("generated-shared-prefix", "radixlm.benchmark.datasets.synthetic:generated_shared_prefix"),
    Row("openai", "radixlm.benchmark.datasets.chats:openai"),
    Row("agentic-trace", "radixlm.benchmark.datasets.chats:agentic_trace"),
    Row("mooncake", "radixlm.benchmark.datasets.traces:mooncake"),
)
NAMES = tuple(row.name for row in ROWS)
CHAT_DATASETS = frozenset({"openai", "agentic-trace"})


@dataclass(frozen=True)
class DatasetSpec:
    """The options of all datasets; each reads its own. Lengths are in tokens."""

    dataset_name: str = flag("sharegpt", "what to send", choices=NAMES)
    dataset_path: str = flag("", "the file of sharegpt, custom, random, openai, agentic-trace and mooncake")
    dataset_offset: int = flag(0, "agentic-trace starts with this conversation", check=at_least(0))
    num_prompts: int = flag(1000, "how many requests to send", check=at_least(1))
    tokenize_prompt: bool = flag(False, "send prompts as token ids (not with chat backends)")
    vocab_size: int | None = flag(None, "draw ids below this without loading a tokenizer; needs --tokenize-prompt")
    apply_chat_template: bool = flag(False, "put the model's chat template around prompts sent as text")
    prompt_suffix: str = flag("", "text put after every prompt of sharegpt and custom")
    random_input_len: int = flag(1024, "largest prompt of random and random-ids", check=at_least(1))
    random_output_len: int = flag(1024, "largest output of random and random-ids", check=at_least(1))
    random_range_ratio: float = flag(
        0.0, "lengths are uniform from this share of the largest up to it; 1 fixes them", check=within(0, 1)
    )
    sharegpt_output_len: int | None = flag(
        None, "output length of sharegpt and custom instead of the recorded answer's", check=at_least(4)
    )
    sharegpt_context_len: int | None = flag(None, "drop conversations longer than this", check=at_least(1))
    gsp_num_groups: int = flag(64, "groups of generated-shared-prefix", check=at_least(1))
    gsp_prompts_per_group: int = flag(16, "requests in each group", check=at_least(1))
    gsp_system_prompt_len: int = flag(2048, "length of the prompt that a group shares", check=at_least(1))
    gsp_question_len: int = flag(128, "length of what follows it", check=at_least(1))
    gsp_output_len: int = flag(256, "output length", check=at_least(1))
    gsp_range_ratio: float = flag(1.0, "as --random-range-ratio, for the three lengths", check=within(0, 1))
    gsp_ordered: bool = flag(False, "send group after group instead of shuffled")
    gsp_group_distribution: str = flag("uniform", "requests of each group", choices=("uniform", "zipf"))
    gsp_zipf_alpha: float | None = flag(None, "exponent of zipf")
    gsp_num_turns: int = flag(1, "turns of each conversation, each with a question of its own", check=at_least(1))
    agentic_max_turns: int | None = flag(None, "most turns taken of a conversation", check=at_least(1))
    mooncake_slowdown_factor: float = flag(1.0, "stretches the trace's times", check=at_least(0))
    mooncake_num_rounds: int = flag(1, "turns that each record is played for", check=at_least(1))


Builder = Callable[[DatasetSpec, Vocabulary, np.random.Generator], list[Request]]

DATASETS: Registry[Builder] = Registry("dataset", ROWS)


def build(spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> list[Request]:
    """The requests of a dataset, the same for the same spec, vocabulary and seed.

    ConfigError if options do not go together, a file cannot be read, or nothing is left to send.
    """
    requests = DATASETS.load(spec.dataset_name)(spec, vocabulary, np.random.default_rng([seed, 0]))
    if not requests:
        raise ConfigError(f"dataset {spec.dataset_name} gave no request to send")
    if spec.apply_chat_template:
        return [_templated(request, vocabulary) for request in requests]
    return requests


def _templated(request: Request, vocabulary: Vocabulary) -> Request:
    """A text prompt in the model's chat template, with its length; BOS and the like are counted as servers add them."""
    if not isinstance(request.prompt, str) or request.follows:
        raise ConfigError("--apply-chat-template: only for prompts that are one text")
    prompt = vocabulary.render([{"role": "user", "content": request.prompt}], None, "--apply-chat-template")
    tokens = len(vocabulary.text_codec("--apply-chat-template").encode(prompt))
    return msgspec.structs.replace(request, prompt=prompt, prompt_tokens=tokens)


def draw_lengths(rng: np.random.Generator, full_tokens: int, ratio: float, count: int) -> npt.NDArray[np.int64]:
    """`count` lengths, uniform over the integers of [max(int(full x ratio), 1), full].

    With ratio 0 their mean is about half of `full_tokens`; with ratio 1 all are `full_tokens`.
    """
    return rng.integers(max(int(full_tokens * ratio), 1), full_tokens, count, endpoint=True)


def read_file(path: str, dataset: str) -> bytes:
    """The dataset file; ConfigError if none was given or it cannot be read."""
    if not path:
        raise ConfigError(f"dataset {dataset} needs --dataset-path; --dataset-name random-ids needs no file")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def json_lines(path: str, dataset: str) -> list[dict[str, Any]]:
    """The objects of a JSONL file, or of a JSON list; ConfigError names the line that is none."""
    data = read_file(path, dataset)
    try:
        if data.lstrip().startswith(b"["):
            return msgspec.json.decode(data, type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not a JSON list of objects ({error})") from None
    rows = []
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            try:
                rows.append(msgspec.json.decode(line, type=dict[str, Any]))
            except msgspec.DecodeError as error:
                raise ConfigError(f"{path}, line {number}: not a JSON object ({error})") from None
    return rows


def fixed_length_requests(
    spec: DatasetSpec,
    vocabulary: Vocabulary,
    starts: Sequence[Sequence[int]],
    fillers: Sequence[Sequence[int]],
    input_lens: Sequence[int],
    output_lens: Sequence[int],
) -> list[Request]:
    """Requests of given lengths: the ids themselves if prompts are sent as ids, else texts fitted to the lengths.

    `starts[i]` holds `input_lens[i]` ids; what the tokenizer adds to a text (such as BOS) counts as part of it.
    """
    if spec.tokenize_prompt:
        return [Request(list(ids), len(ids), out) for ids, out in zip(starts, output_lens, strict=True)]
    codec = vocabulary.text_codec(f"dataset {spec.dataset_name} without --tokenize-prompt")
    added = added_tokens(codec)
    texts = fit_texts(codec, starts, fillers, [max(length - added, 1) for length in input_lens])
    return [Request(*row) for row in zip(texts, prompt_lengths(codec, texts), output_lens, strict=True)]
