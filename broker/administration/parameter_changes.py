"""Set and clear parameters of vhosts and of the broker; paused queues are parameters, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.administration.definitions import PAUSED_QUEUE, VHOST_LIMITS, limits_key
from broker.core.definitions.reading import OPERATOR_POLICY, check_depth
from broker.core.vhost_limits import vhost_limits_table
from broker.event_log import get_logger

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.administration.definitions import Draft

__all__ = ["ParameterChanges", "QueuePauses"]

POLICIES: Final = ("policy", OPERATOR_POLICY)  # the components that RabbitMQ keeps policies as
OWN: Final = "slotmq-"  # the beginning of the components that only this broker has

_log = get_logger()


class ParameterChanges:
    """Sets and clears parameters. Raises: what Administration raises.

    A component that the broker does not use is stored and exported all the same; the log has a warning.
    """

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def set(self, vhost: str, component: str, name: str, value: Any) -> bool:
        """Set a parameter of a vhost, and return whether it is new."""
        if component in POLICIES:
            raise ValueError("policies may not be set using this method")
        check_depth("value", value)
        key = (vhost, component, name)
        limits = component == VHOST_LIMITS
        if limits:
            if key != limits_key(vhost):
                raise ValueError(f"a parameter of {VHOST_LIMITS} is named 'limits'")
            vhost_limits_table(value)
        is_new = False

        def change(draft: Draft) -> None:
            nonlocal is_new
            draft.check_vhost(vhost)
            is_new = key not in draft.parameters
            draft.set_parameter(key, value)

        await self._administration.change(change, "parameter.set", vhost=vhost, component=component, name=name)
        if not (limits or component.startswith(OWN)):
            _log.warning("parameter.without_effect", vhost=vhost, component=component, name=name)
        return is_new

    async def clear(self, vhost: str, component: str, name: str) -> None:
        """Remove a parameter of a vhost."""

        def change(draft: Draft) -> None:
            draft.check_vhost(vhost)
            if (vhost, component, name) not in draft.parameters:
                raise ValueError(f"Parameter '{name}' of component '{component}' does not exist")
            draft.drop_parameter((vhost, component, name))

        await self._administration.change(change, "parameter.cleared", vhost=vhost, component=component, name=name)

    async def set_global(self, name: str, value: Any) -> bool:
        """Set a parameter of the broker, and return whether it is new."""
        check_depth("value", value)
        is_new = False

        def change(draft: Draft) -> None:
            nonlocal is_new
            is_new = name not in draft.global_parameters
            draft.global_parameters[name] = value

        await self._administration.change(change, "global_parameter.set", name=name)
        return is_new

    async def clear_global(self, name: str) -> None:
        """Remove a parameter of the broker."""

        def change(draft: Draft) -> None:
            if draft.global_parameters.pop(name, None) is None:
                raise ValueError(f"Global parameter '{name}' does not exist")

        await self._administration.change(change, "global_parameter.cleared", name=name)


class QueuePauses:
    """Pauses and resumes the deliveries of queues. Raises: what Administration raises.

    A parameter of the vhost keeps each pause, so that it outlives restarts and holds on all nodes of a cluster.
    """

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def pause(self, vhost: str, name: str) -> None:
        """Pause the queue of this name, which may be declared later; does nothing for a paused queue."""
        key = (vhost, PAUSED_QUEUE, name)
        if key in self._administration.parameters:
            return

        def change(draft: Draft) -> None:
            draft.check_vhost(vhost)
            draft.set_parameter(key, {})

        await self._administration.change(change, "queue.paused", vhost=vhost, queue=name)

    async def resume(self, vhost: str, name: str) -> None:
        """Resume the queue of this name; does nothing for a queue that is not paused."""
        key = (vhost, PAUSED_QUEUE, name)
        if key not in self._administration.parameters:
            return

        def change(draft: Draft) -> None:
            draft.check_vhost(vhost)
            draft.drop_parameter(key)

        await self._administration.change(change, "queue.resumed", vhost=vhost, queue=name)
