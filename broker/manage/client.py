"""The client of a request, as the API sees it, and the user who pays when a limit is reached."""

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
    """Admit every request, and switch to no protocol: the client has disconnected."""


@dataclass(slots=True, eq=False)
class ApiClient:
    """A connected client.

    Shapes: `is_gone` returns, in any thread, whether the connection has ended; `last` is set if the current answer is
    the last one; an `endless` answer is cut off when the broker stops; `fault` is the reason why the rest of a body
    cannot be read. `admit` counts its request for a user who has logged in, and raises HttpRefused when the limit is
    reached; `switch` answers 101 with these headers, and returns the socket for another protocol, with what the client
    has sent after its request.
    Units: `timeout_s` is the limit for receiving a piece of an answer.
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
        """Register the running task as this client's: it is cancelled when the client disconnects."""
        self._answering = asyncio.current_task()

    def end(self) -> None:
        """Cancel the task that answers this client, which has disconnected."""
        if self._answering is not None:
            self._answering.cancel()
            self._answering = None
        self.forget()

    def forget(self) -> None:
        """Forget the connection."""
        self.admit = self.switch = _gone

    def accept_no_more(self) -> None:
        """Make the current answer the last one."""
        self.last = True

    def answer_endlessly(self) -> None:
        """Mark the current answer as endless."""
        self.endless = True

    def fail(self, fault: HttpRefused) -> None:
        """Record the reason why the rest of the body cannot be read."""
        self.fault = fault

    def done(self) -> None:
        """Mark the answer as complete."""
        self._answering = None
        self.endless = False


class LongAnswers:
    """Hold the clients whose answers have no end of their own, with their users, the oldest first."""

    def __init__(self) -> None:
        self._users: dict[ApiClient, str] = {}

    def enter(self, client: ApiClient, user: str, most: int, refusal: str) -> None:
        """Add a client; of too many, the oldest one of the user with most is disconnected.

        Raises: HttpRefused (503) with `refusal` if that is the same user.
        """
        if len(self._users) >= most:
            pays = payer(self._users.values(), user)
            if pays == user:
                raise HttpRefused(503, refusal)
            oldest = next(one for one, name in self._users.items() if name == pays)
            self.leave(oldest)
            oldest.abort()
        self._users[client] = user

    def leave(self, client: ApiClient) -> None:
        """Forget a client."""
        self._users.pop(client, None)


def payer(holders: Iterable[T], newcomer: T) -> T:
    """Return the user who holds the most. The newcomer counts as holding one more, and loses a tie."""
    counts = Counter([*holders, newcomer])
    return max(counts, key=lambda one: (counts[one], one == newcomer))
