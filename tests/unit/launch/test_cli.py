"""The `radixlm` command by itself."""

from importlib.metadata import version

import pytest

from radixlm.launch.cli import main


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"radixlm {version('radixlm')}\n"
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"{version('radixlm')}\n"


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bogus"]) == 2
    assert "unknown command '--bogus'" in capsys.readouterr().err
