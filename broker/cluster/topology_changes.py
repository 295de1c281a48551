"""Changes of the topology that every node of a cluster applies in the same order, with the same effect.

Whether a change has an effect is decided when it is applied: a queue is declared if its name is free and the vhost has
room, and a binding is added if its exchange and the queue with its number exist. Format in the topology log: JSON with
the keys of a change in the log of a standalone broker, and the vhost. Fields with their default values are omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, NamedTuple

from broker.core.arguments import read_typed
from broker.core.names import is_predeclared
from broker.core.queue.kinds import holding_name
from broker.core.queue.queue import Queue, numbers_of
from broker.core.queue.queue_arguments import QueueDeclaration
from broker.core.queue.rules import QUORUM, queue_rules, queue_type
from broker.core.topology import changes
from broker.core.vhost import Vhost
from broker.core.vhost_limits import VhostLimits
from broker.routing.exchange import Exchange


class ForeignOwner(NamedTuple):
    """The name of the connection that owns an exclusive queue; if the connection is unknown, the name is the owner."""

    node: str
    epoch: int
    token: int


FindOwner = Callable[[ForeignOwner], object]


@dataclass(slots=True, kw_only=True)
class TopologyChange:
    """A change of one vhost.

    Shapes: fields are named like their keys in JSON. ``limit`` is the vhost's limit of queues, exchanges or bindings.
    """

    kind: ClassVar[str]
    limited_by: ClassVar[str | None] = None  # the name of a field of VhostLimits
    vhost: str
    durable: bool = True
    limit: int | None = None

    @property
    def level_numbers(self) -> Sequence[int]:
        """The numbers of the levels that the change declares."""
        return ()

    def limit_by(self, limits: VhostLimits) -> None:
        """Set the limit that applies on the node that proposes the change."""
        if self.limited_by is not None:
            self.limit = getattr(limits, self.limited_by)

    def apply(self, vhost: Vhost, find_owner: FindOwner) -> bool:
        """Apply the change, and return whether it had an effect.

        The vhost's journal must permit the change and its consequences. `find_owner` returns the session of an owner
        that is a known connection of this node, and other owners unchanged.
        """
        raise NotImplementedError

    def has_room(self, count: int) -> bool:
        """Return whether the vhost may have more than `count` queues, exchanges or bindings."""
        return self.limit is None or count < self.limit

    def to_json(self) -> dict[str, Any]:
        """Return the change in the form of the log."""
        values = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}
        return {"change": self.kind, **values}


@dataclass(slots=True, kw_only=True)
class ExchangeDeclared(TopologyChange):
    """An exchange is created. ``holding`` is the number of the queue of its delayed messages."""

    kind = "exchange_declared"
    limited_by = "exchanges_max"
    name: str
    type: str
    auto_delete: bool
    internal: bool
    arguments: dict[str, Any]
    holding: int | None = None

    def set_number(self, number: int) -> None:
        self.holding = number

    @property
    def level_numbers(self) -> Sequence[int]:
        return () if self.holding is None else (self.holding,)

    def apply(self, vhost: Vhost, _find_owner: FindOwner) -> bool:
        """Create the exchange, unless its name is taken or the limit is reached."""
        if self.name in vhost.exchanges or not self.has_room(vhost.exchanges.declared_count):
            return False
        if self.holding is not None:
            vhost.queues.add(QueueDeclaration(holding_name(self.name), self.holding, durable=self.durable))
        exchange = vhost.exchanges.add(
            self.name,
            self.type,
            durable=self.durable,
            auto_delete=self.auto_delete,
            internal=self.internal,
            arguments=read_typed(self.arguments),
        )
        if exchange.delayed:
            vhost.delays.open(exchange)
        return True


@dataclass(slots=True, kw_only=True)
class ExchangeDeleted(TopologyChange):
    """An exchange is deleted with its bindings."""

    kind = "exchange_deleted"
    name: str

    def apply(self, vhost: Vhost, _find_owner: FindOwner) -> bool:
        exists = self.name in vhost.exchanges
        vhost.exchanges.delete(self.name)
        return exists


@dataclass(slots=True, kw_only=True)
class QueueDeclared(TopologyChange):
    """A queue is created. ``number`` is that of its first level, ``owner`` the owner of an exclusive queue."""

    kind = "queue_declared"
    limited_by = "queue_limit"
    name: str
    number: int
    auto_delete: bool
    arguments: dict[str, Any]
    owner: ForeignOwner | None = None

    def __post_init__(self) -> None:
        if self.owner is not None:  # a list in JSON
            self.owner = ForeignOwner(*self.owner)

    def own(self, owner: ForeignOwner) -> None:
        self.owner = owner

    def set_number(self, number: int) -> None:
        self.number = number

    @property
    def levels(self) -> int:
        """How many consecutive numbers its levels have."""
        return queue_rules(read_typed(self.arguments)).max_priority + 1

    @property
    def level_numbers(self) -> Sequence[int]:
        """The numbers of its levels, including levels that may be created later."""
        if queue_type(read_typed(self.arguments)) == QUORUM:
            return numbers_of(self.number)
        return range(self.number, self.number + self.levels)

    def apply(self, vhost: Vhost, find_owner: FindOwner) -> bool:
        """Create the queue, unless its name is taken or the limit is reached."""
        if self.name in vhost.queues or not self.has_room(vhost.queues.declared_count):
            return False
        vhost.queues.add(
            QueueDeclaration(
                self.name,
                self.number,
                durable=self.durable,
                exclusive_owner=None if self.owner is None else find_owner(self.owner),
                auto_delete=self.auto_delete,
                arguments=read_typed(self.arguments),
            )
        )
        return True


@dataclass(slots=True, kw_only=True)
class QueueChanged(TopologyChange):
    """The arguments of a queue change, unless its name now belongs to another queue."""

    kind = "queue_changed"
    name: str
    number: int
    arguments: dict[str, Any]

    def apply(self, vhost: Vhost, _find_owner: FindOwner) -> bool:
        queue = vhost.queues.get(self.name)
        if queue is None or queue.number != self.number:
            return False
        vhost.queues.redeclare(queue, replace(queue.declaration, arguments=read_typed(self.arguments)))
        return True


@dataclass(slots=True, kw_only=True)
class QueueDeleted(TopologyChange):
    """A queue is deleted with its bindings, unless its name now belongs to another queue."""

    kind = "queue_deleted"
    name: str
    number: int

    def apply(self, vhost: Vhost, _find_owner: FindOwner) -> bool:
        queue = vhost.queues.get(self.name)
        if queue is None or queue.number != self.number:
            return False
        vhost.queues.drop(queue)
        return True


@dataclass(slots=True, kw_only=True)
class Bound(TopologyChange):
    """A binding to the queue with a number, or to an exchange, is added."""

    kind = "bound"
    limited_by: ClassVar[str | None] = "bindings_max"
    exchange: str
    key: str
    arguments: dict[str, Any]
    queue: str | None = None
    number: int | None = None
    destination: str | None = None

    def apply(self, vhost: Vhost, _find_owner: FindOwner) -> bool:
        source, destination = self.ends(vhost)
        live = vhost.bindings.live
        if source is None or destination is None or not self.has_room(live.count):
            return False
        try:
            return live.add(source, destination, self.key, read_typed(self.arguments))
        except ValueError:  # the exchange has been replaced by one of another type, which does not accept the key
            return False

    def ends(self, vhost: Vhost) -> tuple[Exchange | None, Queue | Exchange | None]:
        """Return the source and the destination. Each is None if missing, a queue also if it has another number."""
        source = vhost.exchanges.get(self.exchange)
        if self.destination is not None:
            return source, vhost.exchanges.get(self.destination)
        queue = vhost.queues.get(self.queue or "")
        return source, queue if queue is not None and queue.number == self.number else None


class Unbound(Bound):
    """A binding is removed."""

    __slots__ = ()

    kind = "unbound"
    limited_by = None

    def apply(self, vhost: Vhost, _find_owner: FindOwner) -> bool:
        source, destination = self.ends(vhost)
        if source is None or destination is None:
            return False
        if vhost.bindings.live.remove(source, destination, self.key, read_typed(self.arguments)) is None:
            return False
        vhost.exchanges.drop_unbound((source,))
        return True


@dataclass(slots=True, kw_only=True)
class VhostForgotten(TopologyChange):
    """A vhost is deleted, with everything in it."""

    kind = "vhost_forgotten"

    def apply(self, vhost: Vhost, _find_owner: FindOwner) -> bool:
        """Delete all exchanges and queues."""
        for exchange in vhost.exchanges.declared():
            vhost.exchanges.delete(exchange.name)
        for queue in list(vhost.queues.values()):
            vhost.queues.drop(queue)
        return True


_KINDS: Final[dict[str, type[TopologyChange]]] = {
    kind.kind: kind
    for kind in (ExchangeDeclared, ExchangeDeleted, QueueDeclared, QueueChanged, QueueDeleted, Bound, Unbound,
                 VhostForgotten)
}  # fmt: skip


def change_of(change: Mapping[str, Any], **more: Any) -> TopologyChange:
    """Return the change that an entry of a log describes; `more` are fields that a standalone broker's log lacks."""
    known = {**change, **more}
    return _KINDS[known.pop("change")](**known)


def all_changes(vhost: Vhost, owners: Mapping[Any, ForeignOwner]) -> Iterator[TopologyChange]:
    """Return the changes that create everything in a vhost, including transient and exclusive objects. References are
    copied at once; the changes are created lazily. `owners` maps the owners of exclusive queues to their names.
    """
    exchanges = [exchange for exchange in vhost.exchanges.values() if not is_predeclared(exchange.name)]
    queues = [queue for queue in vhost.queues.values() if not queue.is_internal]
    holding = {queue.name: queue.number for queue in vhost.queues.values() if queue.is_internal}
    bundles = [
        bundle.copy()
        for end in (*vhost.exchanges.values(), *vhost.queues.values())
        for source, bundle in end.incoming.items()
        if not source.deleted
    ]

    def made() -> Iterator[TopologyChange]:
        for exchange in exchanges:
            number = holding[holding_name(exchange.name)] if exchange.delayed else None
            change = changes.exchange_declared(exchange)
            yield change_of(change, vhost=vhost.name, durable=exchange.durable, holding=number)
        for queue in queues:
            owner = None if queue.exclusive_owner is None else owners[queue.exclusive_owner]
            change = changes.new_queue(queue.declaration)
            yield change_of(change, vhost=vhost.name, durable=queue.durable, owner=owner)
        for bundle in bundles:
            for key, arguments in bundle.items():
                yield change_of(changes.bound(bundle.destination, bundle.source, key, arguments), vhost=vhost.name)

    return made()


class ExclusiveOwners:
    """Assign tokens to the connections of this node, and find connections by token.

    Shapes: an owner is the session of a connection of this node, or a ForeignOwner.
    """

    def __init__(self) -> None:
        self._tokens: dict[Any, int] = {}
        self._sessions: dict[int, Any] = {}
        self._last = 0

    def name(self, owner: object, node: str, epoch: int) -> ForeignOwner:
        """Return the name of an owner, assigning a token if necessary. `node` and `epoch` are those of this node."""
        if isinstance(owner, ForeignOwner):
            return owner
        token = self._tokens.get(owner)
        if token is None:
            self._last = token = self._last + 1
            self._tokens[owner] = token
            self._sessions[token] = owner
        return ForeignOwner(node, epoch, token)

    def find(self, owner: ForeignOwner, epoch: int) -> object:
        """Return the session with a name, or the name if this node has no such session in its current epoch."""
        return self._sessions.get(owner.token, owner) if owner.epoch == epoch else owner

    def has_ended(self, owner: ForeignOwner, epoch: int) -> bool:
        """Return whether an owner was a connection of this node in its current epoch, and has ended."""
        session = self._sessions.get(owner.token)
        return owner.epoch == epoch and (session is None or session.connection.finished)

    def forget_ended(self) -> None:
        """Drop ended connections, whose queues are being deleted."""
        for session in [session for session in self._tokens if session.connection.finished]:
            del self._sessions[self._tokens.pop(session)]

    def clear(self) -> None:
        """Drop all connections, because the topology is built again."""
        self._tokens.clear()
        self._sessions.clear()
