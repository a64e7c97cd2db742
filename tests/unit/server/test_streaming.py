"""A stream's events: written within the call that brings them while the client keeps up, merged while it does not."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from radixlm.frontend.choice import ChoiceRequest, Update
from radixlm.server.exchange import CONNECTION, Exchange
from radixlm.server.generation import Transcript, generate
from tests.wire.fake_manager import FakeManager, Script
from tests.wire.serving import make_services


class Connection:
    """Takes pieces while `open`; everything sent, by whatever way, is in `sent` as (way, bytes)."""

    def __init__(self) -> None:
        self.open = True
        self.sent: list[tuple[str, bytes]] = []

    def writable(self) -> bool:
        return self.open

    def write_chunk(self, data: bytes) -> None:
        self.sent.append(("now", data))

    async def send(self, message: Any) -> None:
        while not self.open:
            await asyncio.sleep(0.001)
        if message["type"] == "http.response.body" and message["body"]:
            self.sent.append(("asgi", message["body"]))


class Words:
    """A view that shows texts as they come, and fails at "!"."""

    def events(self, transcript: Transcript, update: Update) -> Iterable[Any]:
        if "!" in update.text:
            raise ValueError("a view that fails")
        yield [transcript.index, update.text]

    def closing(self, transcripts: Sequence[Transcript]) -> Iterable[Any]:
        return ()

    def whole(self, transcripts: Sequence[Transcript]) -> Any:
        return [transcript.text for transcript in transcripts]


async def _receive() -> Any:
    await asyncio.Event().wait()


def streamed(manager: FakeManager, connection: Connection, choices: int, with_connection: bool = True) -> None:
    async def main() -> None:
        scope: dict[str, Any] = {"type": "http", "method": "POST", "headers": [], "query_string": b""}
        if with_connection:
            scope[CONNECTION] = connection
        exchange = Exchange(scope, _receive, connection.send, make_services(manager))
        requests = [ChoiceRequest(text="x", stream=True) for _ in range(choices)]
        await asyncio.wait_for(generate(exchange, requests, Words(), True), 10)

    asyncio.run(main())


def texts(connection: Connection, index: int) -> str:
    body = b"".join(data for _, data in connection.sent).decode()
    events = [parsed(part) for part in body.split("data: ")[1:] if not part.startswith("[DONE]")]
    return "".join(text for place, text in events if place == index)


def parsed(part: str) -> tuple[int, str]:
    place, _, text = part.strip()[1:-1].partition(",")
    return int(place), text.strip('"')


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("with_connection", [True, False])
def test_all_ways_give_the_same_stream(choices: int, with_connection: bool) -> None:
    manager, connection = FakeManager(), Connection()
    manager.script = lambda request: Script([f"w{number} " for number in range(20)], pause_s=0.001)
    streamed(manager, connection, choices, with_connection)
    expected = "".join(f"w{number} " for number in range(20))
    assert [texts(connection, index) for index in range(choices)] == [expected] * choices
    ways = [way for way, _ in connection.sent]
    assert ways[0] == "asgi" and ways[-1] == "asgi"  # what begins the answer, and what ends it
    assert (ways.count("now") >= 10) == with_connection


def test_what_a_slow_client_has_not_taken_is_merged_and_in_order() -> None:
    manager, connection = FakeManager(), Connection()

    class Closing(Words):
        def events(self, transcript: Transcript, update: Update) -> Iterable[Any]:
            if update.text == "w5 ":
                connection.open = False
                asyncio.get_running_loop().call_later(0.05, setattr, connection, "open", True)
            return super().events(transcript, update)

    async def main() -> None:
        scope = {"type": "http", "method": "POST", "headers": [], "query_string": b"", CONNECTION: connection}
        exchange = Exchange(scope, _receive, connection.send, make_services(manager))
        await asyncio.wait_for(generate(exchange, [ChoiceRequest(text="x", stream=True)], Closing(), True), 10)

    manager.script = lambda request: Script([f"w{number} " for number in range(30)], pause_s=0.002)
    asyncio.run(main())
    assert texts(connection, 0) == "".join(f"w{number} " for number in range(30))
    assert len(connection.sent) < 30


def test_a_view_that_fails_ends_its_own_stream_only() -> None:
    manager, connection = FakeManager(), Connection()
    manager.script = lambda request: Script(["a", "b", "!", "c"], pause_s=0.001)
    with pytest.raises(ValueError, match="a view that fails"):
        streamed(manager, connection, 1)
    assert texts(connection, 0) == "ab" and len(manager.aborted) == 1
