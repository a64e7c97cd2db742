"""The manifest against the groups: each of SGLang's flags once, and never two opinions about one."""

from collections import Counter
from typing import get_args

import pytest

from radixlm.config.flags import FlagField
from radixlm.config.groups import fields_by_name
from radixlm.config.manifest import RENAMED, Row, Status, Type, find_row, rows, unsupported

SGLANG_FLAGS = 521
OWN_SECTION = "Not in SGLang"
# Flags whose default is not SGLang's, on purpose: ours names what SGLang leaves open.
OWN_DEFAULTS = {"device": "auto", "tokenizer_worker_num": None, "detokenizer_worker_num": None}


def test_every_flag_once() -> None:
    spellings = Counter(spelling for row in rows() for spelling in (*row.spellings, row.negative) if spelling)
    assert sum(row.section != OWN_SECTION for row in rows()) == SGLANG_FLAGS
    assert {spelling: n for spelling, n in spellings.items() if n > 1} == {}
    assert sum(len(row.aliases) for row in rows()) == 15
    assert sum(row.negative is not None for row in rows()) == 8


def test_rows_are_well_formed() -> None:
    for row in rows():
        assert row.option.startswith("--") and row.section, row
        assert row.type in get_args(Type) and row.status in get_args(Status), row
        assert row.accepted, row
        assert row.note or row.name in fields_by_name(), row
        assert "\n" not in row.note and not row.note.endswith("."), row


def test_works_means_a_field_or_nothing_to_set() -> None:
    """A row without a status has a field; a field has such a row; other working rows refuse no value."""
    known = fields_by_name()
    for row in rows():
        if row.name in known:
            assert row.status == "works" and row.note == "", row
        elif row.status == "works" and row.name != "config":
            assert row.type == "switch" and set(row.accepted) == {"on", "off"}, row
    assert known.keys() <= {row.name for row in rows()}


@pytest.mark.parametrize("item", fields_by_name().values(), ids=lambda item: item.name)
def test_fields_keep_sglang_spellings_types_and_defaults(item: FlagField) -> None:
    row = find_row(item.option)
    assert row is not None
    assert set(item.spellings) == set(row.spellings)
    assert (item.kind == "switch") == (row.type == "switch")
    assert (item.kind == "list") == (row.type == "list")
    if item.required:
        assert row.default == "required"
        return
    default = OWN_DEFAULTS.get(item.name, row.default)
    assert row.text_of(item.default) == (None if default is None else row.text_of(default))


def _row(kind: str, *accepted: str | None, status: Status = "planned") -> Row:
    return Row("section", "--some-flag", (), kind, accepted, status, "subject")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "quiet", "loud"),
    [
        (_row("int", "1"), ["1", 1, None], ["2", 2, "x"]),
        (_row("human", "16384"), ["16384", "16.384k", 16384], ["16k"]),
        (_row("float", "1.0"), ["1", "1.00", 1, 1.0], ["0.9", 0.9]),
        (_row("switch", "off"), [False], [True]),
        (_row("switch", "off", "on"), [False, True], []),
        (_row("bool", None, "off"), [False], [True]),
        (_row("list", "[]"), [[], ()], [["a"]]),
        (_row("list", None), [None], [["a", "b"]]),
        (_row("json", None), [None], ["{", {"a": 1}]),
        (_row("str", "{}"), ["{}", {}], ['{"a": 1}', {"a": 1}]),
        (_row("str", None), [None], ["unset", "x"]),
        (_row("str", ""), [""], ["x"]),
    ],
)
def test_only_what_asks_for_something_is_refused(row: Row, quiet: list[object], loud: list[object]) -> None:
    assert [row.complaint(value) for value in quiet] == [None] * len(quiet)
    assert all(row.complaint(value) for value in loud)


def test_lines() -> None:
    assert unsupported("tp_size", 2) == ["--tp-size is planned (parallelism), not available yet"]
    assert unsupported("tp_size", 1) == []
    (line,) = unsupported("trust_remote_code", True)
    assert line.startswith("--trust-remote-code is refused: ")
    assert unsupported("no_such", 1) == ["unknown flag --no-such"]
    assert unsupported("cuda_graph_bs", [1]) == ["unknown flag --cuda-graph-bs (gone; --cuda-graph-bs-decode)"]


def test_renamed_spellings_point_at_flags_that_exist() -> None:
    for new in RENAMED.values():
        for word in new.split():
            if word.startswith("--"):
                assert find_row(word) is not None, new
