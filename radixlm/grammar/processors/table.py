"""The logit processors by name: ours under SGLang's names, and those that installed packages register. Runs no code
of a request.

A package registers its own with an entry point in the group `radixlm.logit_processors`.
"""

from functools import cache
from importlib.metadata import entry_points

from radixlm.base.errors import ConfigError
from radixlm.base.registry import Registry, Row
from radixlm.grammar.base import GrammarError
from radixlm.grammar.processors.base import ProcessorMaker

GROUP = "radixlm.logit_processors"
_HERE = "radixlm.grammar.processors."
_BUDGETS = (
    "ThinkingBudgetLogitProcessor",
    "Qwen3ThinkingBudgetLogitProcessor",
    "DeepSeekR1ThinkingBudgetLogitProcessor",
    "Glm4MoeThinkingBudgetLogitProcessor",
)
OWN = (
    Row("DisallowedTokensLogitsProcessor", f"{_HERE}disallowed:DisallowedTokens"),
    *(Row(name, f"{_HERE}thinking:ThinkingBudget") for name in _BUDGETS),
)


@cache
def processors() -> Registry[ProcessorMaker]:
    """All that can be named. A registered name takes precedence over nothing: ours stay what they are."""
    own = {row.name for row in OWN}
    others = [Row(point.name, point.value) for point in entry_points(group=GROUP) if point.name not in own]
    return Registry("logit processor", [*OWN, *others])


def maker(name: str) -> ProcessorMaker:
    """What `name` stands for. GrammarError says what a name may be, also where code was sent in its place."""
    names = processors().names()
    if name.lstrip().startswith("{") or "callable" in name[:64]:
        raise GrammarError(f"serialized code is never run; name one of {', '.join(names)}")
    try:
        return processors().load(name)
    except (ConfigError, ImportError, AttributeError) as error:
        raise GrammarError(str(error)) from None
