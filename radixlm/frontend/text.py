"""One choice's tokens to its text: append-only, safe for UTF-8, trimmed at stops. Knows no socket and no tokenizer.

Tokens become bytes, bytes become characters, and characters wait only while they may still turn out to belong to a
stop string. What has been given out is never taken back.
"""

from codecs import utf_8_decode
from collections import deque
from collections.abc import Sequence

from radixlm.protocol.messages import FinishReason, TextOptions


class StopMatcher:
    """Which suffix of the text may be the beginning of a stop string (Aho and Corasick, CACM 18(6), 1975).

    Time is proportional to the text, whatever the number and length of the stops.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        for stop in stops:
            node = 0
            for character in stop:
                node = self._child(node, character)
        self._fail = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for character, child in self._next[node].items():
                self._fail[child] = self._step(self._fail[node], character)
                queue.append(child)

    def _child(self, node: int, character: str) -> int:
        child = self._next[node].get(character)
        if child is None:
            child = len(self._next)
            self._next[node][character] = child
            self._next.append({})
            self._depth.append(self._depth[node] + 1)
        return child

    def _step(self, node: int, character: str) -> int:
        while True:
            child = self._next[node].get(character)
            if child is not None:
                return child
            if node == 0:
                return 0
            node = self._fail[node]

    def advance(self, state: int, text: str) -> int:
        """The state after `text`; 0 is the state of an empty text."""
        for character in text:
            state = self._step(state, character)
            while state and not self._next[state]:  # a whole stop is no proper prefix of one
                state = self._fail[state]
        return state

    def held(self, state: int) -> int:
        """How many of the last characters are the longest proper prefix of a stop that the text ends with."""
        return self._depth[state]


class TokenTable:
    """The bytes of each token, and which tokens are special; shared by all choices of one tokenizer."""

    def __init__(self, pieces: Sequence[bytes], special_ids: frozenset[int]) -> None:
        self._all = list(pieces)
        self._plain = [b"" if id_ in special_ids else piece for id_, piece in enumerate(pieces)]

    def bytes_of(self, tokens: Sequence[int], skip_special_tokens: bool) -> bytes:
        """The joined bytes; ids outside the vocabulary add nothing."""
        pieces = self._plain if skip_special_tokens else self._all
        size = len(pieces)
        return b"".join([pieces[token] for token in tokens if 0 <= token < size])


class TextPipeline:
    """The text of one choice. Feed it every token once, in order; the deltas joined are the whole text.

    The scheduler is the authority on whether and where a choice stops: a stop string is cut only when the choice has
    finished because of it, and its match ends inside the last token. A matched stop pattern (stop_regex) stays in
    the text, since most of it may have been delivered by then.
    """

    def __init__(self, table: TokenTable, options: TextOptions) -> None:
        self._table = table
        self._options = options
        self._matcher = StopMatcher(options.stop) if options.stop else None
        self._state = 0
        self._bytes = b""  # the beginning of a character, three bytes at most
        self._held = ""  # may be the beginning of a stop string

    def feed(self, tokens: Sequence[int], reason: FinishReason | None = None) -> str:
        """The text that has become certain by `tokens`; all that is left when `reason` says they are the last."""
        if reason is not None:
            return self._finish(tokens, reason)
        text = self._decode(tokens, final=False)
        if self._matcher is None:
            return text
        self._state = self._matcher.advance(self._state, text)
        text = self._held + text
        certain = len(text) - self._matcher.held(self._state)
        self._held = text[certain:]
        return text[:certain]

    def _finish(self, tokens: Sequence[int], reason: FinishReason) -> str:
        keep = self._options.no_stop_trim
        if isinstance(reason.matched, int) and not keep and tokens and tokens[-1] == reason.matched:
            tokens = tokens[:-1]
        before = self._held + self._decode(tokens[:-1], final=False)
        text = before + self._decode(tokens[-1:], final=True)
        if reason.type != "stop" or reason.matched not in self._options.stop:
            return text
        stop = str(reason.matched)
        at = text.find(stop, max(0, len(before) - len(stop) + 1))
        if at < 0:  # the scheduler saw it in text that is not shown, such as special tokens
            return text
        return text[: at + len(stop)] if keep else text[:at]

    def _decode(self, tokens: Sequence[int], final: bool) -> str:
        data = self._bytes + self._table.bytes_of(tokens, self._options.skip_special_tokens)
        text, used = utf_8_decode(data, "replace", final)
        self._bytes = data[used:]
        return text
