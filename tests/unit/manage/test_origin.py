"""Requests that other sites' pages make a browser send."""

from __future__ import annotations

import socket
from contextlib import nullcontext

import pytest
from starlette.datastructures import Headers

from broker.core.auth.peer import Peer
from broker.manage.login import cookie_name, token_of
from broker.manage.origin import check_change, check_host
from broker.manage.refusal import HttpRefused

HERE = Peer("127.0.0.1", 1)


@pytest.mark.parametrize(
    "host",
    [
        "localhost:15672",
        "LocalHost",
        "localhost.",
        "mq.localhost:1",
        "127.0.0.1:15672",
        "127.1.2.3",
        "[::1]:15672",
        "192.0.2.1:15672",
        "[2001:db8::1]",
        socket.gethostname(),
        f"{socket.gethostname().upper()}:15672",
        "mq.example.com:15672",
        "",
    ],
)
def test_a_name_of_this_machine_passes(host: str) -> None:
    """Loopback names, the machine's own, those of the settings, and addresses, which no site can have as a name."""
    check_host(Headers({"host": host}), HERE, ["MQ.example.com"])


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:15672", "localhost.evil.example", "127.0.0.1.evil.example", "a:b:c", "x y:"]
)
def test_another_name_is_refused_on_this_machine(host: str) -> None:
    """421 names the setting; from other machines any name is right."""
    with pytest.raises(HttpRefused, match="add it to http") as caught:
        check_host(Headers({"host": host}), HERE, ["mq.example.com"])
    assert caught.value.status == 421
    check_host(Headers({"host": host}), Peer("192.0.2.7", 1), [])


OWN = {"origin": "http://broker"}


@pytest.mark.parametrize(
    ("by_cookie", "given", "passes"),
    [
        (False, {}, True),
        (False, OWN, True),
        (False, {"origin": "https://Broker"}, True),
        (False, {"origin": "http://broker:15672"}, False),
        (False, {"origin": "https://evil.example"}, False),
        (False, {"origin": "null"}, False),
        (True, {**OWN, "x-requested-with": "slotmq"}, True),
        (True, {**OWN, "x-requested-with": "XMLHttpRequest"}, False),
        (True, OWN, False),
        (True, {"x-requested-with": "slotmq"}, False),
    ],
)
def test_a_page_of_another_site_changes_nothing(by_cookie: bool, given: dict[str, str], passes: bool) -> None:
    """A browser adds stored passwords, so changes come from the broker's own origin, or from no page at all. A cookie
    alone proves nothing: the page's own header cannot be sent by a form, and Origin must be there.
    """
    headers = Headers({"host": "broker", **given})
    with nullcontext() if passes else pytest.raises(HttpRefused, check=lambda refused: refused.status == 403):
        check_change(headers, by_cookie=by_cookie)


def test_brokers_on_two_ports_have_two_cookies() -> None:
    """Browsers send a cookie to all ports of a host, so its name has the port."""
    one, other = Headers({"host": "localhost:15672"}), Headers({"host": "localhost:15673"})
    assert (cookie_name(one), cookie_name(other)) == ("slotmq_session_15672", "slotmq_session_15673")
    both = 'a="; b; slotmq_session_15672=one;slotmq_session_15673=two; slotmq_session=three'
    assert token_of(Headers({"host": "localhost:15673", "cookie": both})) == "two"
    assert token_of(Headers({"host": "localhost", "cookie": both})) == "three"
    assert token_of(Headers({"host": "localhost:1", "cookie": both})) is None
