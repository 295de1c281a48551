"""The first user, which a new broker creates."""

from __future__ import annotations

import pytest

from broker.core.auth.first_user import create_first_user, is_guest_open
from broker.core.auth.password import ARGON2, SHA256
from broker.core.auth.permissions import KINDS, Permissions
from broker.core.auth.users import User, Users, prove
from broker.core.names import Resource


@pytest.mark.parametrize(("password", "algorithm"), [("guest", SHA256), ("s3cret", ARGON2)])
def test_it_is_an_administrator_with_all_rights_in_one_vhost(password: str, algorithm: str) -> None:
    """The first user is stored and can be changed and deleted. A password equal to the name gets a quick hash."""
    users = Users()
    permissions = Permissions(users)
    create_first_user(users, permissions, "guest", password, "shop")
    (user,) = users.listing()
    assert (user.name, user.tags, user.hashing_algorithm) == ("guest", ("administrator",), algorithm)
    assert prove(user, password.encode()) and not prove(user, b"other")
    assert all(permissions.allows(user, Resource("queue", "shop", "q"), kind) for kind in KINDS)
    assert not permissions.allows_vhost(user, "/")
    assert [user.name for user in users.listing()] == ["guest"]
    users.delete("guest")


def test_a_user_of_the_settings_is_not_made_again() -> None:
    """A user of the settings is not created again, because it has all rights anyway."""
    users = Users([User("guest", "other")])
    create_first_user(users, Permissions(users), "guest", "guest", "/")
    assert list(users.writing()) == []  # nobody is stored


@pytest.mark.parametrize(
    ("password", "loopback_only", "known"),
    [("guest", (), True), ("guest", ("guest",), False), ("s3cret", (), False)],
)
def test_a_guest_that_everybody_can_be_is_noticed(password: str, loopback_only: tuple[str, ...], known: bool) -> None:
    """The broker notices an open guest, whether guest is stored or comes from the settings."""
    users = Users()
    create_first_user(users, Permissions(users), "guest", password, "/")
    assert is_guest_open(users, loopback_only) is known
    assert is_guest_open(Users([User("guest", password)]), loopback_only) is known
    assert not is_guest_open(Users(), loopback_only)
