"""The client of a request, and the choice of the client to disconnect when a limit is reached."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from broker.core.auth.peer import Peer
from broker.manage.refusal import HttpRefused

T = TypeVar("T", bound=Hashable)

Switch = Callable[[Sequence[tuple[str, str]]], tuple[asyncio.Transport, bytes] | None]


def _gone(_argument: object) -> None:
    """Do nothing, in place of `admit` and `switch`, when a connection is no longer used for HTTP."""


@dataclass(slots=True, eq=False)
class ApiClient:
    """A connected client.

    Shapes: `is_gone` returns whether the connection has ended, and can be called in any thread; `last` is set if no
        request follows the current one; an `endless` answer is cut off when the broker stops; `fault` is the reason why
        the rest of a body cannot be read. `admit` counts a request of a user, and raises HttpRefused at the limit;
        `switch` answers 101 with headers, and returns the transport and early input for another protocol.
    Units: `timeout_s` limits how long the client can take to receive a piece of an answer.
    """

    peer: Peer
    is_gone: Callable[[], bool]
    abort: Callable[[], None]
    timeout_s: float
    admit: Callable[[str], None] = _gone
    switch: Switch = _gone
    last: bool = False
    endless: bool = False
    fault: HttpRefused | None = None
    _answering: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """Register the running task, which is cancelled when the client disconnects."""
        self._answering = asyncio.current_task()

    def end(self) -> None:
        """Cancel the task that answers this client, because it has disconnected."""
        if self._answering is not None:
            self._answering.cancel()
            self._answering = None
        self.forget()

    def forget(self) -> None:
        """Drop the references to the connection."""
        self.admit = self.switch = _gone

    def accept_no_more(self) -> None:
        self.last = True

    def answer_endlessly(self) -> None:
        self.endless = True

    def fail(self, fault: HttpRefused) -> None:
        self.fault = fault

    def done(self) -> None:
        self._answering = None
        self.endless = False


class LongAnswers:
    """The clients with endless answers and their users, oldest first."""

    def __init__(self) -> None:
        self._users: dict[ApiClient, str] = {}

    def enter(self, client: ApiClient, user: str, limit: int, refusal: str) -> None:
        """Add a client. At the limit, disconnect the oldest client of the user with the most clients.

        Raises: HttpRefused (503) with the text `refusal` if that user is `user`.
        """
        if len(self._users) >= limit:
            heaviest = heaviest_user(self._users.values(), user)
            if heaviest == user:
                raise HttpRefused(503, refusal)
            oldest = next(one for one, name in self._users.items() if name == heaviest)
            self.leave(oldest)
            oldest.abort()
        self._users[client] = user

    def leave(self, client: ApiClient) -> None:
        self._users.pop(client, None)


def heaviest_user(users: Iterable[T], newcomer: T) -> T:
    """Return the user with the most entries. The newcomer counts as one more entry, and is returned in a tie."""
    counts = Counter([*users, newcomer])
    return max(counts, key=lambda one: (counts[one], one == newcomer))
