"""Log lines that cannot be written neither block nor raise, and the number of lost lines is logged."""

from __future__ import annotations

import io
import json
import os
import threading

from broker.log_writer import WAITING_MAX, LogWriter


class Fragile(io.StringIO):
    """A stream that refuses or blocks when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False
        self.gate = threading.Event()
        self.gate.set()

    def write(self, text: str) -> int:
        """Write, block or refuse."""
        self.gate.wait()
        if self.refuses:
            raise BrokenPipeError
        return super().write(text)


def test_lines_are_written_in_order() -> None:
    """Every line is written, in call order, before close returns."""
    stream = Fragile()
    writer = LogWriter(stream)
    for number in range(100):
        writer.write(f"{number}\n")
    writer.close()
    assert stream.getvalue().split() == [str(number) for number in range(100)]
    assert writer.lost == 0


def test_a_reader_that_went_away_is_survived_and_the_loss_is_told() -> None:
    """Lost lines are counted, and the next successful line carries the count."""
    stream = Fragile()
    writer = LogWriter(stream)
    stream.refuses = True
    for _ in range(3):
        writer.write("lost\n")
    while writer.lost < 3:
        threading.Event().wait(0.001)
    stream.refuses = False
    writer.write("back\n")
    writer.close()
    line, told = stream.getvalue().splitlines()
    assert line == "back"
    assert json.loads(told) == {"event": "log.lost", "level": "warning", "lines": 3}


def test_a_reader_that_does_not_read_blocks_nobody() -> None:
    """With a full pipe, logging continues in a bounded buffer, and further lines are dropped and counted."""
    reading, writing = os.pipe()
    stream, reader = os.fdopen(writing, "w"), os.fdopen(reading, "rb")
    writer = LogWriter(stream)
    line = "x" * 100 + "\n"
    for _ in range(3 * WAITING_MAX):
        writer.write(line)
    assert writer.lost > WAITING_MAX // 2
    got: list[bytes] = []
    drain = threading.Thread(target=lambda: got.append(reader.read()))
    drain.start()
    writer.close()
    stream.close()
    drain.join()
    reader.close()
    whole, told = got[0].decode().splitlines().count("x" * 100), writer.lost
    assert whole + told == 3 * WAITING_MAX


def test_a_stream_closed_before_the_start_is_no_terminal() -> None:
    """A closed stream is checked once, and writes to it are only counted."""
    stream = io.StringIO()
    stream.close()
    writer = LogWriter(stream)
    assert not writer.isatty()
    writer.write("nobody\n")
    writer.close()
    assert writer.lost == 1
