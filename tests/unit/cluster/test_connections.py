"""Where a node connects: names and texts without the password."""

from __future__ import annotations

import pytest

from broker.cluster.connections import ServerAddress


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:s3cret@db/x", "postgresql://u@db/x"),
        ("postgresql://u:s%2Fcret@a:1,b:2/x?sslmode=require", "postgresql://u@a:1,b:2/x?sslmode=require"),
        ("postgresql:///x?host=/run&password=s3cret&user=u", "postgresql:///x?host=/run&password=***&user=u"),
        ("postgresql://u@db/x?sslpassword=s3cret", "postgresql://u@db/x?sslpassword=***"),
        ("postgresql://u:s3@c/ret@db/x", "postgresql://u@db/x"),
        ("postgresql://db/x", "postgresql://db/x"),
        ("postgresql://db:5432/x", "postgresql://db:5432/x"),
    ],
)
def test_the_shown_url_has_no_password(url: str, shown: str) -> None:
    """Logs and errors name the database, its user and its options."""
    assert ServerAddress(url, "a").shown == shown


def test_no_reason_has_the_password() -> None:
    """A driver may quote the URL, or a part of it, decoded or not."""
    target = ServerAddress("postgresql://u:s%2Fcret@db/x?sslpassword=other", "a")
    assert target.reason(ValueError("bad\n s%2Fcret or  s/cret or other")) == "bad *** or *** or ***"


def test_a_node_of_the_usual_schema_is_named_by_its_name() -> None:
    """PostgreSQL lists the connections by it; it cuts names of more than 63 bytes, so that ours are not longer."""
    assert ServerAddress("", "a").application_name == "slotmq a"
    assert ServerAddress("", "a", "other").application_name == "slotmq a other"
    assert len(ServerAddress("", "ä" * 60).application_name.encode()) <= 63
