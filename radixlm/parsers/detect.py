"""Which parsers a server uses: a name, or `auto` by what the chat template contains. Knows names, loads no model."""

from radixlm.base.errors import ConfigError
from radixlm.base.registry import Registry
from radixlm.parsers.reasoning.base import ReasoningFormat
from radixlm.parsers.reasoning.table import REASONING
from radixlm.parsers.tools.base import ToolFormat
from radixlm.parsers.tools.table import TOOL_CALLS

AUTO = "auto"


def reasoning_parser(ask: str | None, template: str) -> str | None:
    """The name in --reasoning-parser; for `auto` the first format whose signs are in `template`, None without any."""
    return ask if ask != AUTO else _first(REASONING, template)


def tool_call_parser(ask: str | None, template: str) -> str | None:
    """The name in --tool-call-parser; for `auto` the first format whose signs are in `template`, None without any."""
    return ask if ask != AUTO else _first(TOOL_CALLS, template)


def _first(table: Registry[ReasoningFormat] | Registry[ToolFormat], template: str) -> str | None:
    try:
        _, verdicts = table.choose(AUTO, lambda plugin: list(plugin.why_not(template)))
    except ConfigError:
        return None
    return next(verdict.name for verdict in verdicts if verdict.chosen)
