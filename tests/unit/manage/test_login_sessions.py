"""Sessions of the web page: how long they last, and what ends them."""

from __future__ import annotations

import functools

import pytest

from broker.core.auth.password import argon2_hash
from broker.core.auth.users import User, Users
from broker.manage import login
from broker.manage.login import LoginSessions
from broker.settings.access import Http


@functools.cache
def hash_of(password: str) -> str:
    """Return the hash of a password; each is computed once, because it takes long."""
    return argon2_hash(password.encode(), b"a salt of octets")


class World:
    """Sessions of a user, with a clock that the test moves."""

    def __init__(self) -> None:
        self.users = Users([User("root", "toor")])
        self.users.put(User("ann", "", ("management",), hash_of("x")))
        self.now_s = 1000.0
        limits = Http(session_ms=60_000, session_idle_ms=10_000)
        self.sessions = LoginSessions(self.users, lambda: limits, lambda: self.now_s)

    def begin(self, name: str = "ann") -> str:
        """Begin a session."""
        user = self.users.get(name)
        assert user is not None
        return self.sessions.begin(user)

    def lasts(self, token: str) -> bool:
        """Return whether a session lasts, without using it."""
        return self.sessions.user(token, use=False) is not None


@pytest.fixture
def world() -> World:
    """Provide sessions."""
    return World()


def test_a_session_is_known_by_its_token_alone(world: World) -> None:
    """Each login has a token of its own, which says nothing about the user."""
    first, second = world.begin(), world.begin()
    assert first != second and len(first) >= 43
    found = world.sessions.user(first)
    assert found is not None and found.name == "ann"
    assert world.sessions.user(first + "x") is None and world.sessions.user("") is None
    assert not any(first.encode() in key for key in world.sessions._sessions)


def test_a_session_ends_after_a_while_without_a_request(world: World) -> None:
    """Requests keep it; looking whether it lasts does not."""
    token = world.begin()
    for _ in range(3):
        world.now_s += 9
        assert world.sessions.user(token) is not None
    world.now_s += 9
    assert world.lasts(token)
    world.now_s += 2
    assert not world.lasts(token) and len(world.sessions) == 0


def test_a_session_ends_in_the_end(world: World) -> None:
    """However often it is used, it lasts no longer than the limit."""
    token = world.begin()
    for _ in range(12):
        assert world.sessions.user(token) is not None
        world.now_s += 5
    assert world.sessions.user(token) is not None
    world.now_s += 1
    assert world.sessions.user(token) is None


@pytest.mark.parametrize("change", ["password", "tags", "deleted", "other"])
def test_a_session_ends_with_what_it_began_with(world: World, change: str) -> None:
    """Another password, other tags and a deleted user end the session, even if the old state comes back; limits do
    not.
    """
    token = world.begin()
    before = world.users.get("ann")
    assert before is not None
    if change == "password":
        world.users.put(User("ann", "", ("management",), hash_of("y")))
    elif change == "tags":
        world.users.set_tags("ann", ["administrator"])
    elif change == "deleted":
        world.users.delete("ann")
    else:
        world.users.set_limits("ann", {"max-connections": 3})
        assert world.lasts(token)
        return
    assert not world.lasts(token)
    world.users.put(before)
    assert not world.lasts(token)


def test_there_are_so_many_sessions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's oldest session makes room for the next, and the oldest of all where all have too many."""
    monkeypatch.setattr(login, "SESSIONS_USER_MAX", 2)
    monkeypatch.setattr(login, "SESSIONS_MAX", 3)
    first, second = world.begin(), world.begin()
    world.sessions.user(first)
    third = world.begin()
    assert [world.lasts(token) for token in (first, second, third)] == [True, False, True]
    others = [world.begin("root") for _ in range(2)]
    assert [world.lasts(token) for token in (first, third, *others)] == [False, True, True, True]
    assert len(world.sessions) == 3


def test_a_session_ends_when_it_is_ended(world: World) -> None:
    """The other sessions of the user continue; ending what is not a session does nothing."""
    first, second = world.begin(), world.begin()
    world.sessions.end(first)
    world.sessions.end("nonsense")
    assert not world.lasts(first) and world.lasts(second)
