"""Checks of Origin and Host, so that pages of other sites cannot act through a user's browser.

A browser sends stored passwords and cookies with requests of foreign pages, too. Therefore a change through a browser
must come from the broker's own page. A foreign site can also resolve its name to the address of this machine (DNS
rebinding), and the browser then treats the broker as that site; so the Host of a request must be a known name.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection
from ipaddress import ip_address
from typing import Final

from starlette.datastructures import Headers

from broker.core.auth.peer import Peer, is_loopback
from broker.manage.refusal import HttpRefused

PAGE: Final = "slotmq"  # the page sends it as X-Requested-With; forms and links of other sites cannot
HOST: Final = re.compile(r"(\[[^\]]+\]|[^:]*)(?::(\d{0,5}))?")
LOCAL: Final = "localhost"


def check_host(headers: Headers, peer: Peer, hosts: Collection[str]) -> None:
    """Refuse a request from this machine if its Host may be the name of another site. `hosts` are further names of this
    machine. Raises: HttpRefused (421).
    """
    if not is_loopback(peer.address):
        return
    name = host_and_port(headers)[0]
    if name and not (is_own_name(name) or name in {host.lower() for host in hosts} or is_address(name)):
        raise HttpRefused(421, f"not a name of this machine: {name[:255]}; if it is one, add it to http.hosts")


def check_change(headers: Headers, *, by_cookie: bool) -> None:
    """Refuse a change that another site's page makes through a browser. Raises: HttpRefused (403)."""
    if is_foreign(headers):
        raise HttpRefused(403, "a page of another site may not change anything here")
    if by_cookie:
        check_page(headers)


def is_foreign(headers: Headers) -> bool:
    """Return whether a page of another site has sent the request."""
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()


def check_page(headers: Headers) -> None:
    """Refuse requests that are not from the broker's own page. Raises: HttpRefused (403)."""
    if headers.get("x-requested-with") != PAGE or "origin" not in headers:
        raise HttpRefused(403, f"a change with a session needs the headers Origin and X-Requested-With: {PAGE}")


def host_and_port(headers: Headers) -> tuple[str, str]:
    """Return the name and port in the Host header, each empty if missing. A malformed header is returned as a name."""
    found = HOST.fullmatch(headers.get("host", "").strip().lower())
    if found is None:
        return headers.get("host", "?")[:255], ""
    return found[1].strip("[]").removesuffix("."), found[2] or ""


def is_own_name(name: str) -> bool:
    """Return whether a host name is localhost or the name of this machine."""
    own = socket.gethostname().lower()
    return name == LOCAL or name.endswith(f".{LOCAL}") or name in (own, own.partition(".")[0])


def is_address(name: str) -> bool:
    """Return whether a name is an IP address."""
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
