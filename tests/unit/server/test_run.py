"""Taking the port."""

import os
import socket
import ssl
from pathlib import Path

import pytest

from radixlm.base.errors import ConfigError
from radixlm.config.groups import ServerConfig
from radixlm.server.run import Tls, bind

DATA = Path(__file__).parents[2] / "wire" / "data"
KEY, CERTIFICATE = str(DATA / "test-key.pem"), str(DATA / "test-cert.pem")


def test_a_free_port_is_taken_and_held():
    first = bind("127.0.0.1", 0)
    try:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port {port} is in use") as error:
            bind("127.0.0.1", port)
        assert f"pid {os.getpid()}" in str(error.value)
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
    finally:
        first.close()
    bind("127.0.0.1", port).close()


def test_an_address_that_is_not_ours():
    with pytest.raises(ConfigError, match="cannot listen on 203"):
        bind("203.0.113.1", 0)
    with pytest.raises(ConfigError, match="--host no-such-host"):
        bind("no-such-host.invalid", 0)


def test_tls_files():
    assert Tls.of(ServerConfig()) is None
    tls = Tls.of(ServerConfig(ssl_keyfile=KEY, ssl_certfile=CERTIFICATE))
    assert tls is not None and tls.verify is ssl.CERT_NONE
    mutual = Tls.of(ServerConfig(ssl_keyfile=KEY, ssl_certfile=CERTIFICATE, ssl_ca_certs=CERTIFICATE))
    assert mutual is not None and mutual.verify is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"ssl_keyfile": KEY}, "--ssl-keyfile and --ssl-certfile are needed together"),
        ({"ssl_keyfile": "/no/such", "ssl_certfile": CERTIFICATE}, "--ssl-keyfile /no/such: there is no such file"),
        ({"ssl_keyfile": KEY, "ssl_certfile": KEY}, "cannot be used"),
        ({"ssl_keyfile": KEY, "ssl_certfile": CERTIFICATE, "ssl_ca_certs": KEY}, "cannot be used"),
    ],
)
def test_tls_files_that_do_not_fit(files, complaint):
    with pytest.raises(ConfigError, match=complaint):
        Tls.of(ServerConfig(**files))
