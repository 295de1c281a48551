"""A request with its route and user, and the login or tag that a route requires."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request

from broker.amqp.table_writer import encode_table
from broker.core.auth.users import User
from broker.core.definitions.json_text import read_json
from broker.core.moving.placement import CheckPublish
from broker.core.session.connection import SessionOfConnection
from broker.core.vhost import Vhost
from broker.manage.answers import Response
from broker.manage.client import ApiClient
from broker.manage.login import HttpLogin
from broker.manage.managed_broker import ManagedBroker
from broker.manage.refusal import HttpRefused, bad_request, not_authorised, not_found
from broker.manage.request_target import query_pairs
from broker.operations.request import Asker, OperationRefused, read
from broker.operations.request import Request as Fields
from broker.operations.rights import check_publish
from broker.operations.table import OPERATIONS

READING = frozenset({"GET", "HEAD", "OPTIONS"})
FLAGS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Call:
    """A request of an authenticated user. On a route that needs no login, the user has no name.

    Shapes: `words` are the values of the names in the route's path, `query` the parameters after the question mark;
        `needs` is the requirement of the route; `lasts` returns whether the login is still valid, for long answers.
    """

    broker: ManagedBroker
    request: Request
    client: ApiClient
    user: User
    login: HttpLogin
    lasts: Callable[[], bool]
    words: Mapping[str, str]
    query: Mapping[str, str]
    needs: Needs

    def every(self, name: str) -> list[str]:
        """Return the values of a parameter that can be repeated."""
        return [value for key, value in query_pairs(self.request.scope["query_string"]) if key == name]

    def asks(self, name: str) -> bool:
        """Return whether a parameter of the query is true."""
        return self.query.get(name) == "true"

    @property
    def reads(self) -> bool:
        """Whether the request changes nothing."""
        return self.request.method in READING

    def may(self, needs: Needs) -> bool:
        """Return whether the user's tags suffice."""
        return needs.met_by(self.user)

    def check_node(self) -> None:
        """Check that the path names this node, or none. Raises: HttpRefused (404)."""
        if not self.broker.is_named(self.words.get("node", self.broker.node_name)):
            raise not_found()

    def sees_vhost(self, name: str) -> bool:
        """Return whether the user may read a vhost: by a permission in it, or by a tag."""
        return self.may(Needs.MONITORING) or self.broker.permissions.allows_vhost(self.user, name)

    def vhost(self) -> Vhost:
        """Return the vhost that the path names. Users with the tag monitoring may read every vhost, and administrators
        may administer every vhost.

        Raises: HttpRefused: 404 if it does not exist, 401 for a user without access, 503 if it is offline.
        """
        name = self.words["vhost"]
        vhosts = self.broker.administration.vhosts
        if name not in vhosts and not vhosts.is_down(name):
            raise not_found()
        administrative = (Needs.ADMINISTRATOR, Needs.POLICYMAKER)
        by_tag = (self.needs in administrative and self.may(Needs.ADMINISTRATOR)) or (
            self.reads and self.may(Needs.MONITORING)
        )
        if not by_tag and not self.broker.permissions.allows_vhost(self.user, name):
            raise not_authorised("User not authorised to access virtual host")
        if vhosts.is_down(name):
            reason = f": {vhosts.offline[name]}" if self.may(Needs.MONITORING) else ""  # the reason names files
            raise HttpRefused(503, f"vhost '{name}' is down{reason}")
        return vhosts[name]

    def allowed(self, operation_name: str, /, **arguments: Any) -> Fields:
        """Return the request for an operation that the user may run. Raises: ChannelError (403), OperationRefused."""
        operation, request = OPERATIONS[operation_name], Fields(arguments, UserAsker(self))
        if operation.right is not None:
            operation.right(self.broker, self.user, read(operation.parameters, request))
        return request

    async def operate(self, operation: str, /, **arguments: Any) -> Any:
        """Run an operation as the user. Raises: ChannelError (403); errors of the operation, see `refusal_of`."""
        return await self.broker.verbs[operation](self.allowed(operation, **arguments))

    async def fields(
        self,
        known: Collection[str] | None = None,
        body_max_bytes: int | None = None,
        *,
        required: Collection[str] = (),
    ) -> BodyFields:
        """Return the fields of the body, which is a JSON object or empty.

        Raises: HttpRefused if the body is invalid, or a field is unknown or missing.
        """
        body = await self.body(body_max_bytes)
        try:
            found: Any = read_json(body) if body else {}
        except ValueError as error:
            raise bad_request(f"the body should be a JSON object: {error}") from None
        if not isinstance(found, dict):
            raise bad_request("the body should be a JSON object")
        unknown = [] if known is None else sorted(found.keys() - set(known))
        if unknown:
            raise bad_request(f"no field '{unknown[0]}' here")
        if missing := [name for name in required if found.get(name) is None]:
            raise bad_request(f"missing: {', '.join(missing)}")
        return BodyFields(found)

    async def body(self, max_bytes: int | None = None) -> bytes:
        """Return the whole body. The limit on its size is `max_bytes`, by default http.body_max_bytes.

        Raises: HttpRefused if the body cannot be read completely, for example 413 if it is too large.
        """
        http = self.broker.settings().http
        timeout_s = http.timeout_ms / 1000
        limit_bytes = http.body_max_bytes if max_bytes is None else max_bytes
        too_large = HttpRefused(413, f"a body has at most {limit_bytes} bytes", fatal=True)
        if int(self.request.headers.get("content-length", "0")) > limit_bytes:
            raise too_large
        pieces, size_bytes = [], 0
        try:
            async with asyncio.timeout(timeout_s):
                async for piece in self.request.stream():
                    pieces.append(piece)
                    size_bytes += len(piece)
                    if size_bytes > limit_bytes:
                        raise too_large
        except TimeoutError:
            raise HttpRefused(408, f"a request takes at most {timeout_s:g} s", fatal=True) from None
        except ClientDisconnect:
            raise HttpRefused(400, "the client left", fatal=True) from None
        return b"".join(pieces)


class BodyFields(Fields):
    """The fields of a body. Numbers and booleans may be strings, because some of RabbitMQ's tools send them so.

    Raises: OperationRefused, answered with 400.
    """

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if isinstance(value, str) and value in FLAGS:
            return FLAGS[value]
        return value is not None and super().flag(name)

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, sent as a number or as a string."""
        value = self.value(name)
        is_number = isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit()
        if is_number and len(value) <= len(str(high)) and low <= int(value) <= high:
            return int(value)
        return self.integer(name, default, low, high)

    def texts(self, name: str) -> list[str]:
        """Return a list of strings, sent as a list or as one string with commas."""
        value = self.value(name)
        if isinstance(value, str):
            return [text.strip() for text in value.split(",") if text.strip()]
        return [] if value is None else super().texts(name)

    def arguments(self, name: str) -> dict[str, Any]:
        """Return a table of arguments that AMQP can encode, empty by default."""
        value = self.value(name)
        if value is None or value == []:  # some languages encode an empty object as a list
            return {}
        if not isinstance(value, dict):
            raise OperationRefused(f"'{name}' should be an object")
        try:
            encode_table(value)
        except ValueError as error:
            raise OperationRefused(f"'{name}': {error}") from None
        return value


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A route; GET includes HEAD.

    Shapes: a word of `path` in braces matches one segment that is not empty. `respond` returns None for a change
        without a result; `parameters` are the query parameters that are allowed, or None to allow any; `repeats` are
        the parameters that can be repeated.
    """

    method: str
    path: str
    needs: Needs
    respond: Callable[[Call], Awaitable[Response | None]]
    parameters: Sequence[str] | None = None
    repeats: Collection[str] = ()


class UserAsker(Asker):
    """A user who requests operations over HTTP. `conversation` is set if the command line sent the request. A long
    command, such as a trace, ends when the login is no longer valid or `recheck` raises an error.
    """

    def __init__(
        self, call: Call, conversation: Asker | None = None, recheck: Callable[[], None] = lambda: None
    ) -> None:
        self._call = call
        self._conversation = conversation
        self._recheck = recheck
        self.user_name = call.user.name

    def check_publish(self, vhost: Vhost) -> CheckPublish:
        return partial(check_publish, self._call.broker, self._call.user, vhost)

    def write_progress(self, progress: Mapping[str, Any]) -> None:
        if self._conversation is not None:
            self._conversation.write_progress(progress)

    async def send_progress(self, progress: Mapping[str, Any]) -> None:
        """Send progress, if the user may still see it. Raises: ChannelError, OperationRefused."""
        if not self._call.lasts():
            raise OperationRefused(f"the login of user '{self.user_name}' has ended")
        self._recheck()
        if self._conversation is not None:
            await self._conversation.send_progress(progress)

    def interrupted(self) -> bool:
        return self._call.client.is_gone() if self._conversation is None else self._conversation.interrupted()

    async def accepted(self) -> bool:
        return self._conversation is not None and await self._conversation.accepted()


def visible_vhosts(call: Call) -> list[Vhost]:
    """Return the vhost that the path names, or all vhosts that the caller sees. Raises: HttpRefused as `Call.vhost`."""
    if "vhost" in call.words:
        return [call.vhost()]
    vhosts = call.broker.administration.vhosts
    return [vhosts[name] for name in sorted(vhosts) if call.sees_vhost(name)]


def visible_sessions(call: Call) -> list[SessionOfConnection]:
    """Return the logged-in connections that the path selects and the caller may see. Users without the tag monitoring
    see only their own. Source: rabbit_mgmt_util, filter_conn_ch_list.
    Raises: HttpRefused as `Call.vhost`, and 404 if the path names a connection that is not among them.
    """
    found = [session for session in call.broker.listener.sessions() if session.user is not None]
    if "vhost" in call.words:
        vhost = call.vhost()
        found = [session for session in found if session.vhost is vhost]
    names = {call.words["user"]} if "user" in call.words else None
    if not call.may(Needs.MONITORING):
        names = {call.user.name} if names is None else names & {call.user.name}
    found = [one for one in found if names is None or (one.user is not None and one.user.name in names)]
    if "connection" in call.words:
        found = [one for one in found if one.name == call.words["connection"]][:1]
        if not found:
            raise not_found()
    return found


class Needs(Enum):
    """The requirement of a route: the tags that satisfy it, and the reason given to users who have none of these.

    NOTHING requires no login, LOGIN any user. Source: RabbitMQ's table of management permissions, and the texts of
    rabbit_web_dispatch_access_control.
    """

    NOTHING = ("", "no login")
    LOGIN = ("", "a login")
    MANAGEMENT = ("management policymaker monitoring administrator", "Not management user")
    POLICYMAKER = ("policymaker administrator", "User not authorised to access object")
    MONITORING = ("monitoring administrator", "Not monitor user")
    ADMINISTRATOR = ("administrator", "Not administrator user")

    def met_by(self, user: User) -> bool:
        """Return whether a user's tags meet the requirement."""
        return not self.value[0] or not set(user.tags).isdisjoint(self.value[0].split())

    def check(self, user: User) -> None:
        """Refuse a user who does not meet the requirement. Raises: HttpRefused (401)."""
        if not self.met_by(user):
            raise not_authorised(self.value[1])
