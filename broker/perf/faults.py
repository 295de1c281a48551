"""The errors that end a run early, or keep it from beginning."""

from __future__ import annotations


class Fault(Exception):
    """A run cannot go on."""


class Refusal(Fault):
    """The broker ended it: it closed the channel or connection, cancelled the consumer or refused a message."""


class BrokenStream(Fault):
    """The received bytes are not a sequence of AMQP frames, or not the one that was announced."""


class Stalled(Fault):
    """Nothing moved for too long."""


class BadOptions(Exception):
    """Options that do not go together; the text is one line for the user."""
