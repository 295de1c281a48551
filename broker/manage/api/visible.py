"""What a caller sees: the vhosts, connections and channels that a list is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.manage.needs import Needs

if TYPE_CHECKING:
    from broker.core.session.connection import SessionOfConnection
    from broker.core.vhost import Vhost
    from broker.manage.call import Call

__all__ = ["visible_sessions", "visible_vhosts"]


def visible_vhosts(call: Call) -> list[Vhost]:
    """Return the vhost that the path names, or without one all that the caller sees, in order of their names.

    Raises: HttpRefused 404, 401.
    """
    if "vhost" in call.words:
        return [call.vhost()]
    vhosts = call.broker.administration.vhosts
    return [vhosts[name] for name in sorted(vhosts) if call.sees_vhost(name)]


def visible_sessions(call: Call) -> list[SessionOfConnection]:
    """Return the connections that the caller sees: those of the vhost or user that the path names, or all.

    A user without the tag monitoring sees only those that are logged in as that user. Source: rabbit_mgmt_util,
    filter_conn_ch_list.
    Raises: HttpRefused 404, 401.
    """
    found = [session for session in call.broker.listener.sessions() if session.user is not None]
    if "vhost" in call.words:
        vhost = call.vhost()
        found = [session for session in found if session.vhost is vhost]
    names = {call.words["user"]} if "user" in call.words else None
    if not call.may(Needs.MONITORING):
        names = {call.user.name} if names is None else names & {call.user.name}
    return [one for one in found if names is None or (one.user is not None and one.user.name in names)]
