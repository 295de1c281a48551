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

    Shapes: `right` raises ChannelError (403) unless a user's permissions allow the operation; None if the tag suffices.
        POST /v1/control also requires `tag`, and other routes their own tags. The socket requires neither: only the
        broker's own system user can open it. A node of a cluster refuses an operation that `asks_database` while the
        database is unreachable, and always one with a reason `not_in_cluster`.
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
        if operation.asks_database:  # a change that was refused must not happen later
            facts = broker.cluster.facts()
            if facts["database_ms"] is None:
                raise OperationRefused(f"the database of the cluster cannot be reached: {facts['reason']}")
    return operation.run(broker, asked, asker)


def verb_of(broker: OperatedBroker, operation: Operation[Any]) -> Verb:
    """Return the verb of the control socket that carries out an operation."""
    return refusing(lambda request: carry_out(broker, operation, read(operation.parameters, request), request.asker))


def refusing(verb: Verb) -> Verb:
    """Return a verb that raises OperationRefused with the text of each refusal or error of the store."""

    async def answer(request: Request) -> Any:
        try:
            result = verb(request)
            return await result if inspect.isawaitable(result) else result
        except CorruptStore as error:  # a message is damaged; its text says which
            raise OperationRefused(str(error)) from error
        except StoreFailed as error:
            raise OperationRefused(f"the store cannot be read or written: {error}") from error
        except (ValueError, BrokerError) as error:
            raise OperationRefused(str(error)) from error

    return answer
