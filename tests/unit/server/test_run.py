"""Taking the port."""

import os
import socket

import pytest

from radixlm.base.errors import ConfigError
from radixlm.server.run import bind


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
