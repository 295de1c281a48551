"""Permissions: which user may do what, RabbitMQ's texts, and the right that each method needs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import pytest
from pamqp import commands

from broker.amqp.codec import Method
from broker.amqp.errors import ChannelError, ConnectionFault
from broker.core.auth.permissions import KINDS, Kind, Permissions
from broker.core.auth.users import User, Users
from broker.core.bounded_pattern import BoundedPattern
from broker.core.names import Resource
from tests.unit.core.room import Client

CONFIGURED, ALICE, MALLORY = User("configured", "c"), User("alice"), User("mallory")
QUEUE = Resource("queue", "/", "q")
TOPIC = Resource("exchange", "/", "amq.topic")

Rows = list[dict[str, str]]


@pytest.fixture
def permissions() -> Permissions:
    """Return the permissions of a user of the settings, of alice, who has some rights, and of mallory, who has none."""
    users = Users([CONFIGURED])
    users.put(ALICE)
    users.put(MALLORY)
    permissions = Permissions(users)
    permissions.set("alice", "/", "^own", "own|^amq\\.(topic|default)$", "")
    return permissions


def test_a_user_of_the_settings_may_do_everything_in_every_vhost(permissions: Permissions) -> None:
    """A user of the settings has every right in every vhost, and no one can revoke it."""
    permissions.check_vhost(CONFIGURED, "any")
    permissions.check_topic(CONFIGURED, TOPIC, "a.b", "read")
    for kind in KINDS:
        permissions.check(CONFIGURED, QUEUE, kind)
    for change in (
        lambda: permissions.set("configured", "/", "", "", ""),
        lambda: permissions.clear("configured", "/"),
        lambda: permissions.topics.set("configured", "/", "x", "", ""),
    ):
        with pytest.raises(ValueError, match="User 'configured' is defined in the settings"):
            change()


def test_answers_are_kept_for_stored_users_until_they_are_forgotten(permissions: Permissions) -> None:
    """A user of the settings, who may do everything, leaves nothing behind for each of a million queues."""
    for number in range(10):
        permissions.check(CONFIGURED, Resource("queue", "/", f"q{number}"), "configure")
    assert permissions._answers == {}
    permissions.check(ALICE, Resource("queue", "/", "own"), "configure")
    assert len(permissions._answers) == 1
    permissions.forget_answers()
    assert permissions._answers == {}
    permissions.check(ALICE, Resource("queue", "/", "own"), "configure")


@pytest.mark.parametrize(
    ("kind", "resource", "allowed"),
    [
        ("configure", Resource("queue", "/", "own.q"), True),
        ("configure", Resource("queue", "/", "not.own"), False),
        ("write", Resource("queue", "/", "not.own"), True),
        ("write", Resource("exchange", "/", ""), True),
        ("write", Resource("exchange", "/", "amq.topic"), True),
        ("write", Resource("exchange", "/", "amq.topic2"), False),
        ("write", Resource("queue", "other", "own"), False),
        ("read", Resource("queue", "/", "own"), False),
        ("read", Resource("queue", "/", ""), True),
    ],
)
def test_a_right_is_an_expression_over_names(
    kind: Kind, resource: Resource, allowed: bool, permissions: Permissions
) -> None:
    """A right is an unanchored expression in one vhost.

    The empty one matches nothing; amq.default is the default exchange.
    """
    assert permissions.allows(ALICE, resource, kind) is allowed
    assert permissions.allows(ALICE, resource, kind) is allowed  # the cached answer
    assert not permissions.allows(MALLORY, resource, kind)


@pytest.mark.interpreted("a ledger takes the place of the permissions")
def test_a_right_that_could_not_be_told_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, permissions: Permissions
) -> None:
    """An expression that runs out of time refuses this request only; the cache keeps known answers only."""
    told = iter([None, True])
    monkeypatch.setattr(BoundedPattern, "try_search", lambda _pattern, _name: next(told))
    assert [permissions.allows(ALICE, QUEUE, "write") for _ in range(3)] == [False, True, True]


@pytest.mark.parametrize(
    ("resource", "text"),
    [
        (QUEUE, "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'mallory'"),
        (Resource("exchange", "/", "x"),
         "ACCESS_REFUSED - access to exchange 'x' in vhost '/' refused for user 'mallory'"),
        (Resource("exchange", "v", ""),
         "ACCESS_REFUSED - access to exchange 'amq.default' in vhost 'v' refused for user 'mallory'"),
    ],
)  # fmt: skip
def test_a_refusal_is_told_in_rabbitmqs_words(resource: Resource, text: str, permissions: Permissions) -> None:
    """A refusal is 403 with RabbitMQ's text, also where no right would be enough."""
    for refusal in (lambda: permissions.check(MALLORY, resource, "write"),
                    lambda: permissions.check_any(MALLORY, resource)):  # fmt: skip
        with pytest.raises(ChannelError) as refused:
            refusal()
        assert refused.value.reply_text == text


def test_any_right_is_enough_to_see_that_a_queue_is_there(permissions: Permissions) -> None:
    """A user with any right to a queue may see that the queue exists."""
    permissions.check_any(ALICE, Resource("queue", "/", "not.own"))
    with pytest.raises(ChannelError):
        permissions.check_any(ALICE, Resource("queue", "/", "secret"))


def test_a_user_without_rights_may_open_no_vhost_and_use_no_topic_once_deleted(permissions: Permissions) -> None:
    """A user whose rights were deleted gets 530 for a vhost and 403 for a topic."""
    permissions.check_vhost(ALICE, "/")
    for user, vhost in ((ALICE, "other"), (MALLORY, "/")):
        with pytest.raises(ConnectionFault) as refused:
            permissions.check_vhost(user, vhost)
        text = f"NOT_ALLOWED - access to vhost '{vhost}' refused for user '{user.name}'"
        assert refused.value.reply_text == text
    with pytest.raises(ChannelError) as topic:
        permissions.check_topic(User("gone"), Resource("exchange", "/", "x"), "a.b", "write")
    assert topic.value.reply_text == (
        "ACCESS_REFUSED - access to topic 'a.b' in exchange 'x' in vhost '/' refused for user 'gone'"
    )


def test_a_change_is_seen_at_once_and_told(permissions: Permissions) -> None:
    """A change drops the cached answers of its user at once and is announced."""
    told: list[tuple[str, str]] = []
    permissions.listeners.append(lambda user, vhost: told.append((user, vhost)))
    assert not permissions.allows(ALICE, QUEUE, "read")
    permissions.set("alice", "/", "", "", "q")
    assert permissions.allows(ALICE, QUEUE, "read")
    permissions.clear("alice", "/")
    assert not permissions.allows(ALICE, QUEUE, "read") and not permissions.allows_vhost(ALICE, "/")
    permissions.clear("alice", "/")
    permissions.topics.set("alice", "/", "amq.topic", "", "")
    permissions.topics.clear("alice", "/")
    assert told == [("alice", "/")] * 4


def test_the_rights_of_a_user_or_a_vhost_that_is_gone_go_too() -> None:
    """Deleting a user or a vhost deletes its rights; a new one of the same name starts without any."""
    users = Users()
    permissions = Permissions(users)
    for name in ("alice", "bob"):
        users.put(User(name))
        for vhost in ("/", "v"):
            permissions.set(name, vhost, ".*", ".*", ".*")
            permissions.topics.set(name, vhost, "amq.topic", "", "")
    assert permissions.allows(ALICE, QUEUE, "read")
    users.delete("alice")
    users.put(User("alice"))
    assert not permissions.allows(ALICE, QUEUE, "read")
    permissions.forget_vhost("v")
    assert [(row["user"], row["vhost"]) for row in permissions.listing()] == [("bob", "/")]
    assert [(row["user"], row["vhost"]) for row in permissions.topics.listing()] == [("bob", "/")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rights: rights.set("nobody", "/", "", "", ""), "User 'nobody' does not exist"),
        (lambda rights: rights.clear("nobody", "/"), "User 'nobody' does not exist"),
        (lambda rights: rights.topics.clear("nobody", "/"), "User 'nobody' does not exist"),
        (lambda rights: rights.set("alice", "/", "", "(", ""), r"regular expression '\(' is invalid: missing \)"),
        (lambda rights: rights.topics.set("alice", "/", "x", "[", ""), r"regular expression '\[' is invalid"),
    ],
)
def test_a_change_that_cannot_be_changes_nothing(
    change: Callable[[Permissions], None], reason: str, permissions: Permissions
) -> None:
    """A refused change changes nothing and gives its reason."""
    before = permissions.listing()
    with pytest.raises(ValueError, match=reason):
        change(permissions)
    assert (permissions.listing(), permissions.topics.listing()) == (before, [])


def test_rights_are_listed_as_they_were_set(permissions: Permissions) -> None:
    """The texts that are listed are the texts that were set, not their compiled form."""
    permissions.set("alice", "v", "", "a", "b")
    permissions.topics.set("alice", "v", "amq.topic", "^{username}", "")
    assert permissions.listing(vhost="v") == [
        {"user": "alice", "vhost": "v", "configure": "", "write": "a", "read": "b"}
    ]
    assert permissions.listing(user="mallory") == []
    assert permissions.topics.listing(user="alice") == [
        {"user": "alice", "vhost": "v", "exchange": "amq.topic", "write": "^{username}", "read": ""}
    ]


@pytest.mark.parametrize(
    ("write", "key", "allowed"),
    [
        ("^ok\\.", "ok.a", True),
        ("^ok\\.", "no.a", False),
        ("", "any", False),
        ("^{username}\\.{vhost}$", "al.*ce./", True),
        ("^{username}\\.", "alice.", False),
        ("^{client_id}$", "{client_id}", True),
        ("^{other}$", "{other}", True),
    ],
)
def test_a_topic_right_is_an_expression_over_routing_keys(write: str, key: str, allowed: bool) -> None:
    """A user name in a topic right is literal: al.*ce is not an expression. Other exchanges stay open."""
    users = Users()
    users.put(User("al.*ce"))
    permissions = Permissions(users)
    permissions.topics.set("al.*ce", "/", "amq.topic", write, ".*")
    user = User("al.*ce")
    if allowed:
        permissions.check_topic(user, TOPIC, key, "write")
    else:
        with pytest.raises(ChannelError):
            permissions.check_topic(user, TOPIC, key, "write")
    permissions.check_topic(user, TOPIC, key, "read")
    permissions.check_topic(user, Resource("exchange", "/", "other"), key, "write")
    permissions.check_topic(user, Resource("exchange", "v", "amq.topic"), key, "write")


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (commands.Exchange.Declare(exchange=""), "operation not permitted on the default exchange"),
        (commands.Exchange.Delete(exchange=""), "operation not permitted on the default exchange"),
        (commands.Exchange.Delete(exchange="amq.topic"),
         "deletion of system exchange 'amq.topic' in vhost '/' not allowed"),
        (commands.Queue.Declare(queue="amq.q"), "queue name 'amq.q' contains reserved prefix 'amq.*'"),
    ],
)  # fmt: skip
def test_what_nobody_may_do_is_told_before_what_this_user_may_not(method: Method, text: str, client: Client) -> None:
    """A refusal that holds for everybody comes before the missing right of this user, as in RabbitMQ."""
    client.session.permissions = Permissions(Users())
    assert client.refused(method) == f"channel 403 ACCESS_REFUSED - {text}"


def test_a_bind_without_the_right_to_the_queue_is_refused_before_its_exchange_is_looked_at(client: Client) -> None:
    """A bind checks the right to write to the queue before it checks the exchange, as in RabbitMQ."""
    client.session.permissions = Permissions(Users())
    close = client.refused(commands.Queue.Bind(queue="q", exchange=""))
    assert close == "channel 403 ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'guest'"


class QueuesOnly(Permissions):
    """Allows every queue and no exchange."""

    def check(self, user: User, resource: Resource, kind: str) -> None:
        if resource.kind == "exchange":
            raise ChannelError(403, "no right")


@pytest.mark.interpreted("a ledger takes the place of the permissions")
def test_a_bind_to_the_default_exchange_is_refused_before_the_right_to_it_is_asked(client: Client) -> None:
    """A bind to the default exchange is refused before its right is checked, because no one may bind to it."""
    client.session.permissions = QueuesOnly(Users())
    for method in (commands.Queue.Bind(queue="q", exchange="x"), commands.Queue.Bind(queue="q", exchange="")):
        close = client.refused(method)
        client.reopen_channel()
    assert close == "channel 403 ACCESS_REFUSED - operation not permitted on the default exchange"


def into(found: list[Rows], writing: Generator[None, None, Rows]) -> Iterator[None]:
    """Take the steps of some work, and add its result."""
    found.append((yield from writing))


def test_rights_are_written_one_by_one(permissions: Permissions) -> None:
    """A change writes the rights of 50,000 users, and other clients are served between them."""
    for number in range(9):
        permissions.set("alice", f"v{number}", "", "", ".*")
        permissions.topics.set("alice", f"v{number}", "x", "a", "b")
    for writing, listed in (
        (permissions.writing(), permissions.listing()),
        (permissions.topics.writing(), permissions.topics.listing()),
    ):
        found: list[Rows] = []
        assert len(list(into(found, writing))) == len(listed) >= 9
        assert found == [listed]
