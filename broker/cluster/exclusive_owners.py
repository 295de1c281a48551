"""The connections that own exclusive queues, as the topology log names them: by node, epoch and a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["ExclusiveOwners", "ForeignOwner"]


class ForeignOwner(NamedTuple):
    """A connection of another node, or one that has ended. No session is equal to it, so its queues are locked."""

    node: str
    epoch: int
    token: int


class ExclusiveOwners:
    """Gives the connections of this node tokens, and finds them by these.

    Shapes: an owner is the session of a connection of this node, or a ForeignOwner.
    """

    def __init__(self) -> None:
        self._tokens: dict[Any, int] = {}
        self._sessions: dict[int, Any] = {}
        self._last = 0

    def name(self, owner: object, node: str, epoch: int) -> ForeignOwner:
        """Return the name of an owner. `node` and `epoch` are those of this node."""
        if isinstance(owner, ForeignOwner):
            return owner
        token = self._tokens.get(owner)
        if token is None:
            self._last = token = self._last + 1
            self._tokens[owner] = token
            self._sessions[token] = owner
        return ForeignOwner(node, epoch, token)

    def find(self, name: Sequence[str | int], epoch: int) -> object:
        """Return the connection of that name, or its name if it is not one of this node in its present epoch."""
        owner = ForeignOwner(str(name[0]), int(name[1]), int(name[2]))
        return self._sessions.get(owner.token, owner) if owner.epoch == epoch else owner

    def has_ended(self, name: Sequence[str | int], epoch: int) -> bool:
        """Return whether that was a connection of this node in its present epoch, which has ended."""
        session = self._sessions.get(int(name[2]))
        return name[1] == epoch and (session is None or session.connection.finished)

    def forget_ended(self) -> None:
        """Forget connections that have ended: their queues are being deleted."""
        for session in [session for session in self._tokens if session.connection.finished]:
            del self._sessions[self._tokens.pop(session)]

    def clear(self) -> None:
        """Forget all connections, because the node is a new member."""
        self._tokens.clear()
        self._sessions.clear()
