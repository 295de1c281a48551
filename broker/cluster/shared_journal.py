"""The journal of a vhost in a cluster: it has every change of the topology decided by the topology log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from broker.core.postponed import Postponed

__all__ = ["SharedJournal"]

Change = dict[str, Any]


class Proposals(Protocol):
    """The topology of all vhosts, as a journal sees it."""

    is_applying: bool

    def propose(
        self,
        changes: list[Change],
        done: Callable[[], None],
        *,
        unused: int | None = None,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Append changes and call `done` when every node has applied them, or `refused` with the reason."""

    def named(self, vhost: str, change: Change, *, durable: bool, owner: Any) -> Change:
        """Return a change of a vhost as the log has it."""

    def note_dropped(self, vhost: str, name: str) -> None:
        """Hear of a queue that is deleted by a change which is being applied."""


def _nothing() -> None:
    """Wait for nothing."""


class Proposed(Postponed):
    """A change that every node has to apply before the method runs again, and finds it done."""

    def __init__(self, topology: Proposals, change: Change) -> None:
        super().__init__()
        self._topology = topology
        self._changes = [change]

    def begin(self, then: Callable[[], None]) -> None:
        """Propose the change, and those that were taken along."""

        def refused(reason: str) -> None:
            if len(self._changes) == 1:
                self.refusal = reason
                then()
            else:  # another one may be the reason, whose method will propose it by itself
                del self._changes[1:]
                self.begin(then)

        self._topology.propose(self._changes, then, refused=refused)

    def take_along(self, other: Postponed) -> bool:
        """Propose a change of the next method together with this one."""
        if not isinstance(other, Proposed):
            return False
        self._changes += other._changes  # noqa: SLF001 - the same class
        return True


class SharedJournal:
    """Proposes the changes of one vhost, except those that are being applied."""

    __slots__ = ("_topology", "_vhost")

    def __init__(self, topology: Proposals, vhost: str) -> None:
        self._topology = topology
        self._vhost = vhost

    def decide(self, change: Change, *, durable: bool = True, owner: Any = None) -> None:
        """Let a change pass that is being applied. Raises: Postponed for any other change."""
        kind: str = change["change"]
        if self._topology.is_applying:
            if kind == "queue_deleted":
                self._topology.note_dropped(self._vhost, change["name"])
        elif not kind.startswith("producer_"):
            raise Proposed(self._topology, self._topology.named(self._vhost, change, durable=durable, owner=owner))

    def retire(self, change: Change, *, durable: bool) -> bool:
        """Propose to delete a queue unless it has consumers elsewhere; it stays until then."""
        named = self._topology.named(self._vhost, change, durable=durable, owner=None)
        self._topology.propose([named], _nothing, unused=change["number"])
        return False
