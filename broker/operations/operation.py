"""An operation: its parameters, the right that it requires, and the function that carries it out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from broker.amqp.errors import BrokerError
from broker.core.auth.users import User
from broker.operations.operated_broker import OperatedBroker
from broker.operations.request import Asker, OperationRefused, Request, Verb, read
from broker.store.damage import CorruptStore, StoreFailed

MONITORING: Final = "monitoring"
ADMINISTRATOR: Final = "administrator"
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Operation(Generic[P]):
    """An operation of the control socket and of HTTP.

    Shapes: `right` raises ChannelError (403) if the permissions of a user do not allow the operation, and None requires
        no permission; `tag` is the user tag that POST /v1/control requires. Clients of the control socket need neither.
        With `asks_database`, a node of a cluster refuses the operation while the database is unreachable. A text in
        `not_in_cluster` is the reason why a node always refuses it.
    """

    run: Callable[[OperatedBroker, P, Asker], Any]
    parameters: type[P]
    right: Callable[[OperatedBroker, User, P], None] | None = None
    tag: str = ADMINISTRATOR
    asks_database: bool = False
    not_in_cluster: str = ""


def carry_out(broker: OperatedBroker, operation: Operation[P], asked: P, asker: Asker) -> Any:
    """Return the answer of an operation, or an awaitable of it. Raises: OperationRefused and what `run` raises."""
    if broker.cluster is not None:
        if operation.not_in_cluster:
            raise OperationRefused(operation.not_in_cluster)
        if operation.asks_database:  # else a change could be refused and still happen later
            facts = broker.cluster.facts()
            if facts["database_ms"] is None:
                raise OperationRefused(f"the database of the cluster cannot be reached: {facts['reason']}")
    return operation.run(broker, asked, asker)


def verb_of(broker: OperatedBroker, operation: Operation[Any]) -> Verb:
    """Return the verb of the control socket that carries out an operation."""
    return refusing(lambda request: carry_out(broker, operation, read(operation.parameters, request), request.asker))


def refusing(verb: Verb) -> Verb:
    """Return a verb that raises refusals and errors of the store as OperationRefused."""

    async def answer(request: Request) -> Any:
        try:
            result = verb(request)
            return await result if inspect.isawaitable(result) else result
        except CorruptStore as error:  # a message on disk is damaged or missing
            raise OperationRefused(str(error)) from error
        except StoreFailed as error:
            raise OperationRefused(f"the store cannot be read or written: {error}") from error
        except (ValueError, BrokerError) as error:
            raise OperationRefused(str(error)) from error

    return answer
