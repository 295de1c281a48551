"""The errors that end a run early or prevent its start."""

from __future__ import annotations


class Fault(Exception):
    """A run cannot continue."""


class Refusal(Fault):
    """The broker refused a request, closed a channel or connection, cancelled a consumer or sent a wrong answer."""


class BrokenStream(Fault):
    """The received bytes are not a valid sequence of AMQP frames or MQTT packets, or contain unexpected ones."""


class Stalled(Fault):
    """The broker did not answer a request in time."""


class RunFailed(Exception):
    """A run ended early or could not start; the text says what the generator observed."""


class BadOptions(Exception):
    """Options that a run cannot use; the text is one line for the user."""


class BadDocument(Exception):
    """A document of the wrong form; the text is one line, with the name of the field if a single one is wrong."""
