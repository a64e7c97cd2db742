"""The message headers of gpt-oss's harmony format, which its reasoning and its tool calls share."""

import re
from dataclasses import dataclass

from radixlm.parsers.reader import Read, Reader, Sink, Tags

BEGIN = Tags("<|start|>", "<|channel|>")
END = ("<|end|>", "<|return|>", "<|call|>")
MESSAGE = Tags("<|message|>")
_BODY_END = Tags(*END, "<|start|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


@dataclass(frozen=True)
class Header:
    """Where a message goes. `function` is the bare name of the function that is called, or None."""

    channel: str
    function: str | None


def header_of(text: str) -> Header:
    """Where a message with this header goes. The recipient may stand in the role's part or in the channel's."""
    channel = _CHANNEL.search(text)
    recipient = _RECIPIENT.search(text)
    name = channel.group(1) if channel else ""
    to = recipient.group(1) if recipient else ""
    calls = bool(to) and (name != "analysis" or to.startswith("functions."))
    return Header(name, to.rpartition(".")[2] if calls else None)


def read_body(reader: Reader, say: Sink) -> Read[str]:
    """Hand a message's text to `say`; the tag that ended it. A `<|start|>` ends a message that was not closed."""
    return (yield from reader.until(_BODY_END, say))
