"""What building an engine refuses at once, and what it leaves behind in its process."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from radixlm.base.errors import ConfigError
from radixlm.config.facts import GpuFacts
from radixlm.config.groups import Config
from radixlm.engine import build as build_module
from radixlm.loader.source import ModelSource
from radixlm.runner import memory
from tests.helpers.tiny import CARD

BERT = {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1}
BERT |= {"num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 64}
BERT |= {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "pad_token_id": 0}
PROGRAM = """
import atexit, gc, sys
atexit.register(lambda: print("frozen at the end:", gc.get_freeze_count()))
from radixlm.config.cli import read_serve
from radixlm.engine.build import build
from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
config = read_serve([sys.argv[1], "--device", "cpu", "--load-format", "dummy"])
source = resolve(sys.argv[1])
build(config, source, load_card(source, {}))
print("frozen:", gc.get_freeze_count() > 0)
"""


def test_nothing_stays_frozen_at_the_end(tmp_path: Path) -> None:
    """Native bindings call whatever cannot be collected then a leak, and print hundreds of lines about it."""
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["frozen: True", "frozen at the end: 0"], done.stderr


@pytest.mark.parametrize("integrated", [0, 1])
def test_a_gpu_is_probed(integrated: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without memory of its own has what the host can take, and the page cache is no loss."""
    found = SimpleNamespace(name="GB10", total_memory=121 << 30, multi_processor_count=48, major=12, minor=1)
    found.is_integrated = integrated
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (41 << 30, 121 << 30))
    monkeypatch.setattr(memory, "free_ram_bytes", lambda: 115 << 30)
    free = 115 << 30 if integrated else 41 << 30
    assert build_module.probe("cuda").gpu == GpuFacts("GB10", 121 << 30, free, 48, (12, 1), bool(integrated))
    assert build_module._free_bytes(torch.device("cuda")) == free


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"schedule_policy": "shortest-prefill-first", "disable_radix_cache": True}, "no --schedule-policy fits"),
        ({"radix_eviction_policy_config": {"x": 1}}, "--radix-eviction-policy-config: lru has no option 'x'"),
        ({"attention_backend": "native_cpu"}, "no --decode-attention-backend .* fits: native_cpu: .*head_dim 8"),
    ],
)
def test_plug_ins_are_refused_before_weights_are_read(
    flags: dict[str, Any], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(build_module, "load_model", never)
    with pytest.raises(ConfigError, match=complaint):
        build_module.build(
            Config.from_flat({"model_path": "m", "device": "cpu", **flags}), ModelSource("m", Path("m"), "folder"), CARD
        )
