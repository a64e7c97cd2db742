"""Every server flag of SGLang 0.5.22 and what this project makes of it: works, planned or refused; and our own flags.

The rows are in manifest.tsv. Knows SGLang's spellings, types and defaults; knows nothing of the groups.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

from radixlm.config.flags import human_int

Status = Literal["works", "planned", "refused"]
Type = Literal["switch", "bool", "int", "human", "float", "str", "str?", "list", "json"]


@dataclass(frozen=True)
class Row:
    """One flag of SGLang. `accepted` are the values that ask for nothing new, as text, its default first (None: unset).

    `note` is the subject that will bring a planned flag, or why one is refused, or why one is always true.
    """

    section: str
    option: str
    aliases: tuple[str, ...]
    type: Type
    accepted: tuple[str | None, ...]
    status: Status
    note: str

    @property
    def name(self) -> str:
        return self.option.removeprefix("--").replace("-", "_")

    @property
    def default(self) -> str | None:
        return self.accepted[0]

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.option, *self.aliases)

    @property
    def negative(self) -> str | None:
        """The spelling that turns the flag off, for those that have one."""
        return self.option.replace("--", "--no-", 1) if self.type == "bool" else None

    def complaint(self, value: Any) -> str | None:
        """Why `value` cannot be honoured, in one line; None when it asks for nothing new."""
        if value is None or self.text_of(value) in {self.text_of(text) for text in self.accepted}:
            return None
        if self.status == "planned":
            return f"{self.option} is planned ({self.note}), not available yet"
        return f"{self.option} is refused: {self.note}"

    def text_of(self, value: Any) -> str | None:
        """One spelling for each value, so that 16384, "16384" and "16.384k" compare equal."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "on" if value else "off"
        try:
            if self.type == "float":
                return str(float(value))
            if self.type == "human" or (self.type == "int" and isinstance(value, str)):
                return str(human_int(str(value)))
            if isinstance(value, Mapping) or (self.type == "json" and isinstance(value, str)):
                return json.dumps(json.loads(value) if isinstance(value, str) else dict(value), sort_keys=True)
        except (ValueError, TypeError):
            return str(value)
        if isinstance(value, Sequence) and not isinstance(value, str):
            return " ".join(str(item) for item in value) if value else "[]"
        return str(value)


# Spellings and values that SGLang 0.5.22 renames or has dropped, and what stands for them now.
RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "--enable-ep-moe": "gone; --ep-size",
        "--enable-deepep-moe": "gone; --moe-a2a-backend deepep",
        "--cuda-graph-max-bs": "gone; --cuda-graph-max-bs-decode",
        "--cuda-graph-bs": "gone; --cuda-graph-bs-decode",
        "--disable-cuda-graph": "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled",
        "--dp-size N --enable-dp-attention": "--attn-dp-size N",
        "--enable-flashinfer-allreduce-fusion": "--flashinfer-allreduce-fusion-backend auto",
        "--grpc-mode": "--smg-grpc-mode",
        "--disable-fast-image-processor": "--image-processor-backend pil",
        "--attention-backend nsa": "--attention-backend dsa",
        "--attention-backend compressed": "--attention-backend dsv4",
        "--tool-call-parser qwen25": "--tool-call-parser qwen",
        "--tool-call-parser glm45": "--tool-call-parser glm",
        "--disaggregation-transfer-backend mooncake_tcp": "mooncake with MC_FORCE_TCP=1",
        "--cuda-graph-backend-decode tc_piecewise": "gone",
        "--speculative-algorithm NEXTN": "--speculative-algorithm EAGLE",
        "SGLANG_SCHEDULER_DECREASE_PREFILL_IDLE": "--enable-prefill-delayer",
        "SGLANG_PREFILL_DELAYER_MAX_DELAY_PASSES": "--prefill-delayer-max-delay-passes",
        "SGLANG_PREFILL_DELAYER_TOKEN_USAGE_LOW_WATERMARK": "--prefill-delayer-token-usage-low-watermark",
        "SGLANG_USE_CUDA_IPC_TRANSPORT": "--mm-feature-transport",
    }
)


_ACCEPTED: Mapping[str, str | None] = MappingProxyType({"unset": None, "''": ""})


def _row(section: str, line: str) -> Row:
    option, aliases, kind, accepted, status, *note = line.split("\t")
    return Row(
        section,
        option,
        () if aliases == "-" else tuple(aliases.split()),
        kind,  # type: ignore[arg-type]  # a test checks the file's types and statuses
        tuple(_ACCEPTED.get(text, text) for text in accepted.split(" | ")),
        "works" if status == "-" else status,  # type: ignore[arg-type]
        note[0] if note else "",
    )


@cache
def rows() -> tuple[Row, ...]:
    """All rows, in the file's order."""
    section = ""
    found = []
    for line in resources.files("radixlm.config").joinpath("manifest.tsv").read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("--"):
            found.append(_row(section, line))
    return tuple(found)


@cache
def _by_spelling() -> dict[str, Row]:
    return {spelling: row for row in rows() for spelling in row.spellings}


def find_row(spelling: str) -> Row | None:
    """The row of one full spelling (`--tp-size`, `--tensor-parallel-size`), or None."""
    return _by_spelling().get(spelling)


def unsupported(name: str, value: Any) -> list[str]:
    """The lines that refuse `value` for the flag with this flat name; none when it asks for nothing new."""
    option = "--" + name.replace("_", "-")
    row = find_row(option)
    if row is None:
        renamed = RENAMED.get(option)
        return [f"unknown flag {option}" + (f" ({renamed})" if renamed else "")]
    complaint = row.complaint(value)
    return [complaint] if complaint else []
