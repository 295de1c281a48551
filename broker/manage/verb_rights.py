"""What a user needs for a verb of the control socket over HTTP: a tag, and the permissions that AMQP asks for.

At the socket itself nobody is asked: its file is for the broker's own user of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.core.auth.permissions import Kind
from broker.core.names import TRACE
from broker.core.queue.queue import Queue
from broker.core.resource import Resource
from broker.core.session.publication import check_user_id
from broker.manage.rights import (
    check_cursor,
    check_destination,
    check_new_tap,
    check_publish,
    check_seal,
    check_tap,
)
from broker.net.control_request import Asker, ControlRefused, Request, Verb
from broker.net.control_verbs.refusing import refusing, vhost_of
from broker.net.control_verbs.topology import binding_of, table_of

if TYPE_CHECKING:
    from broker.core.vhost import Vhost
    from broker.manage.call import Call

__all__ = ["READING_VERBS", "as_user"]

READING_VERBS: Final = frozenset(
    (
        *("health", "status", "top", "slots", "taps", "cursors", "cluster", "overlay", "overlay_explain", "zmq"),
        *("list_queues", "list_exchanges", "list_bindings", "list_vhosts"),
        *("list_connections", "list_channels", "list_consumers"),
    )
)
"""What a user with the tag monitoring may ask; all else is for administrators."""
BY_TAG: Final = READING_VERBS | frozenset(
    (
        *("list_users", "list_permissions", "list_topic_permissions", "list_policies", "list_operator_policies"),
        *("add_user", "set_user", "delete_user", "set_user_limits", "clear_user_limits"),
        *("set_permission", "delete_permission", "set_topic_permission", "delete_topic_permission"),
        *("add_vhost", "delete_vhost", "set_vhost_limits", "clear_vhost_limits", "set_policy", "delete_policy"),
        *("export_definitions", "import_definitions", "backup", "reload", "settings", "stop"),
        *("close_connection", "set_tracing", "cluster_leave", "overlay_forget"),
    )
)
"""What takes a tag alone, as in RabbitMQ's API: it shows no message and changes none."""

Check = Callable[["Call", Request], None]


def as_user(call: Call, name: str, verb: Verb, fields: Mapping[str, Any]) -> Verb:
    """Return a verb that is carried out if the caller's permissions allow it; the tag is checked."""

    def answer(request: Request) -> Any:
        checked = Request({**fields, "maker": call.user.name}, LoggedInAsker(request.asker, still))
        if name not in BY_TAG:
            CHECKS[name](call, checked)
        return verb(checked)

    def still() -> None:
        if not call.lasts():
            raise ControlRefused(f"the login of user '{call.user.name}' has ended")
        if name not in BY_TAG:
            CHECKS[name](call, Request(fields))

    return refusing(answer)


class LoggedInAsker(Asker):
    """A client that a lasting verb, such as a trace, shows more only while `still` raises nothing."""

    def __init__(self, asker: Asker, still: Callable[[], None]) -> None:
        self._asker = asker
        self._still = still

    def tell(self, progress: Mapping[str, Any]) -> None:
        """Send progress."""
        self._asker.tell(progress)

    async def say(self, progress: Mapping[str, Any]) -> None:
        """Send progress, if the client may still have it. Raises: ChannelError, ControlRefused."""
        self._still()
        await self._asker.say(progress)

    def enough(self) -> bool:
        """Return whether the client has ended its side."""
        return self._asker.enough()

    async def accepted(self) -> bool:
        """Wait for a line of the client."""
        return await self._asker.accepted()


def _vhost(call: Call, request: Request) -> Vhost:
    return vhost_of(request, call.broker.administration)


def _of_queue(kind: Kind) -> Check:
    def check(call: Call, request: Request) -> None:
        resource = _vhost(call, request).queue_resource(request.text("queue"))
        call.broker.permissions.check(call.user, resource, kind)

    return check


def _delete_exchange(call: Call, request: Request) -> None:
    resource = _vhost(call, request).exchange_resource(request.text("exchange"))
    call.broker.permissions.check(call.user, resource, "configure")


def _declare_queue(call: Call, request: Request) -> None:
    vhost, name = _vhost(call, request), request.text("queue")
    _declare(call, request, vhost.queue_resource(name), is_new=name not in vhost.queues)


def _declare_exchange(call: Call, request: Request) -> None:
    vhost, name = _vhost(call, request), request.text("exchange")
    _declare(call, request, vhost.exchange_resource(name), is_new=name not in vhost.exchanges)


def _declare(call: Call, request: Request, resource: Resource, *, is_new: bool) -> None:
    permissions = call.broker.permissions
    permissions.check(call.user, resource, "configure")
    if is_new:
        permissions.check_new(call.user, resource, table_of(request))


def _bind(call: Call, request: Request) -> None:
    vhost, permissions = _vhost(call, request), call.broker.permissions
    source, destination, key, _arguments = binding_of(request, vhost)
    named = vhost.queue_resource if isinstance(destination, Queue) else vhost.exchange_resource
    permissions.check(call.user, named(destination.name), "write")
    permissions.check_source(call.user, vhost.exchange_resource(source.name), source, key)


def _publish(call: Call, request: Request) -> None:
    _to(call, request)
    properties = request.table("properties") if request.has("properties") else {}
    check_user_id(call.user, properties.get("user_id"))


def _move(call: Call, request: Request) -> None:
    OF_QUEUE["read"](call, request)
    _to(call, request)


def _to(call: Call, request: Request) -> None:
    """Check the destination now, and the keys of the messages one by one."""
    vhost = _vhost(call, request)
    check_destination(call, vhost, request.text("to"))
    request.check_publish = partial(check_publish, call, vhost)


def _requeue(call: Call, request: Request) -> None:
    vhost = _vhost(call, request)
    OF_QUEUE["read"](call, request)
    if request.text("into", "queue") == "queue":
        check_publish(call, vhost, vhost.exchanges[""], ())
    request.check_publish = partial(check_publish, call, vhost)


def _trace(call: Call, request: Request) -> None:
    call.broker.permissions.check(call.user, _vhost(call, request).exchange_resource(TRACE), "read")


def _add_tap(call: Call, request: Request) -> None:
    exchange = request.text("exchange")
    name = request.optional("name") or exchange or "default"
    check_new_tap(call, _vhost(call, request), name, exchange, request.text("pattern"))


def _remove_tap(call: Call, request: Request) -> None:
    check_tap(call, request.text("vhost", "/"), request.text("name"), "configure")


def _seal(call: Call, request: Request) -> None:
    check_seal(call, request.optional("vhost"), request.optional("tap"))


def _drop_snapshot(call: Call, request: Request) -> None:
    snapshot = call.broker.taps.snapshots.get(request.text("id"))
    if snapshot is not None:
        call.broker.permissions.check(call.user, Resource("queue", snapshot.vhost, snapshot.queue), "read")


def _cursor(call: Call, request: Request) -> None:
    vhost, tap = request.text("vhost", "/"), request.text("tap")
    check_cursor(call, request.text("name"), vhost, tap)
    if request.has("user"):  # to whom the cursor is given
        check_tap(call, vhost, tap, "configure")


def _read_taps(call: Call, request: Request) -> None:
    for tap in request.texts("taps"):
        check_tap(call, request.text("vhost", "/"), tap)


OF_QUEUE: Final[Mapping[Kind, Check]] = {"configure": _of_queue("configure"), "read": _of_queue("read")}
CHECKS: Final[Mapping[str, Check]] = {
    "declare_queue": _declare_queue,
    "declare_exchange": _declare_exchange,
    "delete_queue": OF_QUEUE["configure"],
    "delete_exchange": _delete_exchange,
    "bind": _bind,
    "unbind": _bind,
    "pause_queue": OF_QUEUE["configure"],
    "resume_queue": OF_QUEUE["configure"],
    "purge_queue": OF_QUEUE["read"],
    "peek": OF_QUEUE["read"],
    "unacked": OF_QUEUE["read"],
    "get": OF_QUEUE["read"],
    "publish": _publish,
    "move": _move,
    "requeue_dead_letters": _requeue,
    "trace": _trace,
    "tap_add": _add_tap,
    "tap_remove": _remove_tap,
    "seal": _seal,
    "tap_read": _read_taps,
    "snapshot": OF_QUEUE["read"],
    "snapshot_drop": _drop_snapshot,
    "cursor_set": _cursor,
    "cursor_remove": _cursor,
}
"""What takes permissions as well. A verb that stands in neither table is for the socket alone."""
