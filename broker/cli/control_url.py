"""The conversation of a command with a broker over HTTP: one POST, whose body and answer are open at the same time.

The body contains the request, and then a line for each report that the command accepts. The end of the body asks the
broker to stop the command. The answer contains the lines that the control socket would send.
"""

from __future__ import annotations

import json
import socket
import ssl
from base64 import b64encode
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import Final
from urllib.parse import unquote, urlsplit

from broker.cli.broker_url import BrokerUrl, Unanswered
from broker.cli.parser import BadUsage

PORTS: Final = {"http": 15672, "https": 15671}
PATH: Final = "/v1/control"
SERVER: Final = "SlotMQ"
REASON_BYTES_MAX: Final = 4096
LAST_CHUNK: Final = b"0\r\n\r\n"


class HttpConversation:
    """A request to a broker over HTTP. Raises: Unanswered, BadUsage; errors of a connected socket stay OSErrors."""

    def __init__(self, broker: BrokerUrl, silence_s: float | None) -> None:
        """Connect and send the head of the request."""
        self._broker = broker
        self._answer: HTTPResponse | None = None
        self._ended = False
        self._socket = self._connect(silence_s)
        try:
            self._socket.sendall(self._head())
        except BaseException:
            self._socket.close()
            raise

    def sendall(self, data: bytes, /) -> None:
        """Send bytes as one chunk of the body."""
        self._socket.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def recv(self, size: int, /) -> bytes:
        """Return the next part of the answer, empty at its end."""
        try:
            if self._answer is None:
                self._answer = HTTPResponse(self._socket, method="POST")  # assigned first, so that `close` closes it
                self._begin(self._answer)
            return self._answer.read1(size)
        except HTTPException as error:
            reason = "the answer broke off" if isinstance(error, IncompleteRead) else str(error) or "not HTTP"
            raise Unanswered(f"no SlotMQ answers at {self._broker.shown}: {reason}") from None

    def shutdown(self, how: int, /) -> None:
        """End the body, which asks the broker to stop the command."""
        if not self._ended:
            self._ended = True
            self._socket.sendall(LAST_CHUNK)

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._socket.close()

    def _connect(self, silence_s: float | None) -> socket.socket:
        parts = urlsplit(self._broker.url)
        try:
            port = parts.port or PORTS[parts.scheme]
        except ValueError:
            raise BadUsage(f"no valid port in {self._broker.shown}") from None
        if not parts.hostname:
            raise BadUsage(f"no host in {self._broker.shown}")
        try:
            context = self._context() if parts.scheme == "https" else None
            plain = socket.create_connection((parts.hostname, port), silence_s)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return plain if context is None else context.wrap_socket(plain, server_hostname=parts.hostname)
            except BaseException:
                plain.close()
                raise
        except ssl.SSLCertVerificationError as error:
            hint = "--cafile names the authority that signed it"
            raise Unanswered(f"the certificate of {self._broker.shown}: {error.verify_message} ({hint})") from None
        except ssl.SSLError as error:
            raise Unanswered(f"no TLS at {self._broker.shown}: {error.reason or error}") from None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise Unanswered(f"no broker answers at {self._broker.shown}: {reason}") from None

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._broker.ca_file)
        except OSError as error:
            raise BadUsage(f"--cafile: {self._broker.ca_file}: {error.strerror or error}") from None
        if self._broker.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _head(self) -> bytes:
        parts = urlsplit(self._broker.url)
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        lines = [
            f"POST {parts.path.rstrip('/')}{PATH} HTTP/1.1",
            f"Host: {parts.netloc.rpartition('@')[2]}",
            f"Authorization: Basic {b64encode(login.encode()).decode()}",
            "Content-Type: application/x-ndjson",
            "Transfer-Encoding: chunked",
            "Connection: close",
        ]
        return "\r\n".join([*lines, "", ""]).encode()

    def _begin(self, answer: HTTPResponse) -> None:
        """Read the head of the answer. Raises: Unanswered for any status but 200; HTTPException; OSError."""
        answer.begin()
        if answer.status == 200:
            return
        body = answer.read(REASON_BYTES_MAX)
        if answer.getheader("Server") != SERVER:
            status = f"{answer.status} {answer.reason}"
            raise Unanswered(f"no SlotMQ answers at {self._broker.shown}, but something else: {status}")
        try:
            reason = str(json.loads(body)["reason"])
        except (ValueError, KeyError, TypeError):
            reason = f"{answer.status} {answer.reason}"
        raise Unanswered(f"{self._broker.shown} refuses: {reason}")
