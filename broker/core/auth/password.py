"""Password hashes: argon2id, and RabbitMQ's own hashes, which definitions may contain."""

from __future__ import annotations

import binascii
import hmac
import re
from base64 import b64decode, b64encode
from hashlib import md5, sha256, sha512
from typing import Final

from argon2 import extract_parameters
from argon2.exceptions import Argon2Error
from argon2.low_level import Type, hash_secret, verify_secret

ARGON2: Final = "argon2id"
SHA256: Final = "rabbit_password_hashing_sha256"
DIGESTS: Final = {SHA256: sha256, "rabbit_password_hashing_sha512": sha512, "rabbit_password_hashing_md5": md5}
ALGORITHMS: Final = (ARGON2, *DIGESTS)

SALT_BYTES: Final = 16
RABBIT_SALT_BYTES: Final = 4
# OWASP's recommendation for argon2id: 19 MiB, two passes, one lane.
MEMORY_KIB: Final = 19 * 1024
PASSES: Final = 2
# Limits on the cost of an imported hash, which a thread computes while other logins wait.
# All recommendations of OWASP and RFC 9106 up to 64 MiB are within the limits, which allow about 200 ms.
MEMORY_MAX_KIB: Final = 256 * 1024
WORK_MAX_KIB: Final = 256 * 1024  # memory times passes
LANES_MAX: Final = 16
ENCODED: Final = re.compile(
    r"\$argon2id\$v=19\$m=[0-9]{1,9},t=[0-9]{1,9},p=[0-9]{1,9}\$[A-Za-z0-9+/]{11,128}\$[A-Za-z0-9+/]{11,128}"
)

# The hash of a password that no user has: an unknown user is refused as slowly as a wrong password.
DUMMY_HASH: Final = "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5LWhhcy1pdAAAAA$X5LvczWqw3REP8hHi8a3th8bqC+MzU9U8foqXamiymw"


def argon2_hash(password: bytes, salt: bytes) -> str:
    """Return the encoded hash of a new password. Cost: some 15 ms and 19 MiB."""
    return hash_secret(
        password, salt, time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=1, hash_len=32, type=Type.ID
    ).decode()


def salted_sha256(password: bytes, salt: bytes) -> str:
    """Return RabbitMQ's hash: salt and digest in base64. It suffices for a password that is not secret."""
    return b64encode(salt + sha256(salt + password).digest()).decode()


def matches(password: bytes, password_hash: str, algorithm: str) -> bool:
    """Return whether a password matches a hash; an empty password or an empty hash never matches.

    Cost: an argon2 hash takes 15 ms or more, without the interpreter lock.
    """
    if not password or not password_hash:
        return False
    if algorithm == ARGON2:
        try:
            return verify_secret(password_hash.encode(), password, Type.ID)
        except Argon2Error:
            return False
    digest = DIGESTS[algorithm]
    stored = b64decode(password_hash)
    salt = stored[:RABBIT_SALT_BYTES]
    return hmac.compare_digest(stored[RABBIT_SALT_BYTES:], digest(salt + password).digest())


def check_hash(password_hash: str, algorithm: str) -> None:
    """Check an imported hash. It may be empty: then the user cannot log in with a password.

    Raises: ValueError with the reason, which does not quote the hash.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown hashing algorithm '{algorithm}'; known: {', '.join(ALGORITHMS)}")
    if not password_hash:
        return
    if algorithm == ARGON2:
        _check_argon2(password_hash)
        return
    try:
        stored = b64decode(password_hash, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the password hash is not base64") from None
    if len(stored) != RABBIT_SALT_BYTES + DIGESTS[algorithm]().digest_size:
        raise ValueError(f"the password hash does not have the length of a hash of {algorithm}")


def _check_argon2(password_hash: str) -> None:
    if not ENCODED.fullmatch(password_hash):
        other = password_hash.startswith("$argon2") and not password_hash.startswith("$argon2id$")
        raise ValueError("the password hash is not argon2id" if other else "the password hash is not an argon2 hash")
    asked = extract_parameters(password_hash)
    memory_kib = asked.memory_cost
    if memory_kib > MEMORY_MAX_KIB or memory_kib * asked.time_cost > WORK_MAX_KIB or asked.parallelism > LANES_MAX:
        bounds = f"{MEMORY_MAX_KIB} KiB, {WORK_MAX_KIB} KiB times passes or {LANES_MAX} lanes"
        raise ValueError(f"the password hash asks for more than {bounds}")
