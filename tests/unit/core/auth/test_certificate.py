"""Names in certificates."""

from __future__ import annotations

import pytest

from broker.core.auth.peer import distinguished_name, login_name


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (((("countryName", "DE"),), (("commonName", "a"),)), "CN=a,C=DE"),
        (((("commonName", "a"), ("userId", "7")),), "CN=a+UID=7"),
        (((("commonName", ' a,b+"c"\\<d>; '),),), 'CN=\\ a\\,b\\+\\"c\\"\\\\\\<d\\>\\;\\ '),
        (((("commonName", "#a"),),), "CN=\\#a"),
        (((("1.2.3.4", "a"),),), "1.2.3.4=a"),
        ((), ""),
    ],
)
def test_a_distinguished_name_is_written_as_rabbitmq_writes_it(subject: tuple, text: str) -> None:
    """A distinguished name follows RFC 4514: most specific part first, with a backslash before special characters."""
    assert distinguished_name(subject) == text


def test_a_certificate_without_the_name_that_is_asked_for_has_none() -> None:
    """A certificate that lacks the configured name yields no name; no other name replaces it."""
    assert login_name({"subject": ((("organizationName", "a"),),)}, "common_name") is None
    assert login_name({"subject": ((("commonName", ""),),)}, "common_name") is None
    assert login_name({"subject": ((("commonName", "a"),),)}, "subject_alternative_name") is None
    assert login_name({}, "distinguished_name") is None
