"""Intended differences between SlotMQ and RabbitMQ 4.3: each has its reason in a line of docs/compatibility.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from tests.differential.speaker import Transcript

__all__ = ["INTENDED", "Difference", "expected_of"]

_NOT_ALLOWED: Final = "A0 connection.close reply_code=530 reply_text='NOT_ALLOWED - {}' class_id={} method_id={}"
_PRECONDITION: Final = "A1 channel.close reply_code=406 reply_text={} class_id={} method_id=10"
_NOT_IMPLEMENTED: Final = (
    "A0 connection.close reply_code=540 reply_text='NOT_IMPLEMENTED - unknown method {} of class {}' "
    "class_id={} method_id={}"
)
_CLAIMED: Final = "{'count': 6, 'exchange': '', 'queue': '~q', 'reason': 'rejected', 'routing-keys': ['~q']}"
_CONSUMED: Final = (
    "A2 basic.consume-ok consumer_tag='c'\n"
    "A2 basic.deliver consumer_tag='c' redelivered=False exchange='' routing_key='~q' 'one'"
)
_NO_STREAMS: Final = (
    "\"streams are not supported; a durable queue of type \\'quorum\\' keeps its messages until they are acknowledged\""
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A rewrite of RabbitMQ's lines: pairs of a pattern for the whole line and SlotMQ's line, which may be empty.

    Shapes: ``conversations`` are patterns of names; ``documented`` is the beginning of the line in
    docs/compatibility.md. With ``older``, SlotMQ behaves as 3.10, whose answers are rewritten. With ``last``, the
    comparison ends after the first rewritten step, because the two brokers are in different states.
    """

    conversations: str
    documented: str
    lines: tuple[tuple[str, str], ...] = ()
    last: bool = False
    older: bool = False

    def holds_for(self, name: str) -> bool:
        """Return whether the difference applies to this conversation."""
        return any(fnmatchcase(name, pattern) for pattern in self.conversations.split())

    def applied(self, said: Sequence[str]) -> list[str]:
        """Return the rewritten lines of an answer."""
        found: list[str] = []
        for line in said:
            for pattern, instead in self.lines:
                match = re.fullmatch(pattern, line)
                if match is not None:
                    found += match.expand(instead).split("\n") if instead else []
                    break
            else:
                found.append(line)
        return found


def _out_of_range(name: str, text: str) -> Difference:
    said = _NOT_ALLOWED.format(f"negotiated {text}", 10, 31)
    return Difference(f"connection/{name}", "limits in tune-ok out of range", (("A0 gone", said),))


def _no_stream(name: str, queue: str) -> Difference:
    where = f"invalid arg \\'x-queue-type\\' for queue \\'{queue}\\' in vhost \\'/\\'"
    text = f"'PRECONDITION_FAILED - {where}: {_NO_STREAMS}'"
    refused = _PRECONDITION.format(text, 50).replace("\\", "\\\\")
    return Difference(
        name,
        "`x-queue-type: stream`",
        (
            (f"A1 queue.declare-ok queue='{queue}' .*", refused),
            (f"{queue} has 0 for 0 consumers", f"{queue} is not there"),
            (f"{queue} cannot be drained: .*", ""),
        ),
    )


INTENDED: Final[tuple[Difference, ...]] = (
    _out_of_range("frames-too-small", "frame_max = 2048 is lower than the minimum allowed value (4096)"),
    _out_of_range("frames-without-limit", "frame_max = 0 is higher than the maximum allowed value (131072)"),
    _out_of_range("frames-too-large", "frame_max = 262144 is higher than the maximum allowed value (131072)"),
    _out_of_range("channels-too-many", "channel_max = 4096 is higher than the maximum allowed value (2047)"),
    _out_of_range(
        "channels-without-limit", "channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"
    ),
    Difference(
        "connection/no-protocol connection/other-protocol-*",
        "another protocol header",
        ((r"A0 protocol-header 414d515003010000", "A0 protocol-header 414d515000000901"),),
    ),
    Difference(
        "connection/greeting",
        "the mechanism `ANONYMOUS`",
        ((r"(.*)AMQPLAIN ANONYMOUS PLAIN(.*)", r"\1AMQPLAIN PLAIN\2"),),
    ),
    Difference("connection/small-frames", "the smallest `frame_max`", older=True),
    Difference("consumer/cancel-ok-unasked", "a method that only a server sends", older=True),
    Difference(
        "connection/unknown-class connection/unknown-method",
        "unknown class or method",
        (
            (
                "A0 gone",
                _NOT_IMPLEMENTED.format(10, 77, 77, 10),
            ),
            (
                r"A0 connection\.close reply_code=501 .*",
                _NOT_IMPLEMENTED.format(200, 60, 60, 200),
            ),
        ),
    ),
    _no_stream("queue/argument-x-queue-type", "~q2"),
    _no_stream("extension/stream", "~q"),
    Difference(
        "queue/argument-x-queue-master-locator",
        "`x-queue-master-locator`",
        (
            (
                r"A0 connection\.close reply_code=541 .*",
                "A1 queue.declare-ok queue='~q1' message_count=0 consumer_count=0",
            ),
        ),
        last=True,
        older=True,
    ),
    Difference("queue/argument-x-queue-version", "`x-queue-version`", older=True),
    Difference(
        "extension/consistent-hash-by-hash-header-5",
        "`hash-header` that is not a string",
        (
            (
                r"A0 connection\.close reply_code=541 .*",
                _PRECONDITION.format("\"PRECONDITION_FAILED - Invalid argument, 'hash-header' must be a string\"", 40),
            ),
        ),
        last=True,
    ),
    Difference(
        "publish/expiration-99999999999999999999",
        "long texts",
        ((r"(.*\{value_too_large,)\\n +(9+.*)", r"\1\2"),),
    ),
    Difference(
        "dead_letter/*",
        "`redelivered` of a dead letter",
        (
            (r"(A1 basic\.get-ok) redelivered=True (.*'x-death'.*)", r"\1 redelivered=False \2"),
            (r"(~two basic\.get-ok) redelivered=True (.*)", r"\1 redelivered=False \2"),
        ),
    ),
    Difference(
        "dead_letter/twice-counts settling/tx-reject-dead-letters",
        "`redelivered` of a dead letter",
        ((r"(~\w+ basic\.get-ok) redelivered=True (.*'x-death'.*)", r"\1 redelivered=False \2"),),
    ),
    Difference(
        "dead_letter/x-death-claimed",
        "a header `x-death` that a publisher sent",
        (
            (
                r"(.* headers:\{)'x-death': .*? 'x-last(.*)",
                rf"\1'x-death': [{_CLAIMED}], 'x-first-death-queue': 'mine', 'x-last\2",
            ),
        ),
    ),
    Difference(
        "settling/tx-reject-publish",
        "a transaction of which a full queue rejects a message",
        (("~q has 1 for 0 consumers", "~q has 0 for 0 consumers"), (r"~q basic\.get-ok .*", "")),
    ),
    Difference(
        "extension/reply-to-mandatory",
        "a mandatory answer to `amq.rabbitmq.reply-to`",
        ((r"B1 basic\.return .* 'answer'", ""),),
        older=True,
    ),
    Difference("extension/reply-to-asked-for-by-name", "a direct reply-to name that was made up", older=True),
    Difference("settling/tx-queue-deleted-meanwhile", "a commit of a message whose queue was deleted", older=True),
    Difference(
        "extension/quorum-global-qos",
        "`x-queue-type: quorum`",
        (
            (
                r"A0 connection\.close reply_code=540 .*",
                _CONSUMED,
            ),
        ),
        last=True,
    ),
    Difference(
        "extension/quorum-with-x-single-active-consumer",
        "`x-queue-type: quorum`",
        (("~q cannot be drained: .*", ""),),
    ),
)


def expected_of(name: str, newer: Transcript, older: Transcript | None) -> tuple[Transcript, set[Difference]]:
    """Return SlotMQ's expected answers, given those of RabbitMQ 4.3 and 3.10, and the differences that apply."""
    applicable = [one for one in INTENDED if one.holds_for(name)]
    used = {one for one in applicable if one.older and newer != older}
    recorded = older if used and older is not None else newer
    expected: Transcript = []
    for said in recorded:
        lines = list(said)
        ended = False
        for difference in applicable:
            instead = difference.applied(lines)
            if instead != lines:
                used.add(difference)
                ended = ended or difference.last
                lines = instead
        expected.append(lines)
        if ended:
            break
    return expected, used
