"""The one judge of greedy parity: equal tokens, or first different where the reference itself was undecided."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

TIE = 1e-4  # fp32: changed shapes change sums; two logits closer than this may swap


@dataclass(frozen=True)
class Reference:
    """A prompt and its greedy continuation by transformers in fp32; margins[i]: token i's logit minus the next best."""

    name: str
    prompt_ids: list[int]
    output_ids: list[int]
    margins: list[float]


@dataclass
class Verdict:
    """What a comparison over many outputs found."""

    compared_tokens: int = 0
    ties: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def check(self, reference: Reference, got: Sequence[int], what: str = "") -> None:
        """Compare one output, up to the first difference."""
        expected = reference.output_ids[: len(got)]
        for i, (a, b) in enumerate(zip(expected, got, strict=True)):
            if a != b:
                line = f"{reference.name} {what}: token {i} is {b}, reference {a}, margin {reference.margins[i]:.2e}"
                (self.ties if reference.margins[i] < TIE else self.wrong).append(line)
                return
            self.compared_tokens += 1


def load(path: Path) -> list[Reference]:
    return [Reference(**row) for row in json.loads(path.read_text())]
