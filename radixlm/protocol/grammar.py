"""What one request's answer must look like, as it travels to the scheduler process. Knows no grammar backend."""

from typing import Any, Literal

import msgspec

Kind = Literal["json_schema", "regex", "ebnf", "structural_tag"]
KINDS: tuple[Kind, ...] = ("json_schema", "regex", "ebnf", "structural_tag")


class Thinking(msgspec.Struct, frozen=True, array_like=True):
    """How the answer is told from the thinking before it.

    closer: the answer begins after this text. opener: thinking begins with it. inside: the output begins inside
    thinking; otherwise it may begin with the opener, or with the answer at once.
    """

    closer: str
    opener: str = ""
    inside: bool = True


class ProcessorCall(msgspec.Struct, frozen=True, array_like=True):
    """A logit processor by its registered name, what the request tells it, and how thinking is told from the answer."""

    name: str
    params: dict[str, Any] = {}
    thinking: Thinking | None = None


class GrammarSpec(msgspec.Struct, frozen=True, array_like=True):
    """What the host decides of a request's next tokens: `kind` and `text` of a grammar, a processor, or both.

    text: the JSON schema, regular expression, EBNF or structural tag as the client wrote it; "" with kind None. With
    `thinking` the grammar begins where the answer does. field: the request's field to blame when it cannot be used.
    """

    kind: Kind | None = None
    text: str = ""
    thinking: Thinking | None = None
    processor: ProcessorCall | None = None
    field: str | None = None
