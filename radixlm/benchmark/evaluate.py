"""`radixlm eval`: perplexity, multiple choice and divergence from another server, out of local files.

Made to judge what a change of weights' or cache's precision costs: the same text through both, and the difference with
its error. Generates nothing.
"""

import asyncio
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import msgspec

from radixlm.base.client_key import KEY_HELP
from radixlm.base.errors import ConfigError, RadixError
from radixlm.benchmark.launched import at
from radixlm.benchmark.options import client_at
from radixlm.benchmark.scoring import Scorer, Scores
from radixlm.benchmark.workers import run_async
from radixlm.config.commandline import Program, append_line, command
from radixlm.config.flags import at_least, flag, http_url, writable

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class EvalOptions:
    """What is judged by what."""

    base_url: str | None = flag(
        None, "a server that runs; one is started with the further options when unset", parse=http_url
    )
    api_key: str | None = flag(None, KEY_HELP, secret=True)
    text: str | None = flag(None, "text file whose perplexity is measured")
    choices: str | None = flag(None, "JSONL of multiple-choice questions: question, choices, answer")
    against: str | None = flag(
        None, "URL of a reference server: the divergence from it on --text is measured", parse=http_url
    )
    window: int = flag(512, "tokens that are scored together", check=at_least(2))
    context: int = flag(256, "tokens before a window that it is given, unscored", check=at_least(1))
    max_windows: int | None = flag(None, "most windows taken of the text", check=at_least(1))
    top: int = flag(20, "likeliest tokens compared at each place, with --against", check=at_least(1))
    output_file: str | None = flag(None, "JSONL file to append the result to", check=writable)


PROGRAM = Program(
    "eval",
    "Judge a model's answers by their probabilities. Further options are those of radixlm serve.",
    {"eval": EvalOptions},
    family="radixlm",
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    found, rest = PROGRAM.read_known(argv, "[MODEL] [options of radixlm serve]")
    options: EvalOptions = found["eval"]
    if options.text is None and options.choices is None:
        raise ConfigError("give --text, --choices or both")
    if options.against is not None and options.text is None:
        raise ConfigError("--against compares on a text: give --text")
    text = None if options.text is None else _read(options.text)
    tasks = None if options.choices is None else read_tasks(options.choices)
    with at(options.base_url, rest) as url:
        result = run_async(run(url, options, text, tasks))
    for name, value in result.items():
        print(f"{name.replace('_', ' ') + ':':<32} {value:.5g}" if isinstance(value, float) else f"{name}: {value}")
    if options.output_file is not None:
        append_line(options.output_file, msgspec.json.encode(result) + b"\n")
    return 0


async def run(url: str, options: EvalOptions, text: str | None, tasks: "list[Task] | None") -> dict[str, Any]:
    """Everything that was asked for, as one flat mapping."""
    own = client_at(url, options.api_key)
    other = None if options.against is None else client_at(options.against, options.api_key)
    result: dict[str, Any] = {}
    try:
        if text is not None:
            result |= await score_text(Scorer(own), None if other is None else Scorer(other), options, text)
        if tasks is not None:
            result |= await score_tasks(Scorer(own), tasks)
    finally:
        for client in (own, other):
            if client is not None:
                client.close()
    return result


# ---- perplexity and divergence --------------------------------------------------------------------------------------


def windows(ids: Sequence[int], window: int, context: int, most: int | None) -> list[tuple[list[int], int]]:
    """Pieces of a text and the place in each from which it is scored: every token but the first, once."""
    pieces = []
    for start in range(1, len(ids), window):
        first = max(start - context, 0)
        pieces.append((list(ids[first : start + window]), start - first))
    return pieces if most is None else pieces[:most]


async def score_text(scorer: Scorer, other: Scorer | None, options: EvalOptions, text: str) -> dict[str, Any]:
    """Perplexity of `text`, and with `other` the divergence of the two servers' next-token distributions."""
    if options.window + options.context > await scorer.longest_tokens():
        raise ConfigError("--window and --context together exceed the longest prompt of the server; make them smaller")
    ids = (await scorer.tokenize([text]))[0]
    pieces = windows(ids, options.window, options.context, options.max_windows)
    if not pieces:
        raise ConfigError(f"{options.text} holds fewer than two tokens")
    top = options.top if other is not None else 0
    mine = await asyncio.gather(*(scorer.score(piece, start, top) for piece, start in pieces))
    result = perplexity(mine)
    scored_all = options.max_windows is None or len(pieces) * options.window >= len(ids) - 1
    if scored_all:
        nats = -sum(sum(scores.logprobs) for scores in mine)
        result["bits_per_byte"] = nats / math.log(2) / len(text.encode())
    if other is not None:
        theirs = await asyncio.gather(*(other.score(piece, start, top) for piece, start in pieces))
        result |= divergence(theirs, mine)
    return result


def perplexity(scored: Sequence[Scores]) -> dict[str, Any]:
    """exp of the mean negative log-likelihood per token, with the error that follows from the spread of windows."""
    tokens = sum(len(scores.logprobs) for scores in scored)
    mean = -sum(sum(scores.logprobs) for scores in scored) / tokens
    means = [-fmean(scores.logprobs) for scores in scored if scores.logprobs]
    error = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
    value = math.exp(mean)
    found = {"scored_tokens": tokens, "nll_per_token": mean, "perplexity": value}
    return found if error is None else found | {"perplexity_error": value * error}


def divergence(reference: Sequence[Scores], mine: Sequence[Scores]) -> dict[str, Any]:
    """How far `mine` is from `reference`, place by place.

    The KL divergence is taken over the tokens that both list and one bucket for all others, so it is a lower bound of
    the true one (merging outcomes never raises it); the more tokens are listed, the closer.
    """
    kls, agree, differences = [], 0, []
    for theirs, ours in zip(reference, mine, strict=True):
        if len(theirs.top) != len(theirs.logprobs) or len(ours.top) != len(ours.logprobs):
            raise RadixError("a server returned no likeliest tokens (top_logprobs_num)")
        for p, q in zip(theirs.top, ours.top, strict=True):
            kls.append(bucketed_kl(p, q))
            agree += max(p, key=p.__getitem__) == max(q, key=q.__getitem__)
        differences += [abs(a - b) for a, b in zip(theirs.logprobs, ours.logprobs, strict=True)]
    delta = fmean([-b for one in mine for b in one.logprobs]) - fmean([-a for one in reference for a in one.logprobs])
    return {
        "kl_divergence": fmean(kls),
        "kl_divergence_max": max(kls),
        **({"kl_divergence_error": stdev(kls) / math.sqrt(len(kls))} if len(kls) > 1 else {}),
        "same_likeliest_token": agree / len(kls),
        "mean_logprob_difference": fmean(differences),
        "nll_minus_reference": delta,
    }


def bucketed_kl(p: dict[int, float], q: dict[int, float]) -> float:
    """KL(p || q) in nats over the common tokens of two partial distributions and a bucket for the rest."""
    common = p.keys() & q.keys()
    total = sum(math.exp(p[token]) * (p[token] - q[token]) for token in common)
    rest_p = max(1.0 - sum(math.exp(p[token]) for token in common), 0.0)
    rest_q = max(1.0 - sum(math.exp(q[token]) for token in common), 1e-9)
    if rest_p > 1e-9:
        total += rest_p * math.log(rest_p / rest_q)
    return max(total, 0.0)


# ---- multiple choice ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """One question: what stands before the choices, the choices, and the place of the right one."""

    question: str
    choices: list[str]
    answer: int


async def score_tasks(scorer: Scorer, tasks: Sequence[Task]) -> dict[str, Any]:
    """Accuracy by the likeliest choice as a whole, and by the likeliest per byte, where lengths do not count."""
    answers = await asyncio.gather(*(_choose(scorer, task) for task in tasks))
    right = [by_sum == task.answer for task, (by_sum, _) in zip(tasks, answers, strict=True)]
    right_norm = [by_byte == task.answer for task, (_, by_byte) in zip(tasks, answers, strict=True)]
    accuracy = fmean(right)
    return {
        "questions": len(tasks),
        "accuracy": accuracy,
        "accuracy_per_byte": fmean(right_norm),
        "accuracy_error": math.sqrt(accuracy * (1 - accuracy) / len(tasks)),
        "accuracy_by_chance": fmean(1 / len(task.choices) for task in tasks),
    }


async def _choose(scorer: Scorer, task: Task) -> tuple[int, int]:
    """The choice with the highest log probability, and with the highest per byte."""
    whole = [f"{task.question} {choice}" for choice in task.choices]
    question, *encoded = await scorer.tokenize([task.question, *whole])
    scores = await asyncio.gather(*(scorer.score(ids, _fork(question, ids)) for ids in encoded))
    sums = [sum(one.logprobs) for one in scores]
    per_byte = [value / max(len(choice.encode()), 1) for value, choice in zip(sums, task.choices, strict=True)]
    return sums.index(max(sums)), per_byte.index(max(per_byte))


def _fork(question: Sequence[int], whole: Sequence[int]) -> int:
    """Where the choice's tokens begin: a tokenizer may join the question's last letters with the choice's first."""
    place = 0
    while place < min(len(question), len(whole) - 1) and question[place] == whole[place]:
        place += 1
    return max(place, 1)


def read_tasks(path: str) -> list[Task]:
    """JSONL: `question` (or `query`, `prompt`), `choices` (or `options`), and `answer` (or `gold`, `label`): a place
    from 0, a letter, or the right choice's text. ConfigError names the line that is none."""
    tasks = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        if line.strip():
            try:
                tasks.append(_task(msgspec.json.decode(line)))
            except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{path}, line {number}: no multiple-choice question ({error})") from None
    if not tasks:
        raise ConfigError(f"{path} holds no question")
    return tasks


def _task(row: dict[str, Any]) -> Task:
    question = str(_first(row, "question", "query", "prompt"))
    choices = [str(choice) for choice in _first(row, "choices", "options")]
    answer = _first(row, "answer", "gold", "label")
    if isinstance(answer, str):
        place = choices.index(answer) if answer in choices else LETTERS.index(answer.strip().upper())
    else:
        place = int(answer)
    if len(choices) < 2 or not 0 <= place < len(choices):
        raise ValueError(f"answer {answer!r} of {len(choices)} choices")
    return Task(question, choices, place)


def _first(row: dict[str, Any], *names: str) -> Any:
    for name in names:
        if name in row:
            return row[name]
    raise KeyError(f"no {names[0]}")


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
