"""Users: from the settings, added, changed, deleted and read from definitions."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from hashlib import md5, sha256, sha512
from typing import Any

import pytest
from argon2 import low_level

from broker.core.auth import password as passwords
from broker.core.auth.password import ARGON2, SHA256, check_hash, matches
from broker.core.auth.users import PROVEN_MAX, PROVEN_S, User, Users, prove, user_of

SALT = b"\x90\x8d\xc6\x0a"
# RabbitMQ's own example, from its documentation on passwords: "test12" with this salt.
DOCUMENTED = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


def right(users: Users, name: str, password: bytes) -> bool:
    """Return whether the password is right, whatever the check costs."""
    return users.knows(name, password) or prove(users.get(name), password)


def test_an_added_user_logs_in_with_its_password_and_no_other() -> None:
    """A new password is stored as its argon2id hash, and no other password logs in."""
    users = Users()
    user = users.add("alice", "s3cret", ["monitoring", " management ", "monitoring"])
    assert user.password_hash.startswith("$argon2id$")
    assert user.tags == ("monitoring", "management")
    assert right(users, "alice", b"s3cret") and not right(users, "alice", b"S3cret")
    assert "s3cret" not in repr(user) and user.password_hash not in repr(user)


def test_a_proven_password_costs_no_second_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proven password is cached until it changes."""
    users = Users()
    users.put(user_of({"name": "alice", "password": "old"}))
    user = users.get("alice")
    assert user is not None and not users.knows("alice", b"old")
    assert prove(user, b"old")
    users.remember(user, b"old")
    monkeypatch.setattr(passwords, "verify_secret", None)
    assert users.knows("alice", b"old") and not users.knows("alice", b"new")
    users.put(user_of({"name": "alice", "password": "new"}))
    assert not users.knows("alice", b"old")


def test_a_proven_password_is_forgotten() -> None:
    """After an hour, and when the user is changed in between, though the hash is the former one again."""
    now = [0.0]
    users = Users(now_s=lambda: now[0])
    documented = User("alice", password_hash=DOCUMENTED, hashing_algorithm=SHA256)

    def proven(change: Callable[[], None]) -> bool:
        users.put(documented)
        users.remember(documented, b"test12")
        change()
        users.put(documented)
        return users.knows("alice", b"test12")

    assert proven(lambda: users.set_tags("alice", ["monitoring"]))
    assert not proven(lambda: users.delete("alice"))
    assert not proven(lambda: users.set_password("alice", ""))
    assert proven(lambda: now.append(now.pop() + PROVEN_S - 1))
    assert not proven(lambda: now.append(now.pop() + PROVEN_S))


def test_proven_passwords_are_bounded() -> None:
    """The one that was proven the longest time ago is forgotten."""
    users = Users()
    for number in range(PROVEN_MAX + 1):
        user = User(f"user{number}", password_hash=DOCUMENTED, hashing_algorithm=SHA256)
        users.put(user)
        users.remember(user, b"test12")
    assert [users.knows(f"user{number}", b"test12") for number in (0, 1, PROVEN_MAX)] == [False, True, True]


def test_whoever_is_turned_away_waited_for_one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every refusal costs one hash: unknown users, users of the settings, without a password and with a quick hash."""
    users = Users([User("configured", "plain")])
    users.put(user_of({"name": "slow", "password": "x"}))
    users.put(user_of({"name": "quick", "password_hash": DOCUMENTED}))
    users.put(user_of({"name": "locked", "password_hash": ""}))
    computed: list[str] = []
    verify = low_level.verify_secret

    def counted(*arguments: Any) -> bool:
        computed.append("argon2")
        return verify(*arguments)

    monkeypatch.setattr(passwords, "verify_secret", counted)
    for name in ("configured", "slow", "quick", "locked", "nobody"):
        computed.clear()
        assert not right(users, name, b"wrong")
        assert computed == ["argon2"], name


@pytest.mark.parametrize("password", [b"", b"x"])
def test_nobody_logs_in_without_a_password(password: bytes) -> None:
    """A user with an empty hash cannot log in."""
    users = Users([User("configured", "")])
    users.add("empty", "")
    assert not any(right(users, name, password) for name in users)


@pytest.mark.parametrize(
    ("algorithm", "digest"),
    [
        (SHA256, sha256),
        ("rabbit_password_hashing_sha512", sha512),
        ("rabbit_password_hashing_md5", md5),
    ],
)
def test_a_hash_of_rabbitmq_is_verified(algorithm: str, digest: type) -> None:
    """A RabbitMQ hash is four bytes of salt and the digest of salt and password, in base64."""
    stored = b64encode(SALT + digest(SALT + b"test12").digest()).decode()
    check_hash(stored, algorithm)
    assert matches(b"test12", stored, algorithm) and not matches(b"test13", stored, algorithm)


def test_the_hash_of_rabbitmqs_documentation_is_verified() -> None:
    """The example of RabbitMQ's page on passwords is verified."""
    assert matches(b"test12", DOCUMENTED, SHA256)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({}, "name"),
        ({"name": " "}, "name"),
        ({"name": "a" * 256}, "at most 255 bytes"),
        ({"name": "a\nb"}, "control characters"),
        ({"name": "a", "tags": 7}, "tags"),
        ({"name": "a", "tags": [7]}, "tags"),
        ({"name": "a", "password_hash": "x", "hashing_algorithm": "rot13"}, "unknown hashing algorithm 'rot13'"),
        ({"name": "a", "password_hash": "***"}, "user 'a': the password hash is not base64"),
        ({"name": "a", "password_hash": "AAAA"}, "does not have the length"),
        ({"name": "a", "password_hash": "$argon2i$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2g",
          "hashing_algorithm": ARGON2}, "not argon2id"),
        ({"name": "a", "password_hash": "$argon2id$v=19$m=9999999,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2g",
          "hashing_algorithm": ARGON2}, "asks for more than"),
        ({"name": "a", "password_hash": "$argon2id$v=19$m=65536,t=5,p=1$c2FsdHNhbHQ$aGFzaGhhc2g",
          "hashing_algorithm": ARGON2}, "asks for more"),
        ({"name": "a", "password_hash": "$argon2id$v=19$m=65536,t=1,p=17$c2FsdHNhbHQ$aGFzaGhhc2g",
          "hashing_algorithm": ARGON2}, "asks for more"),
        ({"name": "a", "password_hash": "$argon2id$v=19$m=8,m=4194304,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2g",
          "hashing_algorithm": ARGON2}, "not an argon2 hash"),
        ({"name": "a", "password_hash": "$argon2id$v=19$m=8,t=1,p=1$" + "A" * 100_000 + "$aGFzaGhhc2g",
          "hashing_algorithm": ARGON2}, "not an argon2 hash"),
        ({"name": "a", "password_hash": "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2\ud800",
          "hashing_algorithm": ARGON2}, "not an argon2 hash"),
        ({"name": "a", "password_hash": "argon", "hashing_algorithm": ARGON2}, "not an argon2 hash"),
    ],
)  # fmt: skip
def test_a_user_that_definitions_describe_wrongly_is_refused(entry: dict, reason: str) -> None:
    """A wrong user in definitions is refused with a reason that does not quote the hash."""
    with pytest.raises(ValueError, match=reason):
        user_of(entry)


@pytest.mark.parametrize("tags", ["administrator, management", ["administrator", "management"]])
def test_tags_come_as_a_list_or_as_text(tags: object) -> None:
    """Tags come as a list or as one text, which RabbitMQ before 3.9 exports."""
    assert user_of({"name": "a", "password_hash": "", "tags": tags}).tags == ("administrator", "management")


def test_users_come_back_from_json_as_they_were() -> None:
    """Stored users come back from JSON; users of the settings are not written."""
    users = Users([User("configured", "x")])
    users.add("alice", "s3cret", ["policymaker"])
    users.put(user_of({"name": "bob", "password_hash": DOCUMENTED}))
    again = Users()
    for name in ("alice", "bob"):
        again.put(user_of(users.get(name).to_json()))  # type: ignore[union-attr]
    assert [user.name for user in again.listing()] == ["alice", "bob"]
    assert again.listing() == [users.get("alice"), users.get("bob")]
    assert right(again, "alice", b"s3cret") and right(again, "bob", b"test12")


def test_a_user_of_the_settings_shadows_a_stored_one_and_does_not_change() -> None:
    """A user of the settings hides the stored user of its name, which returns when the settings drop it."""
    users = Users([User("alice", "configured")])
    users.put(user_of({"name": "alice", "password_hash": DOCUMENTED}))
    assert right(users, "alice", b"configured") and not right(users, "alice", b"test12")
    for change in (users.delete, lambda name: users.set_password(name, "x"),
                   lambda name: users.set_tags(name, [])):  # fmt: skip
        with pytest.raises(ValueError, match="User 'alice' is defined in the settings"):
            change("alice")
    with pytest.raises(ValueError, match="User 'alice' already exists"):
        users.add("alice", "x")


def test_who_is_not_there_cannot_be_changed() -> None:
    """A change of a user that does not exist is refused in RabbitMQ's words."""
    with pytest.raises(ValueError, match="User 'nobody' does not exist"):
        Users().delete("nobody")


def test_listeners_hear_of_every_change() -> None:
    """Listeners are called for each addition, change and deletion."""
    users = Users()
    heard: list[str] = []
    users.listeners.append(heard.append)
    users.add("alice", "x")
    users.set_password("alice", "y")
    users.set_tags("alice", ["management"])
    users.delete("alice")
    assert heard == ["alice"] * 4


def test_the_same_password_has_another_hash_for_another_user() -> None:
    """The salt differs for each user; the caller supplies the random source."""
    counted = iter(range(256))
    users = Users(random_bytes=lambda size: bytes((next(counted),)) * size)
    assert users.add("a", "x").password_hash != users.add("b", "x").password_hash
