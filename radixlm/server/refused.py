"""Request fields that are refused until they work: a 400 that names the field. Knows names and harmless values only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.server.exchange import decode


@dataclass(frozen=True)
class Refused:
    """A field. None, False, "" and empty lists or objects ask for nothing and pass, and so do the `harmless` values."""

    name: str
    harmless: tuple[Any, ...] = ()

    def asks_for_nothing(self, value: Any) -> bool:
        if value is None or value is False or value in ("", [], {}):
            return True
        if isinstance(value, list) and all(self.asks_for_nothing(item) for item in value):
            return True
        return any(value == harmless and type(value) is type(harmless) for harmless in self.harmless)


class Refusals:
    """The refused fields of one kind of body."""

    def __init__(self, rows: Sequence[Refused]) -> None:
        self.rows = tuple(rows)
        shape = msgspec.defstruct("RefusedFields", [(row.name, Any, None) for row in rows])
        self._decoder = msgspec.json.Decoder(shape)

    def check(self, body: bytes) -> None:
        """RequestError names the first field that asks for something not supported yet."""
        found = decode(body, self._decoder)
        for row in self.rows:
            if not row.asks_for_nothing(getattr(found, row.name)):
                raise RequestError(f"{row.name} is not supported yet", row.name)
