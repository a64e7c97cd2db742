"""The drawing of host time: well-formed, to scale, and clear about files that are something else."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from radixlm.base.errors import RadixError
from radixlm.tools.step_plot import draw, main, read_rows

SVG = "{http://www.w3.org/2000/svg}"


def row(batch: int, us: float) -> dict[str, float]:
    return {"batch": batch, "step_us": 10 * us, "plan_us": us, "launch_us": us, "commit_us": us, "output_us": us}


def test_phases_are_stacked_to_scale(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps({"rows": [row(64, 200), row(1, 100)]}))
    assert main([str(tmp_path / "in.json"), str(tmp_path / "out.svg")]) == 0
    drawing = ElementTree.parse(tmp_path / "out.svg").getroot()
    bands = [band.attrib["points"].split() for band in drawing.iter(f"{SVG}polygon")]
    heights = [[float(points[i].split(",")[1]) for i in (0, 1)] for points in bands]
    floor = float(bands[0][-1].split(",")[1])
    one = floor - heights[0][0]
    assert [round((floor - high) / one) for band in heights for high in band] == [1, 2, 2, 4, 3, 6, 4, 8]
    texts = [text.text for text in drawing.iter(f"{SVG}text")]
    assert {"1", "64", "1,000", "launch", "whole step"} <= set(texts)


def test_one_size_can_be_drawn() -> None:
    ElementTree.fromstring(draw([row(8, 50)]))


EMPTY, ENDLESS, NO_TIME = row(0, 1), row(1, 1e300), row(1, -5)
DAMAGED = [json.dumps({"rows": [one]}).encode() for one in (EMPTY, ENDLESS, NO_TIME, {"batch": 1}, 5)]


@pytest.mark.parametrize("content", [*DAMAGED, b"[]", b"{}", b'{"rows": []}', b"no json", b"\xff\xfe", b"[" * 10**5])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_bytes(content)
    with pytest.raises(RadixError, match="was not written by"):
        read_rows(tmp_path / "in.json")


def test_failures_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, out, nowhere = (str(tmp_path / name) for name in ("in.json", "out.svg", "no/out.svg"))
    Path(good).write_text(json.dumps({"rows": [row(1, 100)]}))
    for words, code in (
        ([str(tmp_path / "missing"), out], 1),
        ([good, nowhere], 1),
        ([good, str(tmp_path)], 1),
        ([good], 2),
        (["--bogus", good, out], 2),
    ):
        assert main(words) == code
        said = capsys.readouterr().err
        assert said.startswith("error: ") and said.count("\n") == 1
