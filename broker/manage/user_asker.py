"""The user of a request as operations see who asks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from broker.operations.request import Asker, OperationRefused
from broker.operations.rights import check_publish

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from broker.core.moving.course import CheckPublish
    from broker.core.vhost import Vhost
    from broker.manage.call import Call

__all__ = ["UserAsker"]


class UserAsker(Asker):
    """A user over HTTP, who may do what AMQP's permissions allow.

    `conversation` is the other end of a command; a lasting one, such as a trace, shows more only while the login lasts
    and `still` raises nothing.
    """

    def __init__(self, call: Call, conversation: Asker | None = None, still: Callable[[], None] = lambda: None) -> None:
        self._call = call
        self._conversation = conversation
        self._still = still
        self.user_name = call.user.name

    def check_publish(self, vhost: Vhost) -> CheckPublish:
        """Return what raises ChannelError for what the user may not publish in a vhost."""
        return partial(check_publish, self._call.broker, self._call.user, vhost)

    def tell(self, progress: Mapping[str, Any]) -> None:
        """Send progress."""
        if self._conversation is not None:
            self._conversation.tell(progress)

    async def say(self, progress: Mapping[str, Any]) -> None:
        """Send progress, if the user may still have it. Raises: ChannelError, OperationRefused."""
        if not self._call.lasts():
            raise OperationRefused(f"the login of user '{self.user_name}' has ended")
        self._still()
        if self._conversation is not None:
            await self._conversation.say(progress)

    def enough(self) -> bool:
        """Return whether the client has ended its side, or is gone."""
        return self._call.client.gone() if self._conversation is None else self._conversation.enough()

    async def accepted(self) -> bool:
        """Wait for a line of the client."""
        return self._conversation is not None and await self._conversation.accepted()
