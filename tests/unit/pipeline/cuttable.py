"""A TCP relay to a broker whose connections a test can cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

PIECE_BYTES = 65536


class CuttableWay:
    """Relays bytes between clients and a port until it is cut.

    While `swallow` is set, the broker's output is discarded: publishes arrive, but confirms do not.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self.connections = 0
        self.swallow = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(self._listener)
        self.cut()

    def cut(self) -> None:
        """End every connection; new ones are accepted."""
        while self._ends:
            self._close(self._ends.pop())
        self.swallow = False  # last: a confirm already read must not be relayed

    @staticmethod
    def _close(end: socket.socket) -> None:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._to))
                self.connections += 1
                self._ends += (client, broker)
                threading.Thread(target=self._pass, args=(client, broker, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(broker, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, from_broker: bool) -> None:
        with suppress(OSError):
            while octets := source.recv(PIECE_BYTES):
                if not (from_broker and self.swallow):
                    target.sendall(octets)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
