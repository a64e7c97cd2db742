"""Words, Python values and YAML values of single flags."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from radixlm.base.errors import ConfigError
from radixlm.config.flags import (
    REQUIRED,
    FlagField,
    at_least,
    each,
    flag,
    flags_of,
    http_url,
    human_int,
    increasing,
    json_text,
    within,
    writable,
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    path: str = flag(REQUIRED, "a path", aliases=("--where",))
    size: int | None = flag(None, "a size", parse=human_int)
    share: float = flag(0.5, "a share", check=within(0, 1))
    loud: bool = flag(False, "a switch")
    edges: tuple[float, ...] | None = flag(None, "edges", many=True, check=increasing)
    extra: str = flag("{}", "JSON", parse=json_text)
    kind: str = flag("a", "a choice", choices=("a", "b"))
    sizes: tuple[int, ...] = flag((1,), "sizes", many=True, check=each(at_least(1)))
    url: str | None = flag(None, "an address", parse=http_url)


FIELDS = {item.name: item for item in flags_of("sample", Sample)}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("0", 0),
        ("4096", 4096),
        ("-1", -1),
        ("1k", 1000),
        ("1.5k", 1500),
        ("0.25M", 250_000),
        ("2M", 2_000_000),
        ("1.000001M", 1_000_001),
        ("1.5000k", 1500),
        ("3G", 3_000_000_000),
        ("1T", 10**12),
        ("1Ki", 1024),
        ("64Ki", 65536),
        ("2Mi", 2 * 2**20),
        ("1Gi", 2**30),
        ("1Ti", 2**40),
    ],
)
def test_human_int(word: str, value: int) -> None:
    assert human_int(word) == value


@pytest.mark.parametrize("word", ["", "k", "1K", "1m", "1.5", "1.5Ki", "1 k", "1kb", "1ki", "1e3", "0x10", "1.0001k"])
def test_human_int_refuses(word: str) -> None:
    with pytest.raises(ValueError, match=r"is not|fraction"):
        human_int(word)


def test_fields_say_what_they_are() -> None:
    assert FIELDS["path"].spellings == ("--path", "--where")
    assert [FIELDS[name].kind for name in ("path", "loud", "edges")] == ["value", "switch", "list"]
    assert FIELDS["path"].required and not FIELDS["size"].required
    assert FIELDS["size"].optional and not FIELDS["share"].optional


@pytest.mark.parametrize(
    ("name", "words", "value"),
    [
        ("path", ["x"], "x"),
        ("size", ["2k"], 2000),
        ("share", ["1"], 1.0),
        ("loud", [], True),
        ("edges", ["1", "2.5"], (1.0, 2.5)),
        ("extra", ['{"a": 1}'], '{"a": 1}'),
    ],
)
def test_read_words(name: str, words: list[str], value: Any) -> None:
    read = FIELDS[name].read(words)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("path", Path("a/b"), "a/b"),
        ("size", 7.0, 7),
        ("size", "1Ki", 1024),
        ("size", None, None),
        ("share", 1, 1.0),
        ("loud", False, False),
        ("edges", [1, 2], (1.0, 2.0)),
        ("extra", {"a": [1]}, '{"a": [1]}'),
    ],
)
def test_accept_values(name: str, given: Any, value: Any) -> None:
    accepted = FIELDS[name].accept(given)
    assert accepted == value and type(accepted) is type(value)


@pytest.mark.parametrize(
    ("name", "given", "complaint"),
    [
        ("path", 3, "is not text"),
        ("path", None, "is not text"),
        ("size", 7.5, "is not an integer"),
        ("size", True, "is not an integer"),
        ("size", float("inf"), "is not an integer"),
        ("share", 2, "between 0 and 1"),
        ("share", float("nan"), "between 0 and 1"),
        ("share", "x", "is not a number"),
        ("loud", "yes", "true or false"),
        ("loud", 1, "true or false"),
        ("edges", "12", "must be a list"),
        ("edges", [2, 1], "increasing"),
        ("extra", "[1]", "JSON object"),
        ("extra", "{", "not valid JSON"),
        ("extra", "[" * 100_000, "not valid JSON"),
        ("kind", "c", "not one of: a, b"),
        ("sizes", [3, 0, -1], "at least 1, not 0"),
        ("url", "foo", "'foo' is not an http or https URL"),
        ("url", "localhost:30000", "is not an http or https URL"),
        ("url", "ftp://x", "is not an http or https URL"),
        ("url", "http://", "is not an http or https URL"),
        ("url", "http://x:0", "is not an http or https URL"),
        ("url", "http://x:99999", "is not an http"),
    ],
)
def test_bad_values_name_the_flag(name: str, given: Any, complaint: str) -> None:
    item: FlagField = FIELDS[name]
    with pytest.raises(ConfigError, match=complaint) as caught:
        item.accept(given)
    assert str(caught.value).startswith(f"--{name}: ") and "\n" not in str(caught.value)


def test_lists_and_addresses_that_pass() -> None:
    assert FIELDS["sizes"].accept([3, 1]) == (3, 1)
    for url in ("http://127.0.0.1:30000", "https://[::1]:5/p"):
        assert FIELDS["url"].accept(url) == url


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    assert writable(tmp_path / "there") is None and writable(str(tmp_path / "new")) is None
    assert not (tmp_path / "new").exists()
    assert writable(tmp_path) == f"{tmp_path} is a folder" and writable("") is None
    assert "File name too long" in str(writable(tmp_path / ("a" * 300)))
    assert "there is no folder" in str(writable(tmp_path / "no" / "x"))
    assert "there is no folder" in str(writable(tmp_path / "there" / "x"))
    if os.geteuid():  # to root everything is allowed
        (tmp_path / "there").chmod(0o400)
        assert "permission denied" in str(writable(tmp_path / "there"))
