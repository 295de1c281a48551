"""The errors that end a run early or prevent its start."""

from __future__ import annotations


class Fault(Exception):
    """A run cannot continue."""


class Refusal(Fault):
    """The broker ended the run: it closed the channel or connection, cancelled the consumer or refused a message."""


class BrokenStream(Fault):
    """The received bytes are not a valid sequence of AMQP frames, or differ from the announced frames."""


class Stalled(Fault):
    """Nothing made progress for too long."""


class RunFailed(Exception):
    """A run did not reach its end; the text says what the generator observed."""


class BadOptions(Exception):
    """Options that contradict each other; the text is one line for the user."""


class BadDocument(Exception):
    """A document of the wrong form; the text is one line that names the place."""
