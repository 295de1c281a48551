"""Sessions of the web page, the caller's name and tags, and counts of logins."""

from __future__ import annotations

from typing import Any, Final

from broker.core.auth.login_counts import LoginCount
from broker.core.auth.users import User
from broker.event_log import get_logger
from broker.manage.answers import Response, json_answer, no_content
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.login import cookie_name, token_of
from broker.manage.managed_broker import ManagedBroker
from broker.manage.origin import check_page

OF_NODE: Final = "/api/auth/attempts/{node}"
LOGIN_MAX_BYTES: Final = 4096  # small, because the request needs no login

_log = get_logger()


async def begin(call: Call) -> Response:
    """Begin a session of the web page for the user whose name and password are in the body."""
    headers = call.request.headers
    check_page(headers)
    fields = await call.fields(("username", "password"), LOGIN_MAX_BYTES)
    name, password = fields.text("username"), fields.text("password")
    user = await call.login.check(name, password.encode(), headers, call.client)
    Needs.MANAGEMENT.check(user)
    limit_s = call.broker.settings().http.session_ms // 1000
    cookie = session_cookie(call, call.login.sessions.begin(user), limit_s)
    _log.info("http.session_began", conn=call.client.peer.name, user=user.name)
    return json_answer(whoami_fields(call.broker, user), headers={"Set-Cookie": cookie})


async def end(call: Call) -> Response:
    """End the session of the request, if it has one."""
    check_page(call.request.headers)
    token = token_of(call.request.headers)
    if token is not None:
        call.login.sessions.end(token)
    answer = no_content()
    answer.headers["Set-Cookie"] = session_cookie(call, "", 0)
    return answer


def session_cookie(call: Call, token: str, limit_s: int) -> str:
    """Return the value of Set-Cookie."""
    secure = "; Secure" if call.request.scope["scheme"] == "https" else ""
    name = cookie_name(call.request.headers)
    return f"{name}={token}; Path=/; Max-Age={limit_s}; HttpOnly; SameSite=Strict{secure}"


async def whoami(call: Call) -> Response:
    """Answer with the caller's name and tags."""
    return json_answer(whoami_fields(call.broker, call.user))


def whoami_fields(broker: ManagedBroker, user: User) -> dict[str, Any]:
    """Return the name and tags of a user; `is_internal_user` is false for a user who is defined in the settings."""
    configured = broker.administration.users.is_configured(user.name)
    return {"name": user.name, "tags": list(user.tags), "is_internal_user": not configured}


def _row(count: LoginCount) -> dict[str, Any]:
    return {
        "auth_attempts": count.succeeded + count.failed,
        "auth_attempts_failed": count.failed,
        "auth_attempts_succeeded": count.succeeded,
    }


async def attempts(call: Call) -> Response:
    """Answer with the counts of logins by protocol."""
    call.check_node()
    counts = call.broker.logins.counts.by_protocol
    return json_answer([{"protocol": protocol, **_row(count)} for protocol, count in sorted(counts.items())])


async def attempts_by_source(call: Call) -> Response:
    """Answer with the counts of logins by network and protocol."""
    call.check_node()
    rows = [
        {"remote_address": network, "username": "", "protocol": protocol, **_row(count)}
        for (network, protocol), count in call.broker.logins.counts.by_source.items()
    ]
    return json_answer(rows)


async def clear(call: Call) -> None:
    """Reset the counts of logins."""
    call.check_node()
    call.broker.logins.counts.clear()


ROUTES: Final = (
    ApiRoute("POST", "/api/session", Needs.NOTHING, begin, ()),
    ApiRoute("DELETE", "/api/session", Needs.NOTHING, end, ()),
    ApiRoute("GET", "/api/whoami", Needs.MANAGEMENT, whoami),
    ApiRoute("GET", OF_NODE, Needs.MONITORING, attempts),
    ApiRoute("GET", f"{OF_NODE}/source", Needs.MONITORING, attempts_by_source),
    ApiRoute("DELETE", OF_NODE, Needs.ADMINISTRATOR, clear),
    ApiRoute("DELETE", f"{OF_NODE}/source", Needs.ADMINISTRATOR, clear),
)
