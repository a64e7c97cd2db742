"""Server-sent events out of a byte stream cut at arbitrary places. Knows nothing of JSON or of HTTP."""


class SseParser:
    """Incremental parser for `text/event-stream`; yields the data of each event, as bytes, once it is complete.

    Lines may end in LF, CRLF or CR. Comments and fields other than `data` are ignored; several data lines of one event
    are joined by LF. Work is linear in the bytes fed, however they are cut.
    """

    __slots__ = ("_held_cr", "_pending", "_scanned")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._scanned = 0
        self._held_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """The events completed by `data`, oldest first."""
        if self._held_cr or b"\r" in data:
            data = self._only_lf(data)
        whole = not self._pending and data.endswith(b"\n\n")
        blocks = data.split(b"\n\n") if whole else self._complete_blocks(data)
        events = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(block[6:])
            elif (event := _event_of(block)) is not None:
                events.append(event)
        return events

    def finish(self) -> list[bytes]:
        """The event left at the end of the stream without its closing blank line, if there is one."""
        self._held_cr = False
        event = _event_of(bytes(self._pending))
        self._pending.clear()
        self._scanned = 0
        return [] if event is None else [event]

    def _complete_blocks(self, data: bytes) -> list[bytes]:
        pending = self._pending
        pending += data
        end = pending.rfind(b"\n\n", self._scanned)
        if end < 0:
            self._scanned = max(len(pending) - 1, 0)  # the last byte may be half of the blank line
            return []
        blocks = bytes(pending[:end]).split(b"\n\n")
        del pending[: end + 2]
        self._scanned = max(len(pending) - 1, 0)
        return blocks

    def _only_lf(self, data: bytes) -> bytes:
        """CR and CRLF become LF. A CR at the end is held back: the LF that belongs to it may come next."""
        if self._held_cr:
            data = b"\r" + data
        self._held_cr = data.endswith(b"\r")
        if self._held_cr:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _event_of(block: bytes) -> bytes | None:
    """The data of one block of lines, or None when it has no data line."""
    lines = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value[1:] if value.startswith(b" ") else value)
    return b"\n".join(lines) if lines else None
