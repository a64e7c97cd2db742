"""Who may call a route: one table of keys × peer × level. Knows headers and addresses, not routes.

level   no key at all    api key           admin key           both
public  open             open              open                open
user    open             either key        open                either key
admin   loopback peers   api key           admin key           admin key
"""

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from radixlm.protocol.control import Level

LOOPBACK_ONLY = (
    "Forbidden: without --api-key or --admin-api-key this route answers loopback peers only; start the server with one "
    "of them to open it"
)


@dataclass(frozen=True)
class Denial:
    """A refusal: HTTP status and the `error` text."""

    status: int
    error: str


def header(scope: Mapping[str, Any], name: bytes) -> str | None:
    """The first value of a request header; `name` in lower case."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def _token(scope: Mapping[str, Any]) -> str:
    """The key in `Authorization: Bearer`, or where there is no such header in `x-api-key` (Anthropic's clients)."""
    given = header(scope, b"authorization")
    if given is None:
        return (header(scope, b"x-api-key") or "").strip()
    scheme, _, token = given.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _matches(token: str, keys: Iterable[str | None]) -> bool:
    """Whether `token` is one of the keys. Every key is compared, each in constant time."""
    given = token.encode()
    matches = [hmac.compare_digest(given, key.encode()) for key in keys if key]
    return True in matches


def _is_loopback_host(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_loopback(scope: Mapping[str, Any]) -> bool:
    """Whether the request comes from this machine, and not from a foreign page in a browser on it."""
    client = scope.get("client")
    if client is not None and not _is_loopback_host(client[0]):
        return False
    origin = header(scope, b"origin")
    return origin is None or _is_loopback_host(urlsplit(origin).hostname or "")


@dataclass(frozen=True)
class Gate:
    """The keys of one server."""

    api_key: str | None = None
    admin_api_key: str | None = None

    def check(self, scope: Mapping[str, Any], level: Level) -> Denial | None:
        """None when the request may pass."""
        if level == "public" or (level == "user" and not self.api_key):
            return None
        if not self.api_key and not self.admin_api_key:
            return None if is_loopback(scope) else Denial(403, LOOPBACK_ONLY)
        token = _token(scope)
        if level == "user":
            return None if _matches(token, (self.api_key, self.admin_api_key)) else Denial(401, "Unauthorized")
        if _matches(token, (self.admin_api_key or self.api_key,)):
            return None
        known = _matches(token, (self.api_key,))
        return Denial(403, "Forbidden: this route needs the admin key") if known else Denial(401, "Unauthorized")
