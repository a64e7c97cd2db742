"""The drawing of host time: well-formed, to scale, and clear about files that are something else."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from radixlm.base.errors import ConfigError
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


@pytest.mark.parametrize("content", ["[]", "{}", '{"rows": []}', '{"rows": [{"batch": 1}]}', "no json"])
def test_other_files_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(content)
    with pytest.raises(ConfigError, match="was not written by"):
        read_rows(tmp_path / "in.json")
    with pytest.raises(ConfigError, match="No such file"):
        read_rows(tmp_path / "missing")
