"""Logins: mechanisms, deferred verdicts, guest and delays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from argon2 import low_level

from broker.amqp.errors import Refused
from broker.core.auth import password as passwords
from broker.core.auth.login_counts import (
    BURST,
    COUNTED_MAX,
    SOURCES_MAX,
    WAIT_MAX_S,
    Attempts,
    LoginCount,
    LoginCounts,
)
from broker.core.auth.logins import Answer, LoginClient, Logins, Verdict
from broker.core.auth.peer import NameSource, Peer, TlsFacts
from broker.core.auth.users import User, Users, user_of

HOME = Peer("127.0.0.1")
AWAY = Peer("203.0.113.9")
PLAIN = "PLAIN"
CERTIFICATE = {
    "subject": ((("organizationName", "Acme, Ltd"),), (("commonName", "alice"),)),
    "subjectAltName": (("DNS", "client.example"), ("email", "alice@example")),
}


class Threads:
    """Queues password checks until the test runs them."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], bool], Answer, float, LoginClient]] = []

    def check(self, job: Callable[[], bool], then: Answer, wait_s: float, client: LoginClient) -> None:
        self.waiting.append((job, then, wait_s, client))

    def run(self) -> list[float]:
        """Run the queued checks, but for clients that have gone, and return how long each was to wait."""
        waiting, self.waiting = self.waiting, []
        for job, then, _wait_s, client in waiting:
            then(None if client.is_gone() else job())
        return [wait_s for _job, _then, wait_s, _client in waiting]


def people() -> Users:
    """Return a configured guest, a user with umlauts, a user without a password and a stored user."""
    users = Users([User("guest", "guest"), User("zo\u00eb", "p\u00e4ss"), User("open", "")])
    users.put(user_of({"name": "alice", "password": "s3cret"}))
    return users


def plain(name: str, password: str) -> bytes:
    """Return a PLAIN answer."""
    return f"\0{name}\0{password}".encode()


def amqplain(*fields: tuple[bytes, bytes, bytes]) -> bytes:
    """Return an AMQPLAIN answer of key, type octet and value."""
    return b"".join(
        bytes((len(key),)) + key + kind + (len(value).to_bytes(4, "big") if kind in b"SxFA" else b"") + value
        for key, kind, value in fields
    )


def said(logins: Logins, mechanism: str, response: bytes, peer: Peer = HOME) -> str:
    """Return the name of the user who is logged in, or the reason of the refusal."""
    verdicts: list[Verdict] = []
    logins.decide(mechanism, response, peer, verdicts.append)
    (verdict,) = verdicts
    return verdict.reason if isinstance(verdict, Refused) else verdict.name


@pytest.mark.parametrize(
    ("mechanism", "response", "peer", "name"),
    [
        ("PLAIN", plain("guest", "guest"), HOME, "guest"),
        ("PLAIN", plain("guest", "guest"), Peer("::1"), "guest"),
        ("PLAIN", plain("zo\u00eb", "p\u00e4ss"), AWAY, "zo\u00eb"),
        ("PLAIN", plain("alice", "s3cret"), AWAY, "alice"),
        ("AMQPLAIN", amqplain((b"LOGIN", b"S", b"guest"), (b"PASSWORD", b"S", b"guest")), HOME, "guest"),
        ("AMQPLAIN", amqplain((b"PASSWORD", b"S", b"guest"), (b"X", b"t", b"\1"), (b"LOGIN", b"S", b"guest")), HOME,
         "guest"),
    ],
)  # fmt: skip
def test_the_right_answer_lets_in(mechanism: str, response: bytes, peer: Peer, name: str) -> None:
    """A right answer logs the user in: names and passwords are UTF-8, and AMQPLAIN fields come in any order."""
    assert said(Logins(people()), mechanism, response, peer) == name


@pytest.mark.parametrize(
    ("response", "peer", "reason"),
    [
        (plain("guest", "Guest"), HOME, "user 'guest' - invalid credentials"),
        (plain("nobody", "guest"), HOME, "user 'nobody' - invalid credentials"),
        (plain("guest", "guest"), AWAY, "user 'guest' can only connect via localhost"),
        (plain("guest", "wrong"), AWAY, "user 'guest' - invalid credentials"),
        (plain("open", ""), HOME, "user 'open' attempted to log in with a blank password"),
        (plain("open", "x"), HOME, "user 'open' - invalid credentials"),
        (plain("alice", "S3cret"), HOME, "user 'alice' - invalid credentials"),
    ],
)
def test_a_wrong_answer_does_not(response: bytes, peer: Peer, reason: str) -> None:
    """A wrong answer is refused; an empty password is refused even where one is configured."""
    assert said(Logins(people()), "PLAIN", response, peer) == f"PLAIN login refused: {reason}"


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b""),
        ("PLAIN", b"guest"),
        ("PLAIN", b"\0guest"),
        ("PLAIN", b"act-as\0guest\0guest"),
        ("PLAIN", b"\0a\0b\0c"),
        ("PLAIN", b"\0\xff\0guest"),
        ("AMQPLAIN", b""),
        ("AMQPLAIN", b"\0guest\0guest"),
        ("AMQPLAIN", amqplain((b"LOGIN", b"S", b"guest"))),
        ("AMQPLAIN", amqplain((b"LOGIN", b"S", b"guest"), (b"PASSWORD", b"x", b"guest"))),
        ("AMQPLAIN", amqplain((b"LOGIN", b"S", b"\xff"), (b"PASSWORD", b"S", b"guest"))),
        ("AMQPLAIN", amqplain((b"LOGIN", b"S", b"guest"), (b"PASSWORD", b"S", b"guest"))[:-1]),
        ("AMQPLAIN", amqplain((b"LOGIN", b"S", b"guest"), (b"PASSWORD", b"S", b"guest")) + b"\0"),
    ],
)
def test_an_answer_that_cannot_be_read_is_refused_unquoted(mechanism: str, response: bytes) -> None:
    """The reason goes to the log, so it contains nothing of the answer."""
    assert said(Logins(people()), mechanism, response) == f"{mechanism} login refused: response invalid"


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "EXTERNAL", "plain", "", "AMQPLAIN"])
def test_a_mechanism_that_is_not_offered_lets_nobody_in(mechanism: str) -> None:
    """A mechanism that was not offered is refused before its answer is read."""
    logins = Logins(people(), mechanisms=("PLAIN", "EXTERNAL"))
    assert list(logins.mechanisms(HOME)) == ["PLAIN"]
    expected = f"{mechanism} login refused: unknown authentication mechanism"
    assert said(logins, mechanism, plain("guest", "guest")) == expected


@pytest.mark.parametrize(
    ("source", "kind", "stored", "name"),
    [
        ("distinguished_name", "dns", "CN=alice,O=Acme\\, Ltd", "CN=alice,O=Acme\\, Ltd"),
        ("common_name", "dns", "alice", "alice"),
        ("subject_alternative_name", "dns", "client.example", "client.example"),
        ("subject_alternative_name", "email", "alice@example", "alice@example"),
        ("subject_alternative_name", "uri", "alice", "EXTERNAL login refused: no name found"),
        ("common_name", "dns", "bob", "EXTERNAL login refused: user 'alice' - invalid credentials"),
    ],
)
def test_a_certificate_lets_in_whom_it_names(source: NameSource, kind: str, stored: str, name: str) -> None:
    """A certificate logs in the user that it names. The settings choose the name, and the user must exist."""
    users = Users()
    users.put(user_of({"name": stored, "password_hash": ""}))
    logins = Logins(users, mechanisms=("EXTERNAL",), certificate_name=(source, kind))
    peer = Peer("203.0.113.9", tls=TlsFacts("TLSv1.3", "x", CERTIFICATE), verified=True)
    assert list(logins.mechanisms(peer)) == ["EXTERNAL"]
    assert said(logins, "EXTERNAL", b"", peer) == name


def test_external_needs_a_certificate_that_was_verified() -> None:
    """EXTERNAL is refused without TLS, on a listener that asks for no certificate, and without a client certificate."""
    users = Users([User("alice", "x")])
    logins = Logins(users, mechanisms=("EXTERNAL",), certificate_name=("common_name", "dns"))
    facts = TlsFacts("TLSv1.3", "x", CERTIFICATE)
    unverified = Peer("127.0.0.1", tls=facts)
    for peer in (HOME, unverified):
        assert list(logins.mechanisms(peer)) == []
        assert said(logins, "EXTERNAL", b"", peer) == "EXTERNAL login refused: unknown authentication mechanism"
    bare = Peer("127.0.0.1", tls=TlsFacts("TLSv1.3", "x"), verified=True)
    assert said(logins, "EXTERNAL", b"", bare) == "EXTERNAL login refused: no peer certificate"


def test_guest_may_come_from_anywhere_when_told() -> None:
    """Guest may log in from any address when the settings allow it, also by certificate."""
    assert said(Logins(people(), loopback_only=()), "PLAIN", plain("guest", "guest"), AWAY) == "guest"
    certificate = {"subject": ((("commonName", "guest"),),)}
    logins = Logins(people(), mechanisms=("EXTERNAL",), certificate_name=("common_name", "dns"))
    peer = Peer("203.0.113.9", tls=TlsFacts("TLSv1.3", "x", certificate), verified=True)
    assert said(logins, "EXTERNAL", b"", peer) == "EXTERNAL login refused: user 'guest' can only connect via localhost"


def test_guest_alone_may_come_from_anywhere_when_told() -> None:
    """With guest_anywhere set, guest is restricted to this machine as soon as another user exists."""
    users = Users([User("guest", "guest")])
    logins = Logins(users, loopback_only=("guest", "root"), guest_anywhere=True)
    assert said(logins, "PLAIN", plain("guest", "guest"), AWAY) == "guest"
    assert logins.loopback_only == {"root"}
    users.put(User("alice", "secret"))
    assert "can only connect via localhost" in said(logins, "PLAIN", plain("guest", "guest"), AWAY)
    assert said(logins, "PLAIN", plain("guest", "guest")) == "guest"
    users.delete("alice")
    assert said(logins, "PLAIN", plain("guest", "guest"), AWAY) == "guest"


def test_another_user_alone_is_not_guest() -> None:
    """guest_anywhere does not apply to other users that are restricted to this machine."""
    logins = Logins(Users([User("root", "secret")]), loopback_only=("root",), guest_anywhere=True)
    assert "can only connect via localhost" in said(logins, "PLAIN", plain("root", "secret"), AWAY)


def test_a_slow_verdict_comes_later_and_the_next_one_at_once() -> None:
    """The verdict waits for the hash, which a thread computes; a proven password needs no hash."""
    threads = Threads()
    logins = Logins(people(), check=threads.check)
    verdicts: list[Verdict] = []
    logins.decide(PLAIN, plain("alice", "s3cret"), AWAY, verdicts.append)
    assert verdicts == []
    threads.run()
    logins.decide(PLAIN, plain("alice", "s3cret"), AWAY, verdicts.append)
    assert threads.waiting == []
    assert [verdict.name for verdict in verdicts if isinstance(verdict, User)] == ["alice", "alice"]


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Record the password of each argon2 hash that is computed."""
    computed: list[bytes] = []
    verify = low_level.verify_secret

    def counted(stored: bytes, password: bytes, kind: Any) -> bool:
        computed.append(password)
        return verify(stored, password, kind)

    monkeypatch.setattr(passwords, "verify_secret", counted)
    return computed


def test_many_clients_of_a_user_who_come_at_once_are_one_login(hashes: list[bytes]) -> None:
    """A fleet that connects again after a restart has one password: one hash, and no login waits or is refused."""
    threads, verdicts = Threads(), list[Verdict]()
    logins = Logins(people(), check=threads.check)
    for _ in range(600):
        logins.decide(PLAIN, plain("alice", "s3cret"), AWAY, verdicts.append)
    assert threads.run() == [0.0]
    assert [verdict.name for verdict in verdicts if isinstance(verdict, User)] == ["alice"] * 600
    assert hashes == [b"s3cret"]


def test_a_client_does_not_join_those_who_have_gone() -> None:
    """Their check is dropped or has been: the client that still waits has one of its own."""
    threads, verdicts = Threads(), list[Verdict]()
    logins = Logins(people(), check=threads.check)
    logins.decide(PLAIN, plain("alice", "s3cret"), AWAY, verdicts.append, lambda: True)
    logins.decide(PLAIN, plain("alice", "s3cret"), AWAY, verdicts.append)
    threads.run()
    assert [verdict.name for verdict in verdicts if isinstance(verdict, User)] == ["alice"]


def test_tags_that_change_while_the_hash_is_computed_are_the_new_ones() -> None:
    """The verdict carries the tags that the user has when the hash is ready."""
    threads, users = Threads(), people()
    verdicts: list[Verdict] = []
    Logins(users, check=threads.check).decide(PLAIN, plain("alice", "s3cret"), AWAY, verdicts.append)
    users.set_tags("alice", ["monitoring"])
    threads.run()
    assert isinstance(verdicts[0], User) and verdicts[0].tags == ("monitoring",)


@pytest.mark.parametrize("change", ["delete", "set_password"])
def test_who_was_changed_while_the_hash_was_computed_is_not_let_in(change: str) -> None:
    """A user that was changed while its hash was computed is refused."""
    threads, users = Threads(), people()
    verdicts: list[Verdict] = []
    Logins(users, check=threads.check).decide(PLAIN, plain("alice", "s3cret"), AWAY, verdicts.append)
    getattr(users, change)("alice", *(["new"] if change == "set_password" else []))
    threads.run()
    assert isinstance(verdicts[0], Refused)


def guess(logins: Logins, name: str, first: int, count: int, network: Peer = AWAY) -> list[Verdict]:
    """Send wrong passwords, each another one, and return the list that takes the verdicts."""
    verdicts: list[Verdict] = []
    for number in range(first, first + count):
        logins.decide(PLAIN, plain(name, f"wrong{number}"), network, verdicts.append)
    return verdicts


def test_guesses_that_come_at_once_are_counted_when_they_begin(hashes: list[bytes]) -> None:
    """Of 150 simultaneous guesses ten are checked, five wait a second after each other, and the right one is not
    revealed.
    """
    threads, now = Threads(), [0.0]
    logins = Logins(people(), check=threads.check, now_s=lambda: now[0])
    refused = guess(logins, "alice", 0, 149)
    assert said(logins, PLAIN, plain("alice", "s3cret"), AWAY).endswith(
        "too many logins of user 'alice' from 203.0.113.9"
    )
    assert threads.run() == [0.0] * BURST + [1.0, 2.0, 3.0, 4.0, WAIT_MAX_S]
    assert len(hashes) == BURST + WAIT_MAX_S == len(refused) - (149 - BURST - WAIT_MAX_S)
    now[0] = 1.0
    guess(logins, "alice", 150, 5)
    assert threads.run() == [WAIT_MAX_S], "one is forgotten each second"


@pytest.mark.parametrize("proven", [True, False])
def test_right_and_wrong_passwords_wait_alike(proven: bool) -> None:
    """Beyond the rate the wait depends on the logins before, also for a password that needs no hash."""
    threads, users = Threads(), people()
    logins = Logins(users, check=threads.check)
    if proven:
        alice = users.get("alice")
        assert alice is not None
        users.remember(alice, b"s3cret")
    guess(logins, "alice", 0, BURST)
    threads.run()
    verdicts: list[Verdict] = []
    logins.decide(PLAIN, plain("alice", "s3cret"), AWAY, verdicts.append)
    guess(logins, "alice", 100, 1)
    assert verdicts == []
    assert threads.run() == [1.0, 2.0]
    assert [verdict.name for verdict in verdicts if isinstance(verdict, User)] == ["alice"]
    guess(logins, "alice", 200, 1)
    assert threads.run() == [2.0], "a right password does not count"


def test_guesses_lock_no_other_name_and_no_other_network_out() -> None:
    """Neither guesses at many names, nor at one name: a user whom they do not name logs in at once."""
    threads = Threads()
    logins = Logins(people(), check=threads.check)
    guess(logins, "guest", 0, 150)
    for number in range(40):
        guess(logins, f"nobody{number}", 0, 20)
    threads.waiting.clear()  # none of them is judged yet
    assert said(logins, PLAIN, plain("zo\u00eb", "p\u00e4ss"), AWAY) == "zo\u00eb"
    assert said(logins, PLAIN, plain("guest", "guest"), HOME) == "guest"
    verdicts: list[Verdict] = []
    logins.decide(PLAIN, plain("alice", "s3cret"), AWAY, verdicts.append)
    assert threads.run() == [0.0]
    assert [verdict.name for verdict in verdicts if isinstance(verdict, User)] == ["alice"]


def test_an_ipv6_network_is_one_host() -> None:
    """A host has all addresses of its /64."""
    threads = Threads()
    logins = Logins(people(), check=threads.check)
    for number in range(BURST):
        guess(logins, "alice", number, 1, Peer(f"2001:db8::{number:x}"))
    threads.run()
    guess(logins, "alice", 50, 1, Peer("2001:db8::ffff"))
    guess(logins, "alice", 50, 1, Peer("2001:db8:0:1::1"))
    assert threads.run() == [1.0, 0.0]


def test_logins_that_are_right_or_not_judged_do_not_count() -> None:
    """A pool opens many connections, one after the other, and clients leave before their verdict."""
    threads = Threads()
    logins = Logins(people(), check=threads.check)
    for _ in range(3 * BURST):
        logins.decide(PLAIN, plain("alice", "s3cret"), AWAY, lambda _verdict: None, lambda: True)
    assert threads.run()[-1] == WAIT_MAX_S
    for _ in range(3 * BURST):
        logins.decide(PLAIN, plain("alice", "s3cret"), AWAY, lambda _verdict: None)
        assert threads.run() in ([0.0], [])


def test_what_is_counted_is_bounded_and_who_guesses_a_lot_is_not_forgotten() -> None:
    """Ever new names push out other names that were tried once."""
    attempts = Attempts(lambda: 0.0)
    for _ in range(BURST + int(WAIT_MAX_S)):
        assert attempts.begin("192.0.2.1", "alice") is not None
    for number in range(3 * COUNTED_MAX):
        attempts.begin("192.0.2.1", f"nobody{number}")
    assert attempts.begin("192.0.2.1", "alice") is None
    assert len(attempts._until) <= COUNTED_MAX


def test_the_network_that_logged_in_longest_ago_is_forgotten() -> None:
    """A network that logs in again counts on and stays; the oldest other one makes room."""
    counts = LoginCounts()
    counts.note("amqp091", "first", refused=False)
    for number in range(SOURCES_MAX - 1):
        counts.note("amqp091", f"network {number}", refused=True)
    counts.note("amqp091", "first", refused=True)
    counts.note("amqp091", "last", refused=False)
    assert counts.by_source["first", "amqp091"] == LoginCount(succeeded=1, failed=1)
    assert counts.by_source["last", "amqp091"] == LoginCount(succeeded=1)
    assert ("network 0", "amqp091") not in counts.by_source
    assert len(counts.by_source) == SOURCES_MAX
    assert counts.by_protocol == {"amqp091": LoginCount(succeeded=2, failed=SOURCES_MAX)}
