"""The command line of the demo."""

import pytest

from demo.broker_process import parse_url
from demo.ledger import Address
from demo.options import ALL_ROWS, parse_options


def test_plain_run_publishes_everything_and_kills() -> None:
    """Without arguments all flights are published to over 200 queues, and the broker is killed."""
    options = parse_options([])
    assert options.rows == ALL_ROWS == 336_776
    assert options.queues >= 200
    assert options.kill_at is not None


@pytest.mark.parametrize("arguments", [["--no-kill"], ["--url", "amqp://localhost"]])
def test_broker_that_must_not_die_is_not_killed(arguments: list[str]) -> None:
    """With --no-kill, or an external broker, nothing is killed."""
    assert parse_options(arguments).kill_at is None


@pytest.mark.parametrize(
    "arguments",
    [["--rows", "0"], ["--rows", "336777"], ["--queues", "0"], ["--kill-at", "1"], ["--pika-consumers", "0"]],
)
def test_argument_out_of_range_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The refusal names the argument."""
    with pytest.raises(SystemExit, match="2"):
        parse_options(arguments)
    assert f"error: {arguments[0]} is {arguments[1]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("amqp://127.0.0.1:40123", Address("127.0.0.1", 40123, "guest", "guest", "/")),
        ("amqp://guest@127.0.0.1:5672/", Address("127.0.0.1", 5672, "guest", "guest", "/")),
        ("amqp://me:p%40ss@broker/%2Fa", Address("broker", 5672, "me", "p@ss", "/a")),
    ],
)
def test_url_says_where_the_broker_is(url: str, address: Address) -> None:
    """Missing parts of a URL are guest's and the default port; escapes are decoded."""
    assert parse_url(url) == address
