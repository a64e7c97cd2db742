"""The HTTP client against scripted servers: reuse, stale connections, bodies of every framing, cut answers."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from radixlm.base.errors import ConfigError
from radixlm.benchmark.http1 import HttpClient, HttpFailure, Target, target_of

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def against(handler: Handler, client_part: Callable[[HttpClient], Awaitable[object]]) -> object:
    """Run `client_part` against a server of `handler`; the result is what it returned."""

    async def main() -> object:
        writers: list[asyncio.StreamWriter] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await handler(reader, writer)

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        client = HttpClient(Target("127.0.0.1", server.sockets[0].getsockname()[1]))
        try:
            return await client_part(client)
        finally:
            client.close()
            server.close()
            for writer in writers:
                writer.close()

    return asyncio.run(main())


async def read_request(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def test_connections_are_kept_and_reused() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.read(1000):
            writer.write(OK)

    async def fetch_twice(client: HttpClient) -> list[tuple[int, bytes]]:
        return [await client.fetch("GET", "/", 5), await client.fetch("GET", "/", 5)]

    assert against(serve, fetch_twice) == [(200, b"ok"), (200, b"ok")]
    assert connections == 1


def test_a_connection_the_server_dropped_is_replaced_unseen() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(OK)
        if connections == 1:
            await read_request(reader)  # takes the second request, and drops it without a word
            writer.close()

    async def fetch_twice(client: HttpClient) -> list[tuple[int, bytes]]:
        return [await client.fetch("GET", "/", 5), await client.fetch("GET", "/", 5)]

    assert against(serve, fetch_twice) == [(200, b"ok"), (200, b"ok")]
    assert connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n",
        b"HTTP/1.1 200 \r\nContent-Length: 5\r\nConnection: close\r\n\r\nabcde",
        b"HTTP/1.1 200 OK\r\n\r\nabcde",
        b"HTTP/1.0 200 OK\r\n\r\nabcde",
    ],
)
def test_body_framings_in_single_bytes(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for byte in answer:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        if b"chunked" not in answer:
            writer.close()

    assert against(serve, lambda client: client.fetch("GET", "/", 5)) == (200, b"abcde")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "connection closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Len", "connection closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "connection closed"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "connection closed"),
        (b"SSH-2.0-OpenSSH_9\r\n", "not HTTP"),
    ],
)
def test_broken_answers_fail(answer: bytes, error: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        writer.close()

    with pytest.raises(HttpFailure, match=error):
        against(serve, lambda client: client.fetch("GET", "/", 5))


def test_silence_ends_by_the_clock() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    with pytest.raises(HttpFailure, match=r"within 0\.1 s"):
        against(serve, lambda client: client.fetch("GET", "/", 0.1))


def test_a_refused_connection_names_the_server() -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(HttpFailure, match=f"cannot connect to http://127.0.0.1:{port}"):
            await HttpClient(Target("127.0.0.1", port)).fetch("GET", "/", 5)

    asyncio.run(main())


def test_targets() -> None:
    assert target_of("http://0.0.0.0:30000", {}) == Target("127.0.0.1", 30000)
    assert target_of("https://example.org/v/", {}) == Target("example.org", 443, True, "/v")
    assert target_of("http://localhost:80", {}).url == "http://localhost:80"
    request = target_of("http://[::1]:5/p", {"A": "b"}).request("POST", "/x", b"{}")
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[:3] == [b"POST /p/x HTTP/1.1", b"Host: [::1]:5", b"A: b"]
    assert b"Content-Length: 2" in lines and body == b"{}"
    for url, extra in (
        ("ftp://x", {}),
        ("http://", {}),
        ("localhost:80", {}),
        ("http://x:99999", {}),
        ("http://[::1", {}),
        ("http://x", {"A": "b\r\nC: d"}),
    ):
        with pytest.raises(ConfigError):
            target_of(url, extra)
