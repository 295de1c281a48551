"""Authenticate clients by their SASL responses, at once or after computing a slow hash. A response is never logged,
printed or quoted, except for the user's name in the reason for a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from broker.amqp.errors import ConnectionFault, Refused
from broker.amqp.tables import TableReader
from broker.core.auth.login_counts import Attempts, LoginCounts
from broker.core.auth.peer import NameSource, Peer, is_loopback, login_name
from broker.core.auth.users import User, Users, prove

GUEST: Final = "guest"
BASIC: Final = "Basic"  # RFC 7617, over HTTP
AMQP: Final = "amqp091"  # this and the next two: protocols, as login counts name them
HTTP: Final = "http"
MQTT: Final = "mqtt"
LOOPBACK_ONLY: Final = frozenset({GUEST})  # RabbitMQ's loopback_users: everybody knows guest's password
ONLY_LOCALHOST: Final = "User can only log in via localhost"  # RabbitMQ's text over HTTP
PLAIN: Final = "PLAIN"
AMQPLAIN: Final = "AMQPLAIN"
EXTERNAL: Final = "EXTERNAL"
ANONYMOUS: Final = "ANONYMOUS"  # MQTT only


def split_plain(response: bytes) -> tuple[str, bytes]:
    """Return the name and the password of a PLAIN response: NUL name NUL password.

    A leading authorization identity is refused, as in RabbitMQ: no user acts for another.
    Raises: Refused. Source: RFC 4616.
    """
    parts = response.split(b"\0")
    if len(parts) != 3 or parts[0]:
        raise malformed(PLAIN)
    try:
        return parts[1].decode(), parts[2]
    except UnicodeDecodeError:
        raise malformed(PLAIN) from None


def split_amqplain(response: bytes) -> tuple[str, bytes]:
    """Return the name and the password of an AMQPLAIN response: a field table, without its length, of two long strings.

    Raises: Refused. Source: rabbit_auth_mechanism_amqplain.
    """
    payload = len(response).to_bytes(4, "big") + response
    values: dict[bytes, bytes] = {}
    try:
        reader = TableReader(payload)
        reader.skip_table(0, len(payload))
        for entry in reader.entries(0):
            if payload[entry.value_at] == ord("S"):
                values[entry.key] = payload[entry.value_at + 5 : entry.end]
        return values[b"LOGIN"].decode(), values[b"PASSWORD"]
    except (ConnectionFault, KeyError, UnicodeDecodeError):
        raise malformed(AMQPLAIN) from None


def malformed(mechanism: str) -> Refused:
    """Return the refusal of a malformed response; RabbitMQ closes the connection without sending a reason."""
    return Refused(f"{mechanism} login refused: response invalid", told=False)


PASSWORDS: Final[dict[str, Callable[[bytes], tuple[str, bytes]]]] = {PLAIN: split_plain, AMQPLAIN: split_amqplain}


class LoginClient(NamedTuple):
    """The clients that wait for one password check: network, user name, and whether all of them have disconnected."""

    network: str
    name: str
    is_gone: Callable[[], bool]


Answer = Callable[[bool | None], None]
PasswordCheck = Callable[[Callable[[], bool], Answer, float, LoginClient], None]
"""Run a slow function in a thread, after a delay in seconds, and pass its result to the second function; pass None if
the slow function did not run.
"""

Verdict = User | Refused


def check_now(job: Callable[[], bool], then: Answer, _wait_s: float, _client: LoginClient) -> None:
    """Check a password in the caller's thread, without the delay."""
    then(job())


class WaitingLogin(NamedTuple):
    """A client whose password is being checked."""

    mechanism: str
    peer: Peer
    then: Callable[[Verdict], None]
    is_gone: Callable[[], bool]


class PendingCheck:
    """The clients of one network that wait for the check of one password of one user."""

    def __init__(self) -> None:
        self.waiting: list[WaitingLogin] = []

    def is_gone(self) -> bool:
        return all(login.is_gone() for login in self.waiting)


class Logins:
    """Authenticate clients.

    Invariant: an empty password is refused, and EXTERNAL accepts only the user named by a verified certificate, or the
        user as which a part of this process acts.
    """

    def __init__(
        self,
        users: Users,
        *,
        loopback_only: Iterable[str] = LOOPBACK_ONLY,
        guest_anywhere: bool = False,
        mechanisms: Iterable[str] = (PLAIN, AMQPLAIN),
        certificate_name: tuple[NameSource, str] = ("distinguished_name", "dns"),
        check: PasswordCheck = check_now,
        now_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`loopback_only` are the users who may log in from a loopback address only. With `guest_anywhere`, that does
        not apply to guest while it is the only user; `check_address` names the exceptions.
        """
        self.users = users
        self._loopback_only = frozenset(loopback_only)
        self._guest_anywhere = guest_anywhere
        self._mechanisms = tuple(mechanisms)
        self._uncertified = tuple([name for name in self._mechanisms if name != EXTERNAL])
        self._certificate_name = certificate_name
        self._check = check
        self._attempts = Attempts(now_s)
        self._pending: dict[tuple[str, str, bytes], PendingCheck] = {}
        self.counts = LoginCounts()

    @property
    def loopback_only(self) -> frozenset[str]:
        """The names of the users who, over protocols other than HTTP, may log in from a loopback address only."""
        if self._guest_anywhere and list(self.users) == [GUEST]:
            return self._loopback_only - {GUEST}
        return self._loopback_only

    def check_address(self, mechanism: str, user: User, peer: Peer) -> None:
        """Refuse a user who may log in from a loopback address only, if the peer has another address or an origin.

        Everybody knows guest's password, so `guest_anywhere` applies neither over HTTP, where guest could change
        users and settings, nor to another site's page in a browser. Raises: Refused.
        """
        if user.name not in self._loopback_only or (is_loopback(peer.address) and not peer.origin):
            return
        if mechanism == BASIC or peer.origin or user.name in self.loopback_only:
            reason = f"{mechanism} login refused: user '{user.name}' can only connect via localhost"
            raise Refused(reason, shown=ONLY_LOCALHOST)

    def mechanisms(self, peer: Peer) -> Sequence[str]:
        """Return the mechanisms offered to a client. Another site's page in a browser is not offered EXTERNAL, because
        the browser sends the certificate of its user for each page.
        """
        if peer.inside:
            return (EXTERNAL,)
        asked = peer.tls is not None and peer.verified and not peer.origin
        return self._mechanisms if asked else self._uncertified

    def decide(
        self,
        mechanism: str,
        response: bytes,
        peer: Peer,
        then: Callable[[Verdict], None],
        is_gone: Callable[[], bool] = lambda: False,
        protocol: str = AMQP,
    ) -> None:
        """Call `then` with the user that a response authenticates, or with the refusal, now or after computing a hash.
        `is_gone` returns whether the client has disconnected: then no hash is computed.
        Source: RabbitMQ's texts.
        """
        if peer.inside:
            then(self._inside(mechanism, peer))
            return
        then = self._counting(protocol, peer, then)
        try:
            if mechanism == EXTERNAL and EXTERNAL in self.mechanisms(peer):
                then(self._by_certificate(peer))
            elif mechanism in PASSWORDS and mechanism in self._mechanisms:
                self._by_password(mechanism, *PASSWORDS[mechanism](response), peer, then, is_gone)
            else:
                raise Refused(f"{mechanism[:64]} login refused: unknown authentication mechanism", told=False)
        except Refused as refused:
            then(refused)

    def decide_anonymous(self, name: str, peer: Peer, then: Callable[[Verdict], None]) -> None:
        """Call `then` with the user that clients without credentials get, or with the refusal.

        A page of another site is refused, because it can reach brokers that its author cannot.
        """
        then = self._counting(MQTT, peer, then)
        try:
            user = self.users.get(name)
            if user is None or peer.origin:
                raise Refused(f"{ANONYMOUS} login refused: {'not for other sites' if user else f'no user {name!r}'}")
            then(self._admit(ANONYMOUS, user, peer))
        except Refused as refused:
            then(refused)

    def decide_basic(
        self, name: str, password: bytes, peer: Peer, then: Callable[[Verdict], None], is_gone: Callable[[], bool]
    ) -> None:
        """Decide a login with a password over HTTP as `decide` does; refuse it if passwords are disabled."""
        then = self._counting(HTTP, peer, then)
        try:
            if PASSWORDS.keys().isdisjoint(self._mechanisms):
                reason = f"{BASIC} login refused: logins with a password are disabled (auth.mechanisms)"
                raise Refused(reason, shown="Logins with a password are disabled")
            self._by_password(BASIC, name, password, peer, then, is_gone)
        except Refused as refused:
            then(refused)

    def _counting(self, protocol: str, peer: Peer, then: Callable[[Verdict], None]) -> Callable[[Verdict], None]:
        """Wrap `then` so that each verdict is counted first."""

        def counted(verdict: Verdict) -> None:
            self.counts.note(protocol, peer.network, refused=isinstance(verdict, Refused))
            then(verdict)

        return counted

    def _inside(self, mechanism: str, peer: Peer) -> Verdict:
        user = self.users.get(peer.inside) if mechanism == EXTERNAL else None
        if user is None:
            return Refused(f"{mechanism[:64]} login refused: user '{peer.inside}' - invalid credentials")
        return user

    def _by_certificate(self, peer: Peer) -> User:
        assert peer.tls is not None
        name = login_name(peer.tls.certificate, *self._certificate_name) if peer.tls.certificate else None
        if name is None:
            reason = "no name found" if peer.tls.certificate else "no peer certificate"
            raise Refused(f"{EXTERNAL} login refused: {reason}")
        user = self.users.get(name)
        if user is None:
            raise Refused(f"{EXTERNAL} login refused: user '{name}' - invalid credentials")
        return self._admit(EXTERNAL, user, peer)

    def _by_password(
        self,
        mechanism: str,
        name: str,
        password: bytes,
        peer: Peer,
        then: Callable[[Verdict], None],
        is_gone: Callable[[], bool],
    ) -> None:
        if not password:
            raise Refused(f"{mechanism} login refused: user '{name}' attempted to log in with a blank password")
        attempts, network = self._attempts, peer.network
        user, known = self.users.get(name), self.users.knows(name, password)
        if known and user is not None and not attempts.wait_s(network, name):
            then(self._admit(mechanism, user, peer))
            return
        key = (network, name, self.users.secret_of(user, password))
        login = WaitingLogin(mechanism, peer, then, is_gone)
        pending = self._pending.get(key)
        if pending is not None and not pending.is_gone():
            pending.waiting.append(login)  # simultaneous logins with one password count as one
            return
        wait_s = attempts.begin(network, name)
        if wait_s is None:
            reason = f"{mechanism} login refused: too many logins of user '{name}' from {peer.address}"
            raise Refused(reason, shown="Too many failed logins from this address")
        pending = self._pending[key] = PendingCheck()
        pending.waiting.append(login)
        client = LoginClient(network, name, pending.is_gone)
        self._check(
            partial(self._prove, name, password, user),
            partial(self._checked, key, pending, password, user),
            wait_s,
            client,
        )

    def _prove(self, name: str, password: bytes, user: User | None) -> bool:
        """Return whether a password is right; called in a thread. Another login may have proven it since."""
        return self.users.knows(name, password) or prove(user, password)

    def _checked(
        self, key: tuple[str, str, bytes], pending: PendingCheck, password: bytes, user: User | None, right: bool | None
    ) -> None:
        network, name, _secret = key
        if self._pending.get(key) is pending:
            del self._pending[key]
        now = self.users.get(name)
        # A user whose password changed while the hash was computed has to log in again.
        same = user is not None and now is not None and now.password_hash == user.password_hash
        admitted = now if right and same else None
        if admitted is not None:
            self.users.remember(admitted, password)
        if admitted is not None or right is None:
            self._attempts.uncount(network, name)
        for mechanism, peer, then, is_gone in pending.waiting:
            if is_gone():
                continue
            verdict: Verdict = Refused(f"{mechanism} login refused: user '{name}' - invalid credentials")
            if admitted is not None:
                try:
                    verdict = self._admit(mechanism, admitted, peer)
                except Refused as refused:
                    verdict = refused
            then(verdict)

    def _admit(self, mechanism: str, user: User, peer: Peer) -> User:
        self.check_address(mechanism, user, peer)
        return user
