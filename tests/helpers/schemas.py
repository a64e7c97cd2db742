"""JSON schemas for tests: those of the JSON-Schema-Test-Suite, fetched once, and random ones."""

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from radixlm.loader.demo import cache_dir

REQUIREMENT = "jsonschema==4.26.0"  # its source distribution carries the suite
DRAFT = "json/tests/draft2020-12/"
KEPT = "json-schema-test-suite.json"
FETCH_TIMEOUT_S = 300


def suite() -> list[Any]:
    """Every schema of the suite's required tests for draft 2020-12, in the order of the files."""
    kept = cache_dir().parent / KEPT
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            found = json.dumps(_fetched(Path(scratch)))
            part = Path(scratch) / KEPT
            part.write_text(found)
            part.replace(kept)
    schemas: list[Any] = json.loads(kept.read_text())
    return schemas


def _fetched(folder: Path) -> list[Any]:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "jsonschema"]
    subprocess.run([*command, "--dest", str(folder), REQUIREMENT], check=True, timeout=FETCH_TIMEOUT_S)
    [archive] = folder.glob("*.tar.gz")
    schemas: list[Any] = []
    with tarfile.open(archive) as files:
        for member in sorted(files.getmembers(), key=lambda member: member.name):
            _, here, name = member.name.partition(DRAFT)
            if not here or "/" in name or not name.endswith(".json"):
                continue
            stream = files.extractfile(member)
            assert stream is not None
            schemas += [group["schema"] for group in json.load(stream)]
    return schemas


def generated() -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of objects, three levels deep at most, from the keywords that people use."""
    leaves = st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.builds(
            lambda a, b: {"type": "integer", "minimum": a, "maximum": a + b}, st.integers(-50, 50), st.integers(0, 99)
        ),
        st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(1, 6)),
        st.builds(
            lambda p: {"type": "string", "pattern": p}, st.sampled_from(["^[a-f]{2,4}$", "^x\\d{2}$", "^(no|yes)$"])
        ),
        st.builds(
            lambda v: {"enum": v}, st.lists(st.sampled_from([1, "a", "bc", None, True]), min_size=1, unique_by=repr)
        ),
        st.builds(lambda v: {"const": v}, st.sampled_from(["fixed", 7, None])),
    )
    return st.recursive(
        leaves, lambda inner: st.one_of(_objects(inner), _arrays(inner), _unions(inner)), max_leaves=5
    ).filter(lambda schema: schema.get("type") in ("object", "array"))


def _objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.lists(st.sampled_from(["id", "name", "ok", "kind"]), min_size=1, max_size=3, unique=True)

    def made(names: list[str], inners: list[dict[str, Any]], required: int) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": dict(zip(names, inners, strict=False)),
            "required": names[: min(required, len(inners))],
            "additionalProperties": False,
        }

    return st.builds(made, names, st.lists(inner, min_size=3, max_size=3), st.integers(0, 3))


def _arrays(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda items, least, more: {"type": "array", "items": items, "minItems": least, "maxItems": least + more},
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )


def _unions(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=2, max_size=3))
