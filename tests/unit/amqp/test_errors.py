"""Errors: codes, their names, and texts that fit into a short string."""

import pytest
from pamqp import exceptions

from broker.amqp.errors import CODE_NAMES, ChannelError, ConnectionFault, Fatal, ProtocolError
from broker.store.damage import StoreFailed


def test_text_begins_with_the_name_of_the_code() -> None:
    """A reply text starts with the name of its code, which users search logs for."""
    error = ChannelError(404, "no queue 'q' in vhost '/'")
    assert error.reply_text == str(error) == "NOT_FOUND - no queue 'q' in vhost '/'"
    assert (error.reply_code, error.class_id, error.method_id) == (404, 0, 0)
    assert ConnectionFault(530, "no", 10, 40).method_id == 40


def test_codes_are_those_of_the_specification() -> None:
    """Every reply code of the specification has its name, and there are no others."""
    errors = [error for error in vars(exceptions).values() if hasattr(error, "value") and hasattr(error, "name")]
    assert {error.value: error.name.replace("-", "_") for error in errors} == CODE_NAMES


@pytest.mark.parametrize("letter", ["x", "é", "队", "🐇"])
@pytest.mark.parametrize("length", [50, 235, 236, 237, 1000])
def test_long_text_is_cut_between_characters(letter: str, length: int) -> None:
    """A text that exceeds a short string is cut at a character, with a mark."""
    text = ChannelError(406, letter * length).reply_text
    assert len(text.encode()) <= 255
    if len(f"PRECONDITION_FAILED - {letter * length}".encode()) > 255:
        assert text.endswith(letter + "...")
        assert len(text.encode()) > 248
    else:
        assert text.endswith(letter)


def test_text_that_is_no_unicode() -> None:
    """A name with a lone surrogate still gives a text that can be encoded."""
    assert ChannelError(404, "no queue '\udcff'").reply_text == "NOT_FOUND - no queue '?'"


def test_store_failure_is_no_protocol_error() -> None:
    """StoreFailed passes through the connection without a frame and ends the broker."""
    failure = StoreFailed("data/log/1", "No space left on device")
    assert isinstance(failure, Fatal)
    assert not isinstance(failure, ProtocolError)
    assert str(failure) == "data/log/1: No space left on device"
