"""What a request demands of its answer's form, checked and put together for the scheduler. Knows no backend."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.frontend import checks
from radixlm.frontend.checks import Check
from radixlm.frontend.choice import ChoiceRequest
from radixlm.grammar.limits import why_refused
from radixlm.protocol.grammar import KINDS, GrammarSpec, Kind, ProcessorCall

MOST_PARAMS_BYTES = 64 * 1024
MOST_NAME_CHARS = 1 << 20  # what SGLang's clients send in place of a name is long, and is refused by its content


@dataclass(frozen=True)
class Constraint:
    """A grammar as the client wrote it."""

    kind: Kind
    text: str


def _grammar(kind: Kind) -> Check:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise RequestError(f"{name} must be a string, got {checks.shown(value)}", name)
        problem = why_refused(kind, value) if value else None
        if problem is not None:
            raise RequestError(problem, name)
        return value

    return check


def _params(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise RequestError(f"{name} must be an object, got {checks.shown(value)}", name)
    for key, item in value.items():
        parts = item.values() if isinstance(item, dict) else item if isinstance(item, list) else (item,)
        if any(isinstance(part, dict | list) for part in parts):
            raise RequestError(f"{name}.{key} must be a value, a flat list or a flat object", name)
    if len(msgspec.json.encode(value)) > MOST_PARAMS_BYTES:
        raise RequestError(f"{name} has more than {MOST_PARAMS_BYTES} bytes", name)
    return value


CONSTRAINT_FIELDS: dict[str, Check] = {**{kind: _grammar(kind) for kind in KINDS}, "custom_params": _params}


def constraint_of(values: Mapping[str, Any]) -> Constraint | None:
    """The one grammar in checked sampling parameters; "" counts as none. RequestError for more than one."""
    given = [Constraint(kind, values[kind]) for kind in KINDS if values.get(kind)]
    if len(given) > 1:
        message = "Only one of json_schema, regex, ebnf, or structural_tag can be set."
        raise RequestError(message, given[1].kind)
    return given[0] if given else None


def grammar_of(
    request: ChoiceRequest, constraint: Constraint | None, custom_params: Mapping[str, Any]
) -> GrammarSpec | None:
    """What the scheduler process has to know; None for a request whose next tokens are free."""
    name = request.processor
    if name is None and constraint is None:
        return None
    if name is not None and len(name) > MOST_NAME_CHARS:
        raise RequestError("custom_logit_processor is too long for a name", "custom_logit_processor")
    processor = None if name is None else ProcessorCall(name, dict(custom_params), request.thinking)
    if constraint is None:
        return GrammarSpec(processor=processor, field="custom_logit_processor")
    thinking = None if request.answer_at_once else request.thinking
    return GrammarSpec(constraint.kind, constraint.text, thinking, processor, request.grammar_field or constraint.kind)
