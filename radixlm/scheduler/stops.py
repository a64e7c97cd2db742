"""Stop strings and stop patterns of one request, matched on bytes as tokens are committed. Knows no slot."""

from codecs import getincrementaldecoder
from collections.abc import Sequence

from radixlm.scheduler.regex import Pattern, Search


class StopMatcher:
    """Watches one request's output for its stop strings, then its patterns, each in the order given.

    A stop string may begin and end inside tokens, and inside a character. Per token the work is the token's bytes plus
    the longest stop string; patterns cost at most regex.MAX_STATES moves per character (see there for what they may
    contain). A pattern sees the text that the bytes decode to; bytes that are no UTF-8 are replacement characters.
    """

    def __init__(self, stop: Sequence[str], stop_regex: Sequence[str], token_bytes: Sequence[bytes]) -> None:
        """UnsupportedPattern for a pattern that cannot be searched in linear time."""
        self._stops = [(text, text.encode()) for text in stop if text]
        self._searches = [(source, Search(Pattern(source))) for source in stop_regex]
        self._token_bytes = token_bytes
        self._keep = max((len(raw) for _, raw in self._stops), default=1) - 1
        self._tail = b""
        self._decoder = getincrementaldecoder("utf-8")("replace") if self._searches else None

    def feed(self, token: int) -> str | None:
        """The stop string or pattern that the next output token completes, or None."""
        new = self._token_bytes[token] if token < len(self._token_bytes) else b""
        window = self._tail + new
        for text, raw in self._stops:
            if raw in window:
                return text
        self._tail = window[len(window) - self._keep :] if self._keep < len(window) else window
        if self._decoder is not None:
            text = self._decoder.decode(new)
            for source, search in self._searches:
                if search.feed(text):
                    return source
        return None
