"""The Queue class on one channel: declare, bind, unbind, purge, delete.

Order of checks and texts: RabbitMQ 4.3, rabbit_channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from pamqp import commands

from broker.amqp.channel import Channel
from broker.amqp.errors import ChannelError
from broker.amqp.lenient_methods import QueueDeclareOk
from broker.core.auth.permissions import Kind
from broker.core.names import refuse_default, refuse_reserved, strip_name
from broker.core.queue.queue import Queue
from broker.core.queue.queue_arguments import with_default_type
from broker.core.session.class_session import ClassSession
from broker.core.session.client import SessionClient
from broker.core.topology.changes import binding_subject, queue_subject
from broker.core.vhost import Vhost

UNITS: Final = 3  # the cost of a method, in units of the method budget
UNITS_OF_QUEUE: Final = 8  # the cost of creating or deleting a queue
PREFIX: Final = "amq.gen-"
PREFIX_ARGUMENT: Final = "x-name-prefix"
PREFIX_MAX_BYTES: Final = 64


class QueueSession(ClassSession):
    """Declare, bind, purge and delete queues for one channel. Invariant: an empty queue name means `last_declared`
    (AMQP 0-9-1, queue.bind.queue), even if that queue was deleted.
    """

    __slots__ = ("_counted", "_generated", "last_declared")

    def __init__(self, channel: Channel, session: SessionClient, vhost: Vhost) -> None:
        super().__init__(channel, session, vhost)
        self.last_declared = ""
        self._generated = ""  # the generated name of a queue whose declare is postponed
        self._counted: int | None = None  # the message count for the answer to a postponed delete

    def name(self, name: str) -> str:
        """Return the name of a queue: an empty one means the queue that this channel declared last.

        Raises: 404 if it has declared none.
        """
        if not name and not self.last_declared:
            raise ChannelError(404, "no previously declared queue")
        return name or self.last_declared

    def known(self, name: str) -> Queue | None:
        """Return the named queue, if it exists, without checking rights."""
        return self._vhost.queues.get(strip_name(name) or self.last_declared)

    def find(self, name: str, kind: Kind) -> Queue:
        """Return the named queue, after checking a right of the user.

        Raises: 403, 404; 405 if the queue is exclusive to another connection.
        """
        name = self.name(name)
        self._session.check(self._vhost.queue_resource(name), kind)
        return self._vhost.queues.find(name, self._session)

    def declare(self, method: commands.Queue.Declare) -> None:
        """Create a queue unless it exists, and answer with its name and counts.

        Raises: 403, 405, 406; 404 for a passive declare; 541 for a transient queue that the settings do not permit.
        """
        self._session.method_budget.spend(UNITS if method.passive else UNITS_OF_QUEUE)
        name = strip_name(method.queue)
        if method.passive:
            self._session.check_any(self._vhost.queue_resource(name))
            queue = self._vhost.queues.countable(name, self._session)
            queue.used()
        else:
            queue = self._make(name, method)
        queue.prepare_for("declare", self._session)
        self.last_declared = queue.name
        self._generated = ""
        self._answer(method, QueueDeclareOk(queue.name, *queue.counts()), queue_subject(queue.name))

    def _make(self, name: str, method: commands.Queue.Declare) -> Queue:
        arguments = with_default_type(
            method.arguments or {},
            self._vhost.default_queue_type,
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
        )
        if name:
            refuse_reserved("queue", name)
        else:
            if arguments.get("x-queue-type") == "quorum":
                raise ChannelError(406, "Cannot declare a server-named queue for type rabbit_quorum_queue")
            prefix = name_prefix(arguments)
            arguments = {key: value for key, value in arguments.items() if key != PREFIX_ARGUMENT}
            self._generated = name = self._generated or self._vhost.new_name(prefix)
        self._session.check(self._vhost.queue_resource(name), "configure")
        if name not in self._vhost.queues:
            self._session.check_new(self._vhost.queue_resource(name), arguments)
        return self._vhost.queues.declare(
            name,
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=arguments,
            owner=self._session,
        )

    def bind(self, method: commands.Queue.Bind) -> None:
        """Bind a queue to an exchange. Raises: 403, 404, 405, 406."""
        queue, exchange, key = self._ends(method)
        self._vhost.bindings.bind(queue, exchange, key, method.arguments, self._session)
        self._answer(method, commands.Queue.BindOk(), binding_subject(exchange, "queue", queue, key))

    def unbind(self, method: commands.Queue.Unbind) -> None:
        """Remove a binding; a missing one is not an error.

        Raises: 403, 405; 404 if no queue is named or was declared.
        """
        queue, exchange, key = self._ends(method)
        mark = self._vhost.answers.mark()
        self._vhost.bindings.unbind(queue, exchange, key, method.arguments, self._session)
        subject = binding_subject(exchange, "queue", queue, key)
        self._vhost.answers.send(self._channel, commands.Queue.UnbindOk(), subject, mark)

    def _ends(self, method: commands.Queue.Bind | commands.Queue.Unbind) -> tuple[str, str, str]:
        """Check the rights of a method, and return its queue, exchange and binding key."""
        self._session.method_budget.spend(UNITS)
        queue = strip_name(self.name(method.queue))
        # If queue and key are empty, the key is the name of the last declared queue, too (rabbit_channel).
        key = method.routing_key or ("" if method.queue else self.last_declared)
        exchange = strip_name(method.exchange)
        source = self._vhost.exchange_resource(exchange)
        self._session.check(self._vhost.queue_resource(queue), "write")
        refuse_default(source)
        self._session.check_source(source, self._vhost.exchanges.get(exchange), key)
        return queue, exchange, key

    def purge(self, method: commands.Queue.Purge) -> None:
        """Drop the messages of a queue except unacked ones; the connection is held until the answer.

        Raises: 403, 404, 405.
        """
        name = self.name(method.queue)
        self._session.check(self._vhost.queue_resource(name), "read")
        queue = self._vhost.queues.countable(name, self._session)
        queue.prepare_for("purge", self._session)
        self._session.connection.hold()
        queue.purge(partial(self._purged, queue, method))

    def _purged(self, queue: Queue, method: commands.Queue.Purge, count: int) -> None:
        self._session.connection.release()
        subject = queue_subject(queue.name)
        if count and queue.durable:
            self._vhost.answers.changed(subject)
        self._answer(method, commands.Queue.PurgeOk(count), subject)

    def delete(self, method: commands.Queue.Delete) -> None:
        """Delete a queue; a missing one is not an error. Consumers of this channel are cancelled after the answer.

        Raises: 403, 405, 406; 404 if no queue is named or was declared.
        """
        self._session.method_budget.spend(UNITS_OF_QUEUE)
        name = strip_name(self.name(method.queue))
        self._session.check(self._vhost.queue_resource(name), "configure")
        queues, queue, count = self._vhost.queues, None, self._counted
        answers, subject = self._vhost.answers, queue_subject(name)
        mark = answers.mark()
        if count is None:
            queue = queues.deletable(name, self._session, if_unused=method.if_unused, if_empty=method.if_empty)
            count = 0
            if queue is not None:
                self._counted = count = queue.counts()[0]
                queues.decide_drop(queue)  # if this is postponed, the cluster deletes the queue: the next run answers
        self._counted = None
        answer = None if method.nowait else answers.promise(self._channel, commands.Queue.DeleteOk(count))
        try:
            if queue is not None:
                queues.drop_decided(queue)
        finally:
            if answer is not None:
                answers.fulfil(self._channel, answer, subject, mark)


def name_prefix(arguments: Mapping[str, Any]) -> str:
    """Return the prefix for the name of a server-named queue. Raises: ChannelError 406 for an invalid prefix, 403 for a
    reserved one.
    Source: RabbitMQ 4.4, rabbit_channel.
    """
    prefix = arguments.get(PREFIX_ARGUMENT, PREFIX)
    if not isinstance(prefix, str):
        raise ChannelError(406, f"invalid arg '{PREFIX_ARGUMENT}': expected a string, got {prefix!r}")
    if len(prefix.encode()) > PREFIX_MAX_BYTES:
        raise ChannelError(406, f"Queue name prefix '{prefix}' exceeds the {PREFIX_MAX_BYTES}-byte limit")
    if prefix != PREFIX:
        refuse_reserved("queue", prefix)
    return prefix or PREFIX
