"""The command line of the demo."""

import pytest

from demo.options import ALL_ROWS, parse_options


def test_plain_run_publishes_everything() -> None:
    """Without arguments all flights are published to over 200 queues of one broker."""
    options = parse_options([])
    assert (options.show, options.rows, options.queues) == ("broker", ALL_ROWS, 220)
    assert ALL_ROWS == 336_776


def test_a_show_has_its_own_numbers_unless_others_are_given() -> None:
    """The page shows few queues and some of the flights."""
    page = parse_options(["--show", "page", "--queues", "12"])
    assert (page.rows, page.queues) == (20_000, 12)
    assert parse_options(["--show", "pipeline"]).queues == 200


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["--rows", "0"], "--rows is 0"),
        (["--rows", "336777"], "--rows is 336777"),
        (["--queues", "0"], "--queues is 0"),
        (["--kill-at", "1"], "--kill-at is 1"),
        (["--pika-consumers", "0"], "--pika-consumers is 0"),
        (["--show", "page", "--rate", "0"], "--rate is 0"),
        (["--show", "cluster", "--url", "amqp://localhost"], "--url is for --show broker"),
        (["--seconds", "3"], "--seconds is for --show page"),
        (["--url", "amqp://localhost", "--broker-command", "x"], "give only one of them"),
    ],
)
def test_wrong_argument_is_refused(arguments: list[str], refusal: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The refusal names the argument; a show takes no option of another one."""
    with pytest.raises(SystemExit, match="2"):
        parse_options(arguments)
    assert refusal in capsys.readouterr().err
