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
        self.writers: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def write(self, text: str) -> int:
        """Write, block or refuse."""
        self.gate.wait()
        if self.refuses:
            raise BrokenPipeError
        self.writers.append(threading.current_thread().name)
        return super().write(text)


class Pipe(io.TextIOWrapper):
    """The writing end of a pipe; it notes the threads that write."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(os.fdopen(descriptor, "wb"))
        self.writers: list[str] = []

    def write(self, text: str) -> int:
        """Write."""
        self.writers.append(threading.current_thread().name)
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


def test_a_line_that_a_pipe_has_room_for_needs_no_thread() -> None:
    """The caller writes it at once; a line that a pipe might take in part is left to the thread."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with Pipe(writing) as stream:
        writer = LogWriter(stream)
        writer.write("short\n")
        assert os.read(reading, 100) == b"short\n"
        writer.write("x" * 5000 + "\n")
        assert writer.close()
        assert stream.writers == [threading.current_thread().name, "log-writer"]
    os.close(reading)


def test_a_line_follows_those_that_the_thread_has_yet_to_write() -> None:
    """While the thread writes, a line is queued behind, even if the stream takes it by now."""
    stream = Fragile()
    writer = LogWriter(stream)
    stream.gate.clear()
    writer.write("first\n")
    while writer._lines:  # the thread takes it, and waits for the gate
        threading.Event().wait(0.001)
    writer._is_writable = lambda: True
    writer.write("second\n")
    assert stream.getvalue() == ""
    stream.gate.set()
    writer.close()
    assert stream.getvalue() == "first\nsecond\n"
    assert stream.writers == ["log-writer", "log-writer"]


def test_a_reader_that_does_not_read_blocks_nobody() -> None:
    """With a full pipe, logging continues in a bounded buffer, and further lines are dropped and counted."""
    reading, writing = os.pipe()
    stream, reader = os.fdopen(writing, "w"), os.fdopen(reading, "rb")
    writer = LogWriter(stream)
    for number in range(3 * WAITING_MAX):
        writer.write(f"{number:0100}\n")
    assert writer.lost > WAITING_MAX // 2
    got: list[bytes] = []
    drain = threading.Thread(target=lambda: got.append(reader.read()))
    drain.start()
    writer.close()
    stream.close()
    drain.join()
    reader.close()
    lines = [line for line in got[0].decode().splitlines() if line.isdecimal()]
    assert lines == sorted(lines)
    assert len(lines) + writer.lost == 3 * WAITING_MAX


def test_a_stream_closed_before_the_start_is_no_terminal() -> None:
    """A closed stream is checked once, and writes to it are only counted."""
    stream = io.StringIO()
    stream.close()
    writer = LogWriter(stream)
    assert not writer.isatty()
    writer.write("nobody\n")
    writer.close()
    assert writer.lost == 1
