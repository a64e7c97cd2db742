"""`radixlm bench audit`: reads result files and says what makes them misleading. The rules are in audit_rules.py."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import msgspec

from radixlm.base.errors import ConfigError
from radixlm.benchmark.audit_rules import Finding, audit
from radixlm.benchmark.results import Result, read_results
from radixlm.config.commandline import Program, command
from radixlm.config.flags import flag


@dataclass(frozen=True)
class AuditOptions:
    """How it is told."""

    json: bool = flag(False, "JSON lines instead of text")


PROGRAM = Program(
    "audit",
    "Say what makes benchmark results misleading: files of ours, of SGLang or of vLLM. "
    "Exit status 1 when a number is wrong or misleading.",
    {"audit": AuditOptions},
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    found, files = PROGRAM.read_files(argv, "FILE ...")
    if not files:
        raise ConfigError("name a result file")
    bad = False
    for result in (result for path in files for result in read_results(path)):
        findings = audit(result)
        bad = bad or any(finding.severity != "note" for finding in findings)
        print(as_json(result, findings) if found["audit"].json else as_text(result, findings))
    return 1 if bad else 0


def as_json(result: Result, findings: Sequence[Finding]) -> str:
    """One line of JSON."""
    shown = {"where": result.where, "source": result.source, "findings": [asdict(finding) for finding in findings]}
    return msgspec.json.encode(shown).decode()


def as_text(result: Result, findings: Sequence[Finding]) -> str:
    """For people."""
    lines = [f"{result.where} ({result.source}, backend {result.backend}): {len(findings)} findings"]
    for finding in findings:
        lines.append(f"  {finding.severity.upper():<10} {finding.rule}: {finding.evidence}")
        lines.append(f"             do: {finding.advice}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
