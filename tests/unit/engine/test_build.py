"""What building an engine leaves behind in its process."""

import json
import subprocess
import sys
from pathlib import Path

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
