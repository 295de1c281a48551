"""The errors that end a run early or prevent its start."""

from __future__ import annotations


class Fault(Exception):
    """A run cannot continue."""


class Refusal(Fault):
    """The broker closed a channel or connection, cancelled a consumer or refused a message."""


class BrokenStream(Fault):
    """The received bytes are not a valid sequence of AMQP frames, or contain frames that were not expected."""


class Stalled(Fault):
    """Nothing made progress for too long."""


class RunFailed(Exception):
    """A run ended early; the text says what the generator observed."""


class BadOptions(Exception):
    """Options that contradict each other; the text is one line for the user."""


class BadDocument(Exception):
    """A document of the wrong form; the text is one line that names the wrong field."""
