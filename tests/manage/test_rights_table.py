"""Rights over HTTP: every route and every verb, with each tag, in a vhost of one's own and in another.

The tables are written by hand, from RabbitMQ's table of tags and the permissions of AMQP: they are not derived from
what the code says that a route needs. A route or a verb without a row fails. A row is

    WHO[/WHO][:RIGHTS][!]  METHOD PATH [BODY]     or     WHO~WHO/WHO  METHOD PATH

The first WHO are the tags that suffice in the vhost `mine`, where each user may do everything, the second those that
suffice in `theirs`, where none has a permission: n is a user without tags, m management, p policymaker, o monitoring, a
administrator, - no one; `*` needs no login. RIGHTS are the permissions that are needed as well: configure, write, read.
`!` says that what is there for others does not exist for the refused (404). Behind `~` a list is asked: who sees what
is in `mine`, and who what is in `theirs`. In paths and bodies {v} is the vhost, whose resources begin with its name.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from hashlib import sha256
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import quote

import pika
import pytest

from broker.core.auth.password import SHA256
from broker.manage.app import http_routes, metrics_routes
from broker.testing import Broker
from tests.deadline import DEADLINE_S
from tests.http_talk import Response, Web, basic

PASSWORD = "an own password"
SALT = b"salt"
HASH = b64encode(SALT + sha256(SALT + PASSWORD.encode()).digest()).decode()  # checked in microseconds, unlike argon2's
TAGS = {"n": "", "m": "management", "p": "policymaker", "o": "monitoring", "a": "administrator"}
VHOSTS = ("mine", "theirs")
REFUSED = (401, 403)
KINDS = {"c": "configure", "w": "write", "r": "read"}

ROUTES = """
*             GET /healthz
*             GET /readyz
*             GET /
*             GET /page/{file}
*             GET /metrics
*             GET /metrics/per-object
*             GET /metrics/detailed
*             GET /api/auth
*             POST /api/session {"username": "guest", "password": "guest"}
*             DELETE /api/session

nmpoa         GET /v1/store
nmpoa~nmpoa/- GET /v1/seals
nmpoa~nmpoa/- GET /v1/taps
nmpoa/-:r     GET /v1/slots/{seal}
nmpoa/-:r     POST /v1/seal {"vhost": "{v}", "tap": "{v}.t"}
nmpoa/-:r     PUT /v1/cursors/{name} {"vhost": "{v}", "tap": "{v}.t", "seal": 0}
nmpoa/-:c     DELETE /v1/cursors/{name}?vhost={v}&tap={v}.t
nmpoa/-:r     POST /v1/snapshots {"vhost": "{v}", "queue": "{v}.q"}
nmpoa/-:r     GET /v1/snapshots/{id}/{n}
nmpoa/-:r     DELETE /v1/snapshots/{id}
oa            POST /v1/control {"verb": "status"}

mpoa          GET /api/slotmq
oa            GET /api/slotmq/cluster
a             DELETE /api/slotmq/cluster/nodes/{node}
oa            GET /api/slotmq/overlay
oa            GET /api/slotmq/overlay/explain?key=k
a             DELETE /api/slotmq/overlay/leaves/{leaf}
oa            GET /api/slotmq/zmq
mpoa~mpoa/oa  GET /api/slotmq/dead-letters
mpoa/oa       GET /api/slotmq/dead-letters/{vhost}
mpoa/-:r      GET /api/slotmq/retained/{vhost}
mpoa/-:r      DELETE /api/slotmq/retained/{vhost}?filter=a
mpoa~mpoa/oa  GET /api/slotmq/pipeline
a/-:cr        PUT /api/slotmq/pipeline/taps/{vhost}/{tap} {"exchange": "{v}.x", "pattern": "#"}
a/-:c         DELETE /api/slotmq/pipeline/taps/{vhost}/{tap}
a/-:r         POST /api/slotmq/pipeline/taps/{vhost}/{tap}/seal
a/-:r         PUT /api/slotmq/pipeline/taps/{vhost}/{tap}/cursors/{cursor} {"seal": 0}
a/-:c         DELETE /api/slotmq/pipeline/taps/{vhost}/{tap}/cursors/{cursor}

mpoa          GET /api/whoami
mpoa          GET /api/overview
mpoa          GET /api/version
mpoa          GET /api/cluster-name
a             PUT /api/cluster-name {"name": "c"}
mpoa          GET /api/extensions
mpoa          GET /api/feature-flags
a             PUT /api/feature-flags/{flag}/enable
mpoa          GET /api/deprecated-features
mpoa          GET /api/deprecated-features/used
a             POST /api/rebalance/queues
a             DELETE /api/reset
a             DELETE /api/reset/{node}
oa            GET /api/nodes
oa            GET /api/nodes/{node}
oa            GET /api/nodes/{node}/memory
oa            GET /api/auth/attempts/{node}
oa            GET /api/auth/attempts/{node}/source
a             DELETE /api/auth/attempts/{node}
a             DELETE /api/auth/attempts/{node}/source
oa            GET /api/history
mpoa/oa       GET /api/history/queues/{vhost}/{queue}
mpoa/oa       GET /api/live?topics=queue/{v}/{v}.q

mpoa~mpoa/oa  GET /api/vhosts
mpoa/oa       GET /api/vhosts/{vhost}
a/a           PUT /api/vhosts/{vhost} {}
a             DELETE /api/vhosts/{vhost}
a/a           POST /api/vhosts/{vhost}/start/{node}
a/a           POST /api/vhosts/{vhost}/deletion/protection
a/a           DELETE /api/vhosts/{vhost}/deletion/protection
a/a           GET /api/vhosts/{vhost}/permissions
a/a           GET /api/vhosts/{vhost}/topic-permissions
mpoa/oa       GET /api/vhosts/{vhost}/connections
mpoa/oa       GET /api/vhosts/{vhost}/channels
mpoa~mpoa/oa  GET /api/vhost-limits
mpoa/oa       GET /api/vhost-limits/{vhost}
a/a           PUT /api/vhost-limits/{vhost}/{limit} {"value": 1000}
a/a           DELETE /api/vhost-limits/{vhost}/{limit}

mpoa~mpoa/oa  GET /api/queues
mpoa~mpoa/oa  GET /api/queues/detailed
mpoa/oa       GET /api/queues/{vhost}
mpoa/oa       GET /api/queues/{vhost}/{queue}
mpoa/oa       GET /api/queues/{vhost}/{queue}/bindings
mpoa/-:c      PUT /api/queues/{vhost}/{queue} {"durable": true}
mpoa/-:c      DELETE /api/queues/{vhost}/{queue}
mpoa/-        POST /api/queues/{vhost}/{queue}/actions {"action": "sync"}
mpoa/-:r      POST /api/queues/{vhost}/{queue}/get {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
mpoa/-:r      GET /api/queues/{vhost}/{queue}/peek
mpoa/oa       GET /api/queues/{vhost}/{queue}/slots
mpoa/oa       GET /api/queues/{vhost}/{queue}/unacked
mpoa/-:r      POST /api/queues/{vhost}/{queue}/purge
mpoa/-:r      POST /api/queues/{vhost}/{queue}/release
mpoa/-:r      DELETE /api/queues/{vhost}/{queue}/contents
mpoa/-:rw     POST /api/queues/{vhost}/{queue}/move {"to": "{v}.x:k"}
mpoa/-:rw     POST /api/queues/{vhost}/{queue}/requeue-dead-letters {}
mpoa/-:c      POST /api/queues/{vhost}/{queue}/pause
mpoa/-:c      POST /api/queues/{vhost}/{queue}/resume

mpoa~mpoa/oa  GET /api/exchanges
mpoa/oa       GET /api/exchanges/{vhost}
mpoa/oa       GET /api/exchanges/{vhost}/{exchange}
mpoa/oa       GET /api/exchanges/{vhost}/{exchange}/bindings/source
mpoa/oa       GET /api/exchanges/{vhost}/{exchange}/bindings/destination
mpoa/-:c      PUT /api/exchanges/{vhost}/{exchange} {"type": "topic", "durable": true}
mpoa/-:c      DELETE /api/exchanges/{vhost}/{exchange}
mpoa/-:w      POST /api/exchanges/{vhost}/{exchange}/publish \
                {"properties": {}, "routing_key": "none", "payload": "x", "payload_encoding": "string"}
mpoa/-        POST /api/exchanges/{vhost}/{exchange}/route {"routing_key": "k"}
mpoa~mpoa/oa  GET /api/bindings
mpoa/oa       GET /api/bindings/{vhost}
mpoa/oa       GET /api/bindings/{vhost}/e/{exchange}/q/{queue}
mpoa/oa       GET /api/bindings/{vhost}/e/{exchange}/e/{destination}
mpoa/oa       GET /api/bindings/{vhost}/e/{exchange}/q/{queue}/{properties}
mpoa/oa       GET /api/bindings/{vhost}/e/{exchange}/e/{destination}/{properties}
mpoa/-:rw     POST /api/bindings/{vhost}/e/{exchange}/q/{queue} {"routing_key": "k"}
mpoa/-:rw     POST /api/bindings/{vhost}/e/{exchange}/e/{destination} {"routing_key": "k"}
mpoa/-:rw     DELETE /api/bindings/{vhost}/e/{exchange}/q/{queue}/{properties}
mpoa/-:rw     DELETE /api/bindings/{vhost}/e/{exchange}/e/{destination}/{properties}

mpoa~oa/oa    GET /api/connections
mpoa~oa/oa    GET /api/connections/username/{user}
oa/oa!        GET /api/connections/{connection}
oa/oa!        GET /api/connections/{connection}/channels
a/a           DELETE /api/connections/{connection}
a             DELETE /api/connections/username/{user}
mpoa~oa/oa    GET /api/channels
oa/oa!        GET /api/channels/{channel}
mpoa~mpoa/oa  GET /api/consumers
mpoa/oa       GET /api/consumers/{vhost}

mpoa          GET /api/health/checks/alarms
mpoa          GET /api/health/checks/local-alarms
mpoa          GET /api/health/checks/certificate-expiration/{within}/{unit}
mpoa          GET /api/health/checks/port-listener/{port}
mpoa          GET /api/health/checks/protocol-listener/{protocol}
mpoa          GET /api/health/checks/virtual-hosts
mpoa          GET /api/health/checks/node-is-mirror-sync-critical
mpoa          GET /api/health/checks/node-is-quorum-critical
mpoa          GET /api/health/checks/quorum-queues-without-elected-leaders/all-vhosts
mpoa          GET /api/health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}
mpoa/mpoa     GET /api/health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}
mpoa/mpoa     GET /api/health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}
mpoa          GET /api/health/checks/metadata-store/initialized
mpoa          GET /api/health/checks/metadata-store/initialized/with-data
mpoa          GET /api/health/checks/below-node-connection-limit
mpoa          GET /api/health/checks/ready-to-serve-clients
mpoa          GET /api/health/checks/is-in-service
mpoa          GET /api/healthchecks/node
mpoa          GET /api/healthchecks/node/{node}
mpoa/-:crw    GET /api/aliveness-test/{vhost}

mpoa~mpoa/oa  GET /api/policies
mpoa/oa       GET /api/policies/{vhost}
mpoa/oa       GET /api/policies/{vhost}/{policy}
pa/a          PUT /api/policies/{vhost}/{policy} {"pattern": "^none$", "definition": {"max-length": 9}}
pa/a          DELETE /api/policies/{vhost}/{policy}
mpoa~mpoa/oa  GET /api/operator-policies
mpoa/oa       GET /api/operator-policies/{vhost}
mpoa/oa       GET /api/operator-policies/{vhost}/{policy}
a/a           PUT /api/operator-policies/{vhost}/{policy} {"pattern": "^none$", "definition": {"max-length": 9}}
a/a           DELETE /api/operator-policies/{vhost}/{policy}
pa~pa/a       GET /api/parameters
pa~pa/a       GET /api/parameters/{component}
pa/a          GET /api/parameters/{component}/{vhost}
pa/a          GET /api/parameters/{component}/{vhost}/{name}
pa/a          PUT /api/parameters/{component}/{vhost}/{name} {"value": 1}
pa/a          DELETE /api/parameters/{component}/{vhost}/{name}
pa            GET /api/global-parameters
pa            GET /api/global-parameters/{name}
pa            PUT /api/global-parameters/{name} {"value": 1}
pa            DELETE /api/global-parameters/{name}

a~a/a         GET /api/definitions
a             POST /api/definitions {}
a/a           GET /api/definitions/{vhost}
a/a           POST /api/definitions/{vhost} {}
a             GET /api/users
a             GET /api/users/without-permissions
a             POST /api/users/bulk-delete {"users": []}
a             GET /api/users/{user}
a             PUT /api/users/{user} {"password_hash": "", "tags": ""}
a             DELETE /api/users/{user}
a             GET /api/users/{user}/permissions
a             GET /api/users/{user}/topic-permissions
mpoa          GET /api/user-limits
mpoa          GET /api/user-limits/{user}
a             PUT /api/user-limits/{user}/{limit} {"value": 1000}
a             DELETE /api/user-limits/{user}/{limit}
a~a/a         GET /api/permissions
a/a           GET /api/permissions/{vhost}/{user}
a/a           PUT /api/permissions/{vhost}/{user} {"configure": "", "write": "", "read": ""}
a/a           DELETE /api/permissions/{vhost}/{user}
a~a/a         GET /api/topic-permissions
a/a           GET /api/topic-permissions/{vhost}/{user}
a/a           PUT /api/topic-permissions/{vhost}/{user} {"exchange": "{v}.x", "write": "", "read": ""}
a/a           DELETE /api/topic-permissions/{vhost}/{user}
a/a           DELETE /api/topic-permissions/{vhost}/{user}/{exchange}
"""
VERBS = """
oa      health
oa      status
oa      top
oa      taps
oa      cursors
oa      list_queues
oa      list_exchanges
oa      list_bindings
oa      list_vhosts
oa      list_connections
oa      list_channels
oa      list_consumers
oa      cluster
oa      overlay
oa      overlay_explain {"key": "k"}
oa      zmq
oa/oa   slots {"queue": "{v}.q"}

a       list_users
a       list_permissions
a       list_topic_permissions
a       list_policies
a       list_operator_policies
a       add_user {"name": "", "password": "x"}
a       set_user {"name": "someone", "tags": []}
a       delete_user {"name": "nobody"}
a       set_user_limits {"name": "someone", "limits": {"max-channels": 9}}
a       clear_user_limits {"name": "someone"}
a/a     set_permission {"user": "someone", "configure": "", "write": "", "read": ""}
a/a     delete_permission {"user": "someone"}
a/a     set_topic_permission {"user": "someone", "exchange": "{v}.x", "write": "", "read": ""}
a/a     delete_topic_permission {"user": "someone"}
a       add_vhost {"name": "mine"}
a       delete_vhost {"name": "none"}
a/a     set_vhost_limits {"name": "{v}", "limits": {"max-queues": 1000}}
a/a     clear_vhost_limits {"name": "{v}"}
a/a     set_policy {"name": "{v}.p", "pattern": "^none$", "definition": {"max-length": 9}}
a/a     delete_policy {"name": "{v}.p"}
a/a     export_definitions
a/a     import_definitions {"definitions": {}}
a       backup {"target": "here"}
a       reload
a       settings
a       stop
a       close_connection {"name": "none"}
a       drain {"connection": "none"}
a/a     set_tracing {"on": false}
a       cluster_leave {"node": "n"}
a       overlay_forget {"leaf": "l"}

a/-:c   declare_queue {"queue": "{v}.d"}
a/-:c   delete_queue {"queue": "{v}.d"}
a/-:c   declare_exchange {"exchange": "{v}.e", "type": "topic"}
a/-:c   delete_exchange {"exchange": "{v}.e"}
a/-:rw  bind {"exchange": "{v}.x", "destination": "{v}.q", "key": "v"}
a/-:rw  unbind {"exchange": "{v}.x", "destination": "{v}.q", "key": "k"}
a/-:c   pause_queue {"queue": "{v}.q"}
a/-:c   resume_queue {"queue": "{v}.q"}
a/-:r   peek {"queue": "{v}.q"}
a/-:r   unacked {"queue": "{v}.q"}
a/-:r   get {"queue": "{v}.q"}
a/-:w   publish {"to": "{v}.x:k", "bodies": []}
a/-:rw  move {"queue": "{v}.q", "to": "{v}.x:k"}
a/-:rw  requeue_dead_letters {"queue": "{v}.q"}
a/-:r   purge_queue {"queue": "{v}.q"}
a/-:r   release_delayed {"queue": "{v}.q"}
a/-:r   list_retained
a/-:r   delete_retained {"filter": "a"}
a/-:r   trace
a/-:cr  tap_add {"exchange": "{v}.x", "pattern": "#", "name": "{v}.u"}
a/-:c   tap_remove {"name": "{v}.u"}
a/-:r   seal {"tap": "{v}.t"}
a/-:r   tap_read {"taps": ["{v}.t"]}
a/-:r   snapshot {"queue": "{v}.q"}
a/-:r   snapshot_drop {"id": "{spare}"}
a/-:r   cursor_set {"name": "new-{caller}", "tap": "{v}.t", "seal": 0}
a/-:cr  cursor_set {"name": "given-{caller}", "tap": "{v}.t", "seal": 0, "user": "someone"}
a/-:c   cursor_remove {"name": "c", "tap": "{v}.t"}
"""
TO_QUEUE, TO_EXCHANGE = (f"/api/bindings/{{vhost}}/e/{{exchange}}/{end}" for end in ("q/{queue}", "e/{destination}"))
MADE_BY = {
    "DELETE /v1/snapshots/{id}": "snapshot",
    **{f"DELETE {path}/{{properties}}": f"POST {path}" for path in (TO_QUEUE, TO_EXCHANGE)},
    "DELETE /api/connections/{connection}": "connect",
    "DELETE /api/connections/username/{user}": "connect",
    "DELETE /api/topic-permissions/{vhost}/{user}/{exchange}": "PUT /api/topic-permissions/{vhost}/{user}",
}
"""What makes what a row removes, before it and again after it was carried out, if that is not the PUT of its path."""
REMOVES = {
    "cursor_remove": "/v1/cursors/{name}",
    "snapshot_drop": "/v1/snapshots/{id}",
    "tap_remove": "/api/slotmq/pipeline/taps/{vhost}/{tap}",
    "clear_vhost_limits": "/api/vhost-limits/{vhost}/{limit}",
    "delete_queue": "/api/queues/{vhost}/{queue}",
    "delete_exchange": "/api/exchanges/{vhost}/{exchange}",
    "unbind": TO_QUEUE + "/{properties}",
    "delete_policy": "/api/policies/{vhost}/{policy}",
    "delete_permission": "/api/permissions/{vhost}/{user}",
    "delete_topic_permission": "/api/topic-permissions/{vhost}/{user}",
}
"""The path of what a verb removes."""
APART = {
    "PUT /v1/cursors/{name}": {"name": "new-{caller}"},
    "PUT /api/slotmq/pipeline/taps/{vhost}/{tap}/cursors/{cursor}": {"cursor": "new-{caller}"},
    "DELETE /v1/cursors/{name}": {"name": "c"},
    "DELETE /v1/snapshots/{id}": {"id": "{spare}"},
    "PUT /api/slotmq/pipeline/taps/{vhost}/{tap}": {"tap": "{v}.u"},
    "DELETE /api/slotmq/pipeline/taps/{vhost}/{tap}": {"tap": "{v}.u"},
    "DELETE /api/vhosts/{vhost}": {"vhost": "doomed"},
    "PUT /api/queues/{vhost}/{queue}": {"queue": "{v}.n"},
    "DELETE /api/queues/{vhost}/{queue}": {"queue": "{v}.d"},
    "DELETE /api/exchanges/{vhost}/{exchange}": {"exchange": "{v}.e"},
    "DELETE /api/connections/username/{user}": {"user": "guest"},
    "GET /api/connections/username/{user}": {"user": "guest"},
    "DELETE /api/users/{user}": {"user": "passing"},
    "PUT /api/user-limits/{user}/{limit}": {"limit": "max-channels"},
    "DELETE /api/user-limits/{user}/{limit}": {"limit": "max-channels"},
}
"""Words of rows that concern something of their own, which they may remove."""
ENDS = "stop"
"""The verb that is not carried out."""
WITHOUT = {  # what this broker does not have: an administrator hears that, and nothing of rights
    *("cluster", "overlay", "zmq", "overlay_explain", "cluster_leave", "overlay_forget", "backup", "reload"),
    *("close_connection", "drain", "add_user", "delete_user", "add_vhost", "delete_vhost"),
    *("/api/slotmq/cluster", "/api/slotmq/cluster/nodes/{node}", "/api/slotmq/overlay", "/api/slotmq/zmq"),
    *("/api/slotmq/overlay/explain", "/api/slotmq/overlay/leaves/{leaf}", "/api/slotmq/retained/{vhost}"),
    *("list_retained", "delete_retained"),
}
ENDLESS = {"/api/live"}


class Row(NamedTuple):
    """A row of a table."""

    who: str
    sees: tuple[str, str]
    theirs: str | None
    rights: str
    hides: bool
    method: str
    path: str
    query: str
    body: str


def lines(table: str) -> list[str]:
    """Return the lines of a table, with those that continue in the next one."""
    return list(filter(None, table.replace("\\\n", " ").splitlines()))


def rows(table: str) -> list[Row]:
    """Return the rows of a table."""
    found = []
    for line in lines(table):
        needs, *words = line.split(maxsplit=1)
        request = words[0] if table is ROUTES else f"VERB {words[0]}"
        method, path, body = (*request.split(maxsplit=2), "")[:3]
        who, _, sees = needs.partition("~")
        places, _, rights = (sees or who).rstrip("!").partition(":")
        mine, slash, theirs = places.partition("/")
        path, _, query = path.partition("?")
        seen = (mine, theirs) if sees else ("", "")
        one = None if sees or not slash else theirs
        hides = needs.endswith("!")
        found.append(Row(who if sees else mine, seen, one, rights, hides, method, path, query, body))
    return found


BODIES = {f"{row.method} {row.path}": row.body for row in rows(ROUTES)}


class Scene:
    """A broker with the two vhosts, and a client for each user."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.port = broker.server.manage.port()
        self.guest = Web(self.port)
        self.nobody = Web(self.port, None)
        self.words: dict[str, dict[str, str]] = {}
        self.connections: dict[str, pika.BlockingConnection] = {}
        self.by_tag = {letter: self._user(f"u{letter}", tag) for letter, tag in TAGS.items()}
        self.by_rights: dict[str, Web] = {}
        for rights in ("", "c", "r", "w", "cr", "cw", "rw", "crw"):
            self.by_rights[rights] = self._user(f"with{rights}", "administrator")
        self.root("PUT", "/api/users/someone", {"password_hash": "", "tags": ""})
        self.root("PUT", "/api/user-limits/someone/max-channels", {"value": 9})
        self.root("PUT", "/api/global-parameters/name", {"value": 1})
        for vhost in VHOSTS:
            self._vhost(vhost)
        for user in self.by_tag.values():
            self._permit(user, "crw")
        for rights, user in self.by_rights.items():
            self._permit(user, rights)

    def root(self, method: str, path: str, body: Any = None) -> Any:
        """Prepare something as guest, who may do everything here."""
        said = self.guest.ask(method, path, body)
        assert said.status < 400, (method, path, said.status, said.body)
        return json.loads(said.body) if said.body else None

    def _user(self, name: str, tags: str) -> Web:
        known = {"password_hash": HASH, "hashing_algorithm": SHA256, "tags": tags}
        self.root("PUT", f"/api/users/{name}", known)
        return Web(self.port, (name, PASSWORD))

    def _permit(self, user: Web, rights: str) -> None:
        assert user.user is not None
        given = {kind: ".*" if letter in rights else "" for letter, kind in KINDS.items()}
        self.root("PUT", f"/api/permissions/mine/{user.user[0]}", given)

    def _vhost(self, v: str) -> None:
        self.root("PUT", f"/api/vhosts/{v}", {})
        node = self.broker.server.entrance.managed.node_name
        given = (
            f"vhost={v} v={v} queue={v}.q exchange={v}.x destination={v}.y policy={v}.p component=c name=name "
            f"tap={v}.t limit=max-queues cursor=c user=someone properties=k n=0 flag=f leaf=l within=1 unit=weeks "
            f"port={self.broker.port} protocol=amqp pattern=x node={node} file=main.js"
        )
        self.words[v] = dict(word.split("=") for word in given.split())
        for path, body in (
            (f"queues/{v}/{v}.q", None), (f"queues/{v}/{v}.used", {}), (f"exchanges/{v}/{v}.y", {"type": "fanout"}),
            (f"exchanges/{v}/{v}.x", {"type": "topic", "durable": True}),
            (f"vhost-limits/{v}/max-queues", {"value": 1000}),
            (f"policies/{v}/{v}.p", {"pattern": "^none$", "definition": {"max-length": 9}}),
            (f"operator-policies/{v}/{v}.p", {"pattern": "^none$", "definition": {"max-length": 9}}),
            (f"parameters/c/{v}/name", {"value": 1}),
            (f"permissions/{v}/someone", {"configure": "", "write": "", "read": ""}),
            (f"topic-permissions/{v}/someone", {"exchange": f"{v}.x", "write": "", "read": ""}),
            (f"slotmq/pipeline/taps/{v}/{v}.t", {"exchange": f"{v}.x", "pattern": "#"}),
        ):  # fmt: skip
            self.root("PUT", f"/api/{path}", DEAD_LETTERED if body is None else body)
        self.root("POST", f"/api/bindings/{v}/e/{v}.x/q/{v}.q", {"routing_key": "k"})
        self.root("POST", f"/api/bindings/{v}/e/{v}.x/e/{v}.y", {"routing_key": "k"})
        publish = {"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"}
        self.root("POST", f"/api/exchanges/{v}/{v}.x/publish", publish)
        seal = self.root("POST", "/v1/seal", {"vhost": v, "tap": f"{v}.t"})["last_seal"]
        self.words[v]["seal"] = str(seal)
        self.snapshot(v)
        self.words[v]["id"] = self.words[v]["spare"]
        self.connect(v)

    def prepare(self, row: str, v: str) -> None:
        """Make what a row removes."""
        row = f"DELETE {REMOVES[row]}" if row in REMOVES else row
        match MADE_BY.get(row, row.replace("DELETE", "PUT")):
            case "snapshot":
                self.snapshot(v)
            case "connect":
                for one in VHOSTS:
                    self.connect(one)
            case request if row.startswith("DELETE") and request in BODIES:
                words = {**self.words[v], **APART.get(row, {})}
                method, path = filled(request, words).split()
                self.root(method, path, json.loads(filled(BODIES[request], words)))

    def snapshot(self, v: str) -> None:
        """Take a snapshot of the queue."""
        self.words[v]["spare"] = self.root("POST", "/v1/snapshots", {"vhost": v, "queue": f"{v}.q"})["id"]

    def connect(self, v: str) -> None:
        """Open a connection with a consumer, as guest, if there is none."""
        known = self.connections.pop(v, None)
        if known is not None and known.is_open:
            try:
                known.close()
            except pika.exceptions.AMQPError:
                """It was closed by the walk."""
        parameters = pika.URLParameters(self.broker.url)
        parameters.virtual_host = v
        self.connections[v] = pika.BlockingConnection(parameters)
        channel = self.connections[v].channel()
        channel.basic_consume(f"{v}.used", lambda *_: None)
        (name,) = (row["name"] for row in self.root("GET", f"/api/vhosts/{v}/connections"))
        self.words[v] |= {"connection": quote(name, safe=""), "channel": quote(f"{name} (1)", safe="")}

    def close(self) -> None:
        """Close all."""
        for web in (self.guest, self.nobody, *self.by_tag.values(), *self.by_rights.values()):
            web.close()
        for connection in self.connections.values():
            if connection.is_open:
                connection.close()


FROM_PAGE = {"Origin": "http://localhost", "X_Requested_With": "slotmq", "Host": "localhost"}
DEAD_LETTERED = {"arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "none"}}


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """Provide the scene."""
    taps = {"snapshots_user_max": 64}  # a user's fifth would take the place of the first
    with Broker(http={"enabled": True}, metrics={"enabled": True}, taps=taps) as broker:
        scene = Scene(broker)
        try:
            yield scene
        finally:
            scene.close()


def filled(text: str, words: dict[str, str]) -> str:
    """Return a text of a table with its words."""
    for _ in range(2):  # a word may contain another
        text = re.sub(r"\{(\w+)\}", lambda found: words.get(found[1], found[0]), text)
    return text


def asked(scene: Scene, row: Row, web: Web, v: str) -> Response:
    """Send the request of a row for a vhost."""
    name = f"{row.method} {row.path}"
    caller = {"caller": web.user[0] if web.user else "", **scene.words[v]}
    words = {**caller, **APART.get(name, {})}
    path = filled(row.path, words) + (f"?{filled(row.query, words)}" if row.query else "")
    body = json.loads(filled(row.body, caller)) if row.body else None
    if row.path in ENDLESS:
        return first_line(scene.port, row.method, path, None, web)
    if row.path.startswith("/metrics"):
        return first_line(scene.broker.server.manage.port("metrics"), row.method, path, None, web)
    return web.ask(row.method, path, body, **(FROM_PAGE if row.path == "/api/session" else {}))


def first_line(port: int, method: str, path: str, body: Any, web: Web) -> Response:
    """Send a request whose answer may be endless, and return the first line of the answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), basic(web.user))
        answer = connection.getresponse()
        return Response(answer.status, {}, answer.readline())
    finally:
        connection.close()


def verb(scene: Scene, row: Row, web: Web, v: str) -> Response:
    """Ask for the verb of a row in a vhost; a refusal of its answer counts as status 403."""
    words = {"caller": web.user[0] if web.user else "", **scene.words[v]}
    body = {"vhost": v, "verb": row.path, **(json.loads(filled(row.body, words)) if row.body else {})}
    said = first_line(scene.port, "POST", "/v1/control", body, web)
    return Response(403, {}, said.body) if b"ACCESS_REFUSED" in said.body else said


def walk(scene: Scene, row: Row, ask: Callable[[Scene, Row, Web, str], Response]) -> None:
    """Ask for a row with every tag in both vhosts, and with some permissions alone."""
    name = row.path if row.method == "VERB" else f"{row.method} {row.path}"
    refusals = (*REFUSED, 404) if row.hides else REFUSED

    def attempt(web: Web, v: str, *, admitted: bool) -> Response | None:
        if name == ENDS and admitted:
            return None
        said = ask(scene, row, web, v)
        where = (name, web.user, v, said.status, said.body[:200])
        if not admitted:
            assert said.status in refusals, where
        elif row.path in WITHOUT:
            assert said.status not in REFUSED, where
        else:
            assert said.status < 300, where
            assert not said.body.startswith(b'{"ok":false'), where
            scene.prepare(name, v)
        return said

    for v, who in zip(VHOSTS, (row.who, row.theirs), strict=True):
        if who is None:
            continue
        scene.prepare(name, v)
        assert (ask(scene, row, scene.nobody, v).status == 401) is (who != "*"), name
        for place, web in scene.by_tag.items():
            said = attempt(web, v, admitted=who == "*" or place in who)
            for one, seen in zip(VHOSTS, row.sees, strict=True) if row.sees != ("", "") else ():
                assert said is not None
                assert (f'"{one}'.encode() in said.body) is (place in seen), (name, place, one)
    for kind in row.rights:
        attempt(scene.by_rights["".join(sorted(set(KINDS) - {kind}))], "mine", admitted=False)
    if row.rights:
        attempt(scene.by_rights["".join(sorted(row.rights))], "mine", admitted=True)


@pytest.mark.parametrize("row", rows(ROUTES), ids=lambda row: f"{row.method} {row.path}")
def test_a_route(scene: Scene, row: Row) -> None:
    """A route admits those whom the table names, and no one else."""
    walk(scene, row, asked)


@pytest.mark.parametrize("row", rows(VERBS), ids=lambda row: f"{row.path} {row.rights}")
def test_a_verb(scene: Scene, row: Row) -> None:
    """A verb of the control socket admits those whom the table names, over HTTP."""
    walk(scene, row, verb)


def test_every_route_and_verb_has_a_row(scene: Scene) -> None:
    """New routes and verbs must be entered by hand."""
    managed = scene.broker.server.entrance.managed
    routes = [*http_routes(), *metrics_routes()]
    paths = {re.sub("^GET /page/.*", "GET /page/{file}", f"{route.method} {route.path}") for route in routes}
    assert paths == {f"{row.method} {row.path}" for row in rows(ROUTES)}
    assert set(managed.verbs) == {row.path for row in rows(VERBS)}


@pytest.mark.parametrize("tag", TAGS)
def test_amqp_knows_no_tags(scene: Scene, tag: str) -> None:
    """A tag opens no vhost over AMQP."""
    web = scene.by_tag[tag]
    assert web.user is not None
    parameters = pika.URLParameters(scene.broker.url)
    parameters.credentials = pika.PlainCredentials(*web.user)
    for v, refused in (("mine", False), ("theirs", True)):
        parameters.virtual_host = v
        if refused:
            with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
                pika.BlockingConnection(parameters)
        else:
            pika.BlockingConnection(parameters).close()


def test_sealing_all_takes_the_right_to_each(scene: Scene) -> None:
    """Without a name all taps are sealed: the caller has to be one who may read all of them."""
    for web in scene.by_tag.values():
        assert web.ask("POST", "/v1/seal", {}).refusal[0] == 403
        assert web.ask("POST", "/v1/seal", {"vhost": "mine"}).status == 200
        assert web.ask("POST", "/v1/seal", {"tap": "theirs.t", "vhost": "theirs"}).status == 403
    assert scene.guest.ask("POST", "/v1/seal", {}).status == 200


def test_a_cursor_is_its_makers(scene: Scene) -> None:
    """A user who may read a tap may move an own cursor, and another's only with the right to configure the tap."""
    place = {"vhost": "mine", "tap": "mine.t"}
    reader, both = scene.by_rights["r"], scene.by_rights["cr"]
    assert reader.ask("PUT", "/v1/cursors/a", {**place, "seal": 0}).status == 204
    assert both.ask("PUT", "/v1/cursors/a", {**place, "seal": 0}).status == 204  # it stays the first one's
    assert both.ask("PUT", "/v1/cursors/b", {**place, "seal": 0}).status == 204
    assert reader.ask("PUT", "/v1/cursors/a", {**place, "seal": 0, "reset": True}).status == 204
    text = (
        "access to cursor 'b' of user 'withcr' refused for user 'withr', who may not configure queue 'amq.tap.mine.t'"
    )
    assert reader.ask("PUT", "/v1/cursors/b", {**place, "seal": 0}).refusal[2] == f"{text} in vhost 'mine'"
    assert reader.ask("DELETE", "/v1/cursors/b?vhost=mine&tap=mine.t").status == 403
    rows = {
        row["name"]: row["user"] for row in scene.guest.ask("GET", "/v1/taps?vhost=mine").json["taps"][0]["cursors"]
    }
    assert (rows["a"], rows["b"]) == ("withr", "withcr")
    given = {"verb": "cursor_set", "name": "b", "seal": 0, "user": "withr", **place}
    assert first_line(scene.port, "POST", "/v1/control", given, both).body.startswith(b'{"ok":true')
    assert reader.ask("DELETE", "/v1/cursors/b?vhost=mine&tap=mine.t").status == 204
    assert reader.ask("DELETE", "/v1/cursors/a?vhost=mine&tap=mine.t").status == 204


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("PUT", "/api/permissions/mine/tracer", {"configure": "", "write": "", "read": "^q"}), "ACCESS_REFUSED"),
        (("PUT", "/api/users/tracer", {"password_hash": "", "tags": "administrator"}), "the login of user 'tracer'"),
    ],
)
def test_a_trace_ends_with_the_right_to_it(scene: Scene, change: tuple[str, str, Any], text: str) -> None:
    """It shows nothing more of what its user may not see any more."""
    known = {"password_hash": HASH, "hashing_algorithm": SHA256, "tags": "administrator"}
    scene.root("PUT", "/api/users/tracer", known)
    scene.root("PUT", "/api/permissions/mine/tracer", {"configure": "", "write": "", "read": ".*"})
    connection = HTTPConnection("127.0.0.1", scene.port, timeout=DEADLINE_S)
    try:
        asked = json.dumps({"verb": "trace", "vhost": "mine"})
        connection.request("POST", "/v1/control", asked, basic(("tracer", PASSWORD)))
        answer = connection.getresponse()
        assert b"tracing" in answer.readline()
        publish = {"properties": {}, "routing_key": "none", "payload": "x", "payload_encoding": "string"}
        scene.root("POST", "/api/exchanges/mine/mine.x/publish", publish)
        assert b"passed" in answer.readline()
        scene.root(*change)
        scene.root("POST", "/api/exchanges/mine/mine.x/publish", publish)
        ended = json.loads(answer.readline())
        assert ended["ok"] is False
        assert text in ended["error"]
    finally:
        connection.close()
