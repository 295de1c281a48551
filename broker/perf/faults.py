"""Names what ends a run early, as the generator sees it."""

from __future__ import annotations


class Fault(Exception):
    """A run cannot go on."""


class Refusal(Fault):
    """The broker ended it: it closed the channel or connection, cancelled the consumer or refused a message."""


class BrokenStream(Fault):
    """The received bytes are not a sequence of AMQP frames, or not the one that was announced."""


class Stalled(Fault):
    """Nothing moved for too long."""
