"""What the libraries say of a grammar that they do not take, as one sentence of ours. Knows texts only."""

import re

from radixlm.grammar.base import GrammarError, GrammarUnsupported

_REGEX = "the regular expression"
_ANCHORED = f"{_REGEX} has anchors or word boundaries inside, which cannot be enforced"
_NOTHING = "it refers to itself without end, or allows nothing that this model can say"
_FRAME = re.compile(r"^at \d+\(\d+\): |^failed to compile JSON schema: |^invalid regex \".*\" \(in regex\): ")
_CARET = re.compile(r"^ {4}\S.*\n {4}( *)\^+\n", re.MULTILINE)
_CHECK = re.compile(r"^Check failed: |^\(.*?\) is false: |^Invalid structural tag error: ")
_EBNF_PLACE = re.compile(r"^EBNF (parser|lexer) error at line \d+, column \d+: ")


def of_llguidance(message: str) -> GrammarError:
    """Its messages say first where in its own text something is wrong, which is of no use to a client."""
    if "regex parse error" in message:
        return _of_rusts_regex(message)
    first = _without(_FRAME, _first_line(message))
    if "lookarounds not supported" in first:
        return GrammarUnsupported(_ANCHORED)
    if first.startswith("Unimplemented keys: "):
        return GrammarUnsupported(f"the schema has {first.removeprefix('Unimplemented keys: ')}, which is not enforced")
    if first.startswith("oneOf constraints are not supported"):
        return GrammarUnsupported("the schema has oneOf with branches that are not disjoint")
    if first.startswith("Resource '"):
        return GrammarError("the schema refers to another document")
    if first.startswith("Unsatisfiable schema: "):
        return GrammarError(f"no value follows the schema: {first.removeprefix('Unsatisfiable schema: ')}")
    return GrammarError(_NOTHING if first.isalnum() else first)  # one word is the library's name of a state


def of_xgrammar(message: str, is_ebnf: bool) -> GrammarError:
    """Its messages begin with a time and a source line; grammars that it makes itself have places of their own."""
    first = _first_line(message)
    _, separator, rest = first.partition(".cc:")
    reason = _without(_CHECK, rest.partition(": ")[2] if separator else first)
    return GrammarError(reason if is_ebnf else _EBNF_PLACE.sub("", reason))


def of_outlines(message: str) -> GrammarError:
    """It does not say where in a regular expression it has failed."""
    first = _first_line(message)
    if "unsupported regex feature" in first or "start state doesn't exist" in first:
        return GrammarUnsupported(_ANCHORED)
    if "error building NFA" in first:
        return GrammarError(f"{_REGEX} is not valid, or looks around or back")
    return GrammarError(first)


def _of_rusts_regex(message: str) -> GrammarError:
    what = next((line[7:] for line in message.splitlines() if line.startswith("error: ")), "it cannot be read")
    caret = _CARET.search(message)
    place = f" at position {len(caret.group(1)) + 1}" if caret is not None else ""
    if "not supported" in what:
        return GrammarUnsupported(f"{_REGEX} cannot be enforced{place}: {what}")
    return GrammarError(f"{_REGEX} is not valid{place}: {what}")


def _without(frame: re.Pattern[str], text: str) -> str:
    """`text` without any number of `frame` at its beginning."""
    while (found := frame.match(text)) is not None:
        text = text[found.end() :]
    return text


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else "it cannot be compiled"
