"""Lines for people have a prefix, lines for programs have none."""

import json
import logging

import pytest

from radixlm.base import log


def test_a_bare_line_is_its_message_alone(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        log.setup("info", "TP0")
        log.get("radixlm.x").info("%s", json.dumps({"a": 1}), extra=log.BARE)
        log.get("radixlm.x").info("for people")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    bare, prefixed = capsys.readouterr().err.splitlines()
    assert json.loads(bare) == {"a": 1}
    assert prefixed.startswith("[20") and prefixed.endswith(" TP0] for people")
