"""`slotmq perf` on the command line: wrong usage is reported before any connection; stored results side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cli.main import main
from broker.perf.scenarios import SCENARIOS
from tests.perf_results import result

NOBODY = "amqp://guest:hush-hush@127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("throughput", "-p"), "-u"),
        (("throughput", "-x", "0", "-y", "0"), "nothing to do"),
        (("throughput", "-x", "0"), "-u"),
        (("throughput", "-y", "0", "-D", "5"), "consumer"),
        (("throughput", "-q", "5", "-A", "6"), "--qos 5"),
        (("throughput", "-a", "-A", "6"), "--autoack"),
        *(((scenario, "--pid", "999999999"), "no such process") for scenario in SCENARIOS),
        (("throughput", "-s", "1x"), "size"),
        (("throughput", "-C", "0"), "at least 1"),
        (("throughput", "-q", "65536"), "65535"),
        (("throughput", "--plot", "/no/such/folder/x.html"), "cannot be written"),
        (("throughput", "-i", "1ms"), "50ms"),
        (("latency", "-s", "4"), "8 bytes"),
        (("fanout", "-y", "0"), "consumer"),
        (("nonsense",), "invalid choice"),
        (("routing", "--match", "200%"), "more than all"),
        (("routing", "--bindings", "6M"), "at most"),
        (("backlog", "-x", "0"), "publisher"),
        (("throughput", "-f", "hot"), "invalid choice"),
        (("connections", "-n", "0"), "argument -n/--connections: '0' is not a number such as 1000 or 10k, at least 1"),
        (("connections", "--heartbeat", "1.5"), "argument --heartbeat: '1.5' is not whole seconds up to 65535"),
        (("connections", "-X", "65536"), "argument -X/--channels: '65536' is more than 65535"),
        (("churn",), "the following arguments are required: KIND"),
        (("churn", "exchanges"), "argument KIND: invalid choice: 'exchanges'"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage is one line and exit code 2, without the password."""
    try:
        code = main(["perf", *words, "--uri", NOBODY])
    except SystemExit as left:
        code = int(str(left.code))
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert said in err
    assert "hush" not in err


@pytest.mark.parametrize(
    "url",
    [
        "http://a:hush-hush@x",
        "amqp://a:hush-hush@x:y",
        "amqps://a:hush@h/?verify=no",
        "amqp://a:hush\u2100@h",
        "amqp://a:hush@" + "\xe9" * 64,
    ],
)
def test_a_wrong_url_is_told_without_its_password(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error shows the URL without its password."""
    with pytest.raises(SystemExit):
        main(["perf", "throughput", "--uri", url])
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "hush" not in err


def test_every_scenario_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    """-h is the broker's URL, so --help is the help."""
    for name in SCENARIOS:
        with pytest.raises(SystemExit) as left:
            main(["perf", name, "--help"])
        assert left.value.code == 0
        out = capsys.readouterr().out
        assert f"usage: slotmq perf {name} [-h URL]" in out
        assert name != "backlog" or "size of a body in bytes, default 100\n" in out


def kept(folder: Path, name: str, product: str, per_s: int) -> str:
    """Return the path of a stored result."""
    path = folder / name
    path.write_text(result(product, per_s).to_json())
    return str(path)


def test_kept_results_are_set_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each result is a column, and each value is followed by its ratio to the first result."""
    files = [kept(tmp_path, f"{product}.json", product, rate) for product, rate in (("A", 1000), ("B", 2500))]
    assert main(["perf", "compare", *files, "--plot", str(tmp_path / "page.html")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["A", "B"]
    assert ["published", "1,000/s", "2,500/s", "2.5x"] in lines
    assert ["broker", "CPU/message", "500", "us", "200", "us", "0.4x"] in lines
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "throughput: A / B" in page


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "cannot read {}: No such file or directory"),
        (b"{}", "{}: not a document of format slotmq-perf/1"),
        (b"\xff", "{}: not JSON: not UTF-8"),
    ],
)
def test_what_is_no_result_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None, problem: str
) -> None:
    """An invalid result is reported with its file name and exit code 2."""
    path = tmp_path / "x.json"
    if text is not None:
        path.write_bytes(text)
    assert main(["perf", "compare", str(path)]) == 2
    assert capsys.readouterr().err == f"slotmq: {problem.format(path)}\n"


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unwritable page is reported with exit code 2."""
    target = tmp_path / "missing" / "page.html"
    assert main(["perf", "compare", kept(tmp_path, "a.json", "A", 1000), "--plot", str(target)]) == 2
    assert capsys.readouterr().err == f"slotmq: {target}: cannot be written: No such file or directory\n"
