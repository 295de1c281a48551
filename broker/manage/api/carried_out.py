"""Verbs of the control socket, carried out for a request."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from broker.net.control_request import Request

if TYPE_CHECKING:
    from broker.manage.call import Call

__all__ = ["carried_out"]


async def carried_out(call: Call, verb: str, **arguments: Any) -> Any:
    """Carry out a verb and return its answer. Raises: ControlRefused, which is answered with 400."""
    answer = call.broker.verbs[verb](Request(arguments))
    return await answer if inspect.isawaitable(answer) else answer
