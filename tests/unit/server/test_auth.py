"""The table of keys × peer × level."""

import pytest

from radixlm.server.auth import Gate, is_loopback


def scope(client="203.0.113.9", token=None, origin=None):
    headers = []
    if token is not None:
        headers.append((b"authorization", token.encode()))
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    return {"client": (client, 5000) if client else None, "headers": headers}


NO_KEY, USER_KEY, ADMIN_KEY, BOTH = Gate(), Gate("user-key"), Gate(None, "admin-key"), Gate("user-key", "admin-key")


@pytest.mark.parametrize(
    ("gate", "level", "token", "status"),
    [
        (NO_KEY, "public", None, None),
        (NO_KEY, "user", None, None),
        (NO_KEY, "admin", None, 403),
        (USER_KEY, "public", None, None),
        (USER_KEY, "user", None, 401),
        (USER_KEY, "user", "Bearer wrong", 401),
        (USER_KEY, "user", "Basic user-key", 401),
        (USER_KEY, "user", "bearer user-key", None),
        (USER_KEY, "admin", "Bearer user-key", None),
        (USER_KEY, "admin", None, 401),
        (ADMIN_KEY, "user", None, None),
        (ADMIN_KEY, "admin", None, 401),
        (ADMIN_KEY, "admin", "Bearer admin-key", None),
        (BOTH, "user", "Bearer user-key", None),
        (BOTH, "user", "Bearer admin-key", None),
        (BOTH, "user", "Bearer ", 401),
        (BOTH, "admin", "Bearer user-key", 403),
        (BOTH, "admin", "Bearer admin-key", None),
        (BOTH, "admin", "Bearer schlüssel", 401),
    ],
)
def test_table(gate, level, token, status):
    denial = gate.check(scope(token=token), level)
    assert (denial.status if denial else None) == status


@pytest.mark.parametrize(
    ("own", "bearer", "passes"),
    [
        ("user-key", None, True),
        ("wrong", None, False),
        ("user-key", "Bearer wrong", False),
        ("wrong", "Bearer user-key", True),
    ],
)
def test_anthropics_header_counts_where_there_is_no_other(own, bearer, passes):
    asked = scope(token=bearer)
    asked["headers"].append((b"x-api-key", own.encode()))
    assert (USER_KEY.check(asked, "user") is None) == passes


@pytest.mark.parametrize(
    ("client", "origin", "local"),
    [
        ("127.0.0.1", None, True),
        ("127.8.8.8", None, True),
        ("::1", None, True),
        ("::ffff:127.0.0.1", None, True),
        (None, None, True),
        ("10.0.0.1", None, False),
        ("::ffff:10.0.0.1", None, False),
        ("not an address", None, False),
        ("127.0.0.1", "http://localhost:3000", True),
        ("127.0.0.1", "http://[::1]:3000", True),
        ("127.0.0.1", "https://evil.example", False),
        ("127.0.0.1", "null", False),
    ],
)
def test_loopback(client, origin, local):
    assert is_loopback(scope(client, origin=origin)) is local
    assert (NO_KEY.check(scope(client, origin=origin), "admin") is None) is local


def test_the_refusal_names_the_flag():
    denial = NO_KEY.check(scope(), "admin")
    assert denial is not None and "--api-key" in denial.error
