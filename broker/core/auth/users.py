"""The users: those defined in the settings, who do not change at run time, and those whom operators add. Passwords and
hashes are never logged, printed or quoted.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final

from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.core.auth.password import ARGON2, DUMMY_HASH, SALT_BYTES, SHA256, argon2_hash, check_hash, matches
from broker.core.auth.user_limits import UserLimits, user_limits_of

PROVEN_S: Final = 3600.0  # how long a proven password is accepted without computing its hash
PROVEN_MAX: Final = 10_000  # users whose proven passwords are remembered


@dataclass(frozen=True, slots=True)
class User:
    """A user, with a plain password from the settings or with the hash of a password."""

    name: str
    password: str = field(default="", repr=False)
    tags: tuple[str, ...] = ()
    password_hash: str = field(default="", repr=False)
    hashing_algorithm: str = ARGON2
    limits: UserLimits = field(default_factory=UserLimits)

    def to_json(self) -> dict[str, Any]:
        """Return the user as an entry of RabbitMQ's definitions."""
        return {
            "name": self.name,
            "password_hash": self.password_hash,
            "hashing_algorithm": self.hashing_algorithm,
            "tags": list(self.tags),
            "limits": self.limits.to_json(),
        }


class Users:
    """Store the users by name. Invariant: a configured user shadows a stored one of the same name, and only stored ones
    change. Each listener is called with the name of a user who was added, changed or deleted.
    """

    def __init__(
        self,
        configured: Iterable[User] = (),
        *,
        random_bytes: Callable[[int], bytes] = os.urandom,
        now_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Start with `configured`, the users defined in the settings."""
        self._configured = {user.name: user for user in configured}
        self._stored: dict[str, User] = {}
        self.random_bytes = random_bytes
        self._key = random_bytes(32)
        self._now_s = now_s
        # Keyed digests by name: of the settings' passwords, and of proven passwords, oldest proof first.
        self._expected = {name: self._digest(user.password.encode(), "") for name, user in self._configured.items()}
        self._proven: dict[str, tuple[bytes, float]] = {}
        self.listeners: list[Callable[[str], None]] = []

    def __contains__(self, name: object) -> bool:
        return name in self._configured or name in self._stored

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in order."""
        return iter(sorted(self._configured.keys() | self._stored.keys()))

    def get(self, name: str) -> User | None:
        return self._configured.get(name) or self._stored.get(name)

    def is_configured(self, name: str) -> bool:
        return name in self._configured

    def listing(self) -> list[User]:
        """Return all users in order of their names."""
        return [user for name in self if (user := self.get(name)) is not None]

    def copy(self) -> Users:
        """Return an independent copy without listeners, which shares the proven passwords."""
        copy = Users(self._configured.values(), random_bytes=self.random_bytes, now_s=self._now_s)
        copy._stored = dict(self._stored)
        copy._key, copy._expected = self._key, self._expected
        copy._proven = self._proven
        return copy

    # -- changes ------------------------------------------------------------------------------------------------------

    def add(self, name: str, password: str, tags: Iterable[str] = ()) -> User:
        """Add a user; one with an empty password cannot log in with a password.

        Raises: ValueError for a name that exists or is invalid, and for invalid tags. Cost: one argon2 hash.
        """
        if name in self:
            raise ValueError(f"User '{name}' already exists")
        return self._with_password(User(checked_name(name), tags=checked_tags(tags)), password)

    def put(self, user: User) -> None:
        """Add or replace a stored user; one defined in the settings still shadows it. Raises: ValueError."""
        checked_name(user.name)
        check_hash(user.password_hash, user.hashing_algorithm)
        self._store(user)

    def delete(self, name: str) -> None:
        """Delete a user. Raises: ValueError for an unknown user and for one defined in the settings."""
        self._stored_user(name)
        del self._stored[name]
        self._proven.pop(name, None)
        self._notify(name)

    def set_password(self, name: str, password: str) -> None:
        """Change a password. Raises: ValueError as delete(). Cost: one argon2 hash."""
        self._with_password(self._stored_user(name), password)

    def set_tags(self, name: str, tags: Iterable[str]) -> None:
        """Change a user's tags. Raises: ValueError as delete(), and for invalid tags."""
        self._store(replace(self._stored_user(name), tags=checked_tags(tags)))

    def set_limits(self, name: str, changes: Mapping[str, int]) -> None:
        """Change some of a user's limits. Raises: ValueError as delete()."""
        user = self._stored_user(name)
        self._store(replace(user, limits=user.limits.updated(changes)))

    def clear_limits(self, name: str, limit: str | None = None) -> None:
        """Remove all of a user's limits, or one of them. Raises: ValueError as delete()."""
        user = self._stored_user(name)
        kept = () if limit is None else tuple(pair for pair in user.limits.table if pair[0] != limit)
        self._store(replace(user, limits=UserLimits(kept)))

    def check_own(self, name: str) -> None:
        """Check that a user may change at run time. Raises: ValueError for one defined in the settings."""
        if name in self._configured:
            raise ValueError(f"User '{name}' is defined in the settings (auth.users); change it there")

    def check_permitted(self, name: str) -> None:
        """Check that the rights of a user can be changed. Raises: ValueError as delete()."""
        if name in self._configured:
            raise ValueError(f"User '{name}' is defined in the settings (auth.users), and has all rights in all vhosts")
        if name not in self:
            raise ValueError(f"User '{name}' does not exist")

    def _stored_user(self, name: str) -> User:
        self.check_own(name)
        user = self._stored.get(name)
        if user is None:
            raise ValueError(f"User '{name}' does not exist")
        return user

    def _with_password(self, user: User, password: str) -> User:
        secret = password.encode()
        hashed = argon2_hash(secret, self.random_bytes(SALT_BYTES)) if secret else ""
        user = replace(user, password_hash=hashed, hashing_algorithm=ARGON2)
        self._store(user)
        if hashed:
            self.remember(user, secret)
        return user

    def _store(self, user: User) -> None:
        former = self._stored.get(user.name)
        if former is None or former.password_hash != user.password_hash:
            self._proven.pop(user.name, None)
        self._stored[user.name] = user
        self._notify(user.name)

    def _notify(self, name: str) -> None:
        for listener in self.listeners:
            listener(name)

    # -- passwords ----------------------------------------------------------------------------------------------------

    def knows(self, name: str, password: bytes) -> bool:
        """Return whether a password is known to be right: from the settings, or because it was proven recently.

        False may also mean that only prove() can decide. Cost: microseconds.
        """
        user = self.get(name)
        if user is None:
            return False
        if user.password:
            return hmac.compare_digest(self._expected[name], self._digest(password, ""))
        proven, proven_s = self._proven.get(name, (b"", 0.0))
        right = hmac.compare_digest(proven, self._digest(password, user.password_hash))
        return right and self._now_s() - proven_s < PROVEN_S

    def remember(self, user: User, password: bytes) -> None:
        """Remember a proven password as a keyed digest, so that logins within PROVEN_S need not compute its hash.

        Invariant: the digest includes the user's hash, so it is useless once the password has changed.
        """
        if not user.password_hash:
            return
        self._proven.pop(user.name, None)
        if len(self._proven) >= PROVEN_MAX:
            del self._proven[next(iter(self._proven))]
        self._proven[user.name] = (self._digest(password, user.password_hash), self._now_s())

    def secret_of(self, user: User | None, password: bytes) -> bytes:
        """Return a digest that distinguishes the passwords tried for a user, without storing them."""
        return self._digest(password, "" if user is None else user.password_hash)

    def _digest(self, password: bytes, password_hash: str) -> bytes:
        keyed = blake2b(key=self._key, digest_size=32)
        keyed.update(len(password).to_bytes(8, "big") + password + password_hash.encode())
        return keyed.digest()

    def writing(self) -> Generator[None, None, list[dict[str, Any]]]:
        """Return the stored users as entries of RabbitMQ's definitions, in steps of one entry."""
        rows: list[dict[str, Any]] = []
        for _, user in sorted(self._stored.items()):
            rows.append(user.to_json())
            yield
        return rows


def prove(user: User | None, password: bytes) -> bool:
    """Return whether a password is right, by computing a hash. Each refusal computes an argon2 hash, so that its time
    does not reveal which names exist.
    """
    if user is not None and matches(password, user.password_hash, user.hashing_algorithm):
        return True
    if user is None or user.hashing_algorithm != ARGON2 or not user.password_hash:
        matches(password, DUMMY_HASH, ARGON2)
    return False


def user_of(entry: Mapping[str, Any], random_bytes: Callable[[int], bytes] = os.urandom) -> User:
    """Return the user of an entry of RabbitMQ's definitions, with a hash or a plain password.

    Raises: ValueError with the reason. Cost: one argon2 hash for a plain password.
    """
    name = checked_name(entry.get("name"))
    tags = entry.get("tags") or ()
    if isinstance(tags, str):  # RabbitMQ before 3.9 writes them as one string
        tags = tags.split(",")
    password, password_hash = entry.get("password"), entry.get("password_hash", "")
    algorithm = entry.get("hashing_algorithm", SHA256)
    try:
        limits = user_limits_of(entry.get("limits"))
        if isinstance(password, str) and password and not password_hash:
            password_hash, algorithm = argon2_hash(password.encode(), random_bytes(SALT_BYTES)), ARGON2
        else:
            check_hash(str(password_hash), str(algorithm))
    except ValueError as error:
        raise ValueError(f"user '{name}': {error}") from None
    return User(name, "", checked_tags(tags), str(password_hash), str(algorithm), limits)


def checked_name(name: Any) -> str:
    """Return the name. Raises: ValueError if it is not a string, is blank or too long, or has control characters."""
    if not isinstance(name, str) or not name.strip():
        raise ValueError("a user's name should be a string that is not blank")
    if len(name.encode("utf-8", "replace")) > SHORT_STRING_MAX_BYTES or any(ord(letter) < 32 for letter in name):
        raise ValueError(f"a user's name has at most {SHORT_STRING_MAX_BYTES} bytes and no control characters")
    return name


def checked_tags(tags: Any) -> tuple[str, ...]:
    """Return the tags stripped, without blanks and duplicates. Raises: ValueError unless they are a list of strings."""
    if not isinstance(tags, list | tuple | set | frozenset) or not all(isinstance(tag, str) for tag in tags):
        raise ValueError("tags should be a list of strings")
    return tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
