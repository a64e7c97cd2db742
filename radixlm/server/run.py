"""The HTTP server around an application: bind first, serve later, stop gracefully. Knows uvicorn, not the routes."""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import psutil
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from radixlm.base.errors import ConfigError
from radixlm.config.groups import ServerConfig
from radixlm.server.access import ACCESS_LOGGER
from radixlm.server.exchange import CONNECTION

TIMEOUT_KEEP_ALIVE_S = 5
BACKLOG = 2048


def _holder(port: int) -> str:
    """ " by name (pid 123)", where the system tells who listens on the port."""
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if listens and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.Error, OSError):
        return ""
    return ""


def bind(host: str, port: int) -> socket.socket:
    """A bound and listening TCP socket; make it before anything heavy starts (early callers wait in its backlog).

    Port 0 takes any free one. ConfigError names the port and who holds it, or the address that is not ours.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"--host {host}: {error.strerror}") from None
    bound = socket.socket(family, kind, proto)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"--port {port} is in use{_holder(port)}; choose another one or stop it") from None
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    bound.setblocking(False)
    return bound


@dataclass(frozen=True)
class Tls:
    """Files of a server that speaks HTTPS, in PEM. With `ca_certs`, clients must show a certificate of one of these."""

    keyfile: str
    certfile: str
    ca_certs: str | None = None
    password: str | None = None

    @staticmethod
    def of(config: ServerConfig) -> "Tls | None":
        """None without TLS. ConfigError names the flag whose file is missing or does not fit."""
        key, certificate = config.ssl_keyfile, config.ssl_certfile
        if key is None and certificate is None:
            return None
        if key is None or certificate is None:
            raise ConfigError("--ssl-keyfile and --ssl-certfile are needed together")
        for flag, path in (("keyfile", key), ("certfile", certificate), ("ca-certs", config.ssl_ca_certs)):
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"--ssl-{flag} {path}: there is no such file")
        tls = Tls(key, certificate, config.ssl_ca_certs, config.ssl_keyfile_password)
        tls.check()
        return tls

    def check(self) -> None:
        """ConfigError when the files cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certfile, self.keyfile, lambda: self.password or "")
            if self.ca_certs is not None:
                context.load_verify_locations(self.ca_certs)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(f"the TLS files cannot be used: {error}") from None

    @property
    def verify(self) -> ssl.VerifyMode:
        """Whether clients must show a certificate."""
        return ssl.CERT_NONE if self.ca_certs is None else ssl.CERT_REQUIRED


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: the launcher owns signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Connection(HttpToolsProtocol):
    """uvicorn's protocol, which also is what an Exchange writes to without waiting."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]

    def writable(self) -> bool:
        return not self.flow.write_paused and not self.transport.is_closing()

    def write_chunk(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class HttpServer:
    """Serves `app` on a socket from `bind`. `log_level` is for the HTTP side alone: uvicorn and the access log.

    `root_path` is the prefix that a proxy in front has taken off.
    """

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        log_level: str = "info",
        root_path: str = "",
        tls: Tls | None = None,
    ) -> None:
        level = log_level.upper()
        logging.getLogger(ACCESS_LOGGER).setLevel(level)
        logging.getLogger("uvicorn").setLevel(level)
        self._listener = listener
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                http=_Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=log_level.lower(),
                access_log=False,
                server_header=False,
                timeout_keep_alive=TIMEOUT_KEEP_ALIVE_S,
                backlog=BACKLOG,
                root_path=root_path,
                ssl_keyfile=tls.keyfile if tls else None,
                ssl_certfile=tls.certfile if tls else None,
                ssl_keyfile_password=tls.password if tls else None,
                ssl_ca_certs=tls.ca_certs if tls else None,
                ssl_cert_reqs=tls.verify if tls else ssl.CERT_NONE,
            )
        )

    @property
    def started(self) -> bool:
        """Whether connections are accepted."""
        return self._server.started

    async def serve(self) -> None:
        """Serve until `stop`, then until the open requests are answered."""
        await self._server.serve(sockets=[self._listener])

    def stop(self, force: bool = False) -> None:
        """Take no new connections and let `serve` return; with `force` it does not wait for open requests."""
        self._server.should_exit = True
        self._server.force_exit = self._server.force_exit or force


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """For asyncio.Runner: uvloop's loop where it is installed, otherwise asyncio's."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory
