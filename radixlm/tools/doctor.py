"""`radixlm doctor [MODEL]`: looks at this machine as the server would, and says what is wrong in one row each."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from radixlm.base.errors import ConfigError
from radixlm.config.cli import read_serve, split
from radixlm.config.groups import Config
from radixlm.tools import checks
from radixlm.tools.checks import Check

MARKS = {"ok": "ok", "warn": "WARN", "fail": "FAIL", "skip": "-"}


def build_parser() -> argparse.ArgumentParser:
    """What is doctor's own; all else goes to the parser of `radixlm serve`."""
    parser = argparse.ArgumentParser(
        prog="radixlm doctor",
        usage="radixlm doctor [MODEL] [options] [options of radixlm serve]",
        description="Check environment, driver, kernels, memory, disk and port, and a model's files when it is named.",
        allow_abbrev=False,
    )
    parser.add_argument("--skip-kernels", action="store_true", help="do not compile and run kernels")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Exit 0: nothing failed; 1: something did; 2: the command line is wrong."""
    own, rest = build_parser().parse_known_args(argv)
    try:
        named = _names_model(rest)
        config = read_serve(rest if named else ["demo", *rest])
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    failed = False
    for check in every(config, named, not own.skip_kernels):
        failed = failed or check.status == "fail"
        print(json.dumps(asdict(check)) if own.json else as_text(check), flush=True)
    return int(failed)


def _names_model(words: Sequence[str]) -> bool:
    given = split(words)
    return bool(given.positional or given.files or "model_path" in given.working)


def every(config: Config, with_model: bool, with_kernels: bool) -> Iterator[Check]:
    """All checks, in the order in which their failures explain each other."""
    yield from checks.environment()
    yield from checks.host()
    yield from checks.disk()
    yield from checks.driver()
    if with_kernels:
        yield from checks.kernels()
    yield from checks.port(config.server.port, config.server.host)
    if with_model:
        yield from checks.model(config)


def as_text(check: Check) -> str:
    """One row, and under it what to do."""
    row = f"{MARKS[check.status]:<5} {check.name:<22} {check.detail}"
    return f"{row}\n{'':<28} do: {check.advice}" if check.advice and check.status in ("warn", "fail") else row


if __name__ == "__main__":
    sys.exit(main())
