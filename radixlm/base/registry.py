"""Registries of plug-ins: names, lazy targets and ranks. A registry knows no plug-in; importing it imports none.

A plug-in class answers `why_not(facts) -> list[str]`: the reasons it cannot serve those facts, empty when it can.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from radixlm.base.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One plug-in: `target` is "package.module:Attribute", resolved on use; "auto" prefers the higher `rank`."""

    name: str
    target: str
    rank: int = 0


@dataclass(frozen=True)
class Verdict:
    """What was decided about one candidate; `reasons` is empty for the one chosen and for those merely outranked."""

    name: str
    chosen: bool
    reasons: tuple[str, ...]


class Registry(Generic[T]):
    """An ordered table of plug-ins of one kind."""

    def __init__(self, kind: str, rows: Sequence[Row]) -> None:
        self.kind = kind
        self._rows = {row.name: row for row in rows}

    def names(self) -> list[str]:
        return list(self._rows)

    def load(self, name: str) -> T:
        """Import and return the plug-in called `name`; ConfigError names the known ones when there is none."""
        row = self._rows.get(name)
        if row is None:
            raise ConfigError(f"unknown {self.kind} {name!r}; known: {', '.join(self._rows)}")
        module, attribute = row.target.split(":")
        plugin: T = getattr(import_module(module), attribute)
        return plugin

    def choose(self, ask: str | None, why_not: Callable[[Any], list[str]]) -> tuple[T, list[Verdict]]:
        """The plug-in asked for, or with `ask` None or "auto" the highest-ranked one that has no reason against it.

        `why_not(plugin)` lists the reasons against a plug-in. ConfigError, with every reason, when nothing fits.
        """
        automatic = ask in (None, "auto")
        names = sorted(self._rows, key=lambda n: -self._rows[n].rank) if automatic else [str(ask)]
        verdicts: list[Verdict] = []
        chosen: T | None = None
        for name in names:
            plugin = self.load(name)
            reasons = tuple(why_not(plugin))
            take = chosen is None and not reasons
            if take:
                chosen = plugin
            verdicts.append(Verdict(name, take, reasons))
        if chosen is None:
            why = "; ".join(f"{v.name}: {', '.join(v.reasons)}" for v in verdicts)
            raise ConfigError(f"no {self.kind} fits: {why}")
        return chosen, verdicts
