"""The answers to one client's publishes and QoS 2 handshakes: PUBACK, PUBREC, PUBREL and PUBCOMP packets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import pack
from typing import Final

from broker.amqp.channel import Channel
from broker.amqp.connection import Connection
from broker.core.mqtt.faults import PacketFault
from broker.core.publishing.message_store import Targets
from broker.core.session.channel_confirms import NACK, QUEUE_FULL, ChannelConfirms
from broker.core.statistics.publish_tally import ChannelPublishes
from broker.core.vhost import Vhost
from broker.mqtt.packets import PUBACK, PUBREC, V5
from broker.mqtt.reason_codes import NO_MATCHING_SUBSCRIBERS, QUOTA_EXCEEDED, SUCCESS

CODE_SHIFT: Final = 16
OCTET_SHIFT: Final = 24
UNROUTED: Final = 82  # an answer to a publish that reached no queue; differs from NACK and DROPPED
OCTETS: Final = (0, PUBACK, PUBREC)  # by QoS


class MqttConfirms(ChannelConfirms):
    """Answer publishes at QoS 1 and 2, and PUBREC and PUBREL packets, in order and after the sync.

    Shapes: `_answers` contains, in order, the `packed` answers that are not sent yet, and a negative item for
        consecutive publishes at QoS 0: minus their number. `in_flight` counts the PUBACK packets among the answers.
        `refused` contains the numbers of the publishes refused since the last `expect`; `_reason` is that of the last
        refusal.
    """

    __slots__ = ("_answers", "_forget", "_reason", "_sizes_vary", "_version", "_vhost", "in_flight", "refused")

    _forget: Callable[[list[int]], None]

    def __init__(self, channel: Channel, connection: Connection, vhost: Vhost, tally: ChannelPublishes) -> None:
        super().__init__(channel, connection, vhost, tally)
        self._answers: list[int] = []
        self._reason = ""
        self._vhost = vhost
        self._version = V5
        self._sizes_vary = False
        self.in_flight = 0
        self.refused: list[int] = []

    def begin(self, version: int, forget: Callable[[list[int]], None]) -> None:
        """Begin to answer in a version of MQTT. `forget` is called with the packet ids of refused QoS 2 publishes."""
        self._version = version
        self._forget = forget
        self.start()

    def set_sizes_vary(self, sizes_vary: bool) -> None:
        """Set whether the bodies of the next run differ in size."""
        self._sizes_vary = sizes_vary

    def published_run(
        self,
        headers: list[bytes],
        bodies: list[bytes],
        start: int,
        stop: int,
        targets: list[Targets],
        stops: list[int],
        logged: int,
    ) -> None:
        if self._sizes_vary and start < stop:  # the tally would assume equal sizes if both ends had the same header
            headers = [*headers[: stop - 1], b""]
        super().published_run(headers, bodies, start, stop, targets, stops, logged)

    def note_unrouted(self) -> None:
        """Answer the last publish as one that reached no queue."""
        self._answer_otherwise(self.published, UNROUTED)

    def refuse(self, number: int, reason: str = QUEUE_FULL) -> None:
        """Answer an unconfirmed publish with an error, because it was refused."""
        self.refused.append(number)
        self._reason = reason
        super().refuse(number)

    def expect(self, packet_ids: list[int], qos: int, unroutable: list[bool]) -> None:
        """Record the packet ids of publishes that were just accepted. Shapes: `unroutable` states for each whether it
        was routed to no queue; it is empty if all were routed, and at QoS 0. `note_unrouted` takes precedence.
        """
        self.refused.clear()
        answers = self._answers
        count = len(packet_ids)
        if qos:
            octet = OCTETS[qos]
            codes = [NO_MATCHING_SUBSCRIBERS if one else SUCCESS for one in unroutable] or [SUCCESS] * count
            answers += [packed(octet, codes[place], packet_ids[place]) for place in range(count)]
        elif answers and answers[-1] < 0:
            answers[-1] -= count
        elif count:
            answers.append(-count)
        if qos == 1:
            self.in_flight += count

    def answer(self, octet: int, packet_id: int, reason_code: int = SUCCESS) -> None:
        """Send an answer after the earlier ones, once all records are on disk."""
        self._answers.append(packed(octet, reason_code, packet_id))
        self.published += 1
        self.wait_for_records()
        if not self.waiting:
            self.waiting = True
            self._committer.wait(self)

    def wait_for_records(self) -> None:
        """Confirm the last publish only once all records are on disk."""
        if self._vhost.store.needs_sync:
            self.wait_for_disk()

    def _settle(self, kind: int, upto: int) -> None:
        """Send the answers to publishes, PUBREC and PUBREL packets up to a number.

        A refused publish is answered with 0x97. MQTT 3.1.1 has no such answer, so the client is disconnected.
        """
        count = upto - self.confirmed
        if count <= 0:
            return
        self.confirmed = upto
        due = self._take_due(count)
        pieces: list[bytes] = []
        short_answers: list[int] = []  # packets without a reason code, as integers of four octets
        published = count
        given = QUOTA_EXCEEDED if kind == NACK else NO_MATCHING_SUBSCRIBERS if kind == UNROUTED else SUCCESS
        for answer in due:
            octet = answer >> OCTET_SHIFT
            code = given or answer >> CODE_SHIFT & 0xFF
            if octet == PUBACK:
                self.in_flight -= 1
            elif octet != PUBREC:
                published -= 1
            if code and self._version == V5:
                pieces.append(pack(f">{len(short_answers)}I", *short_answers))
                pieces.append(bytes((octet, 3, answer >> 8 & 0xFF, answer & 0xFF, code)))
                short_answers.clear()
            else:
                short_answers.append(packed(octet, 2, answer & 0xFFFF))
        pieces.append(pack(f">{len(short_answers)}I", *short_answers))
        if kind == NACK:
            self._forget([answer & 0xFFFF for answer in due if answer >> OCTET_SHIFT == PUBREC])
            if due and self._version != V5:
                fault = PacketFault(QUOTA_EXCEEDED, self._reason, 406)
                ports = self._vhost.ports  # fail in the next turn: the committer is running
                ports.deadlines.set((self, "refused"), ports.clock.now_ms, partial(self._connection.fail, fault))
                return
        else:
            self._tally.confirmed(published)
        if due:
            self._connection.write(b"".join(pieces))

    def _take_due(self, count: int) -> list[int]:
        """Remove the items of the next `count` packets, and return the answers among them."""
        waiting = self._answers
        due: list[int] = []
        at = 0
        while count > 0:
            answer = waiting[at]
            if answer > 0:
                due.append(answer)
                count -= 1
                at += 1
            elif -answer > count:
                waiting[at] = answer + count
                count = 0
            else:
                count += answer
                at += 1
        del waiting[:at]
        return due


def packed(octet: int, reason_code: int, packet_id: int) -> int:
    """Return an answer as one number: its first octet, reason code and packet id."""
    return octet << OCTET_SHIFT | reason_code << CODE_SHIFT | packet_id
