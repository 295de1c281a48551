"""Turns refusals of the broker into answers of the control socket."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from broker.amqp.errors import BrokerError
from broker.net.control_request import ControlRefused, Request, Verb
from broker.store.damage import CorruptStore, StoreFailed

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.core.vhost import Vhost

__all__ = ["refusing", "vhost_of"]


def refusing(verb: Verb) -> Verb:
    """Return the verb with each refusal, and what keeps the store from its work, as one line."""

    async def answer(request: Request) -> Any:
        try:
            result = verb(request)
            return await result if inspect.isawaitable(result) else result
        except CorruptStore as error:  # of a message: the client is told
            raise ControlRefused(str(error)) from error
        except StoreFailed as error:
            raise ControlRefused(f"the store cannot be read or written: {error}") from error
        except (ValueError, BrokerError) as error:
            raise ControlRefused(str(error)) from error

    return answer


def vhost_of(request: Request, administration: Administration) -> Vhost:
    """Return the vhost that a request names. Raises: ControlRefused."""
    name = request.text("vhost", "/")
    vhost = administration.vhosts.get(name)
    if administration.vhosts.is_down(name):
        raise ControlRefused(f"vhost '{name}' is down: {administration.vhosts.offline[name].reason}")
    if vhost is None:
        raise ControlRefused(f"no vhost '{name}'")
    return vhost
