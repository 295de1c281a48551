"""Settings of users and of TLS that depend on each other."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from broker.settings import Settings
from broker.settings.access import Auth


@pytest.mark.parametrize(
    ("auth", "begins"),
    [
        ({}, True),
        ({"users": {"alice": "x"}}, False),
        ({"users": {"alice": "x"}, "default_user": "bob", "default_pass": "y"}, True),
        ({"users": {"alice": "x"}, "default_pass": "y"}, True),
        ({"default_user": ""}, False),
    ],
)
def test_a_first_user_is_made_when_it_is_asked_for_or_there_is_no_other(auth: dict[str, Any], begins: bool) -> None:
    """A first user is created if the settings ask for it or name no user, so guest does not join named users."""
    assert Auth(**auth).begins_with_default_user is begins


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"auth": {"default_user": "alice"}}, "default_pass is not"),
        ({"auth": {"default_pass": ""}}, "default_pass is empty"),
        ({"auth": {"mechanisms": []}}, "at least 1 item"),
        ({"auth": {"mechanisms": ["CRAM-MD5"]}}, "'PLAIN', 'AMQPLAIN' or 'EXTERNAL'"),
        ({"tls": {"keyfile": "key.pem"}}, "certfile is missing"),
        ({"tls": {"verify": "peer"}}, "certfile is missing"),
        ({"tls": {"port": 5671}}, "certfile is missing"),
        ({"tls": {"port": 5690, "certfile": ""}}, "certfile is missing"),
        ({"tls": {"min_version": "1.3"}}, "certfile is missing"),
        ({"overlay": {"exchanges": ["x"]}}, "exchanges is set and there is no"),
        ({"tls": {"certfile": "cert.pem", "verify": "peer"}}, "needs cafile"),
        ({"server": {"port": 7}, "tls": {"certfile": "cert.pem", "port": 7}}, "tls.port and server.port are both 7"),
        ({"tls": {"certfile": "cert.pem", "min_version": "1.1"}}, "'1.2' or '1.3'"),
    ],
)
def test_what_would_be_less_than_was_asked_for_is_refused(sections: dict[str, Any], reason: str) -> None:
    """Settings that would silently weaken security, such as an unchecked certificate, are refused."""
    with pytest.raises(ValidationError, match=reason):
        Settings(**sections)
