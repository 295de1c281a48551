"""A Spark session that all tests here share: it costs ten CPU seconds and most of a gigabyte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.cli.pipeline import missing_packages
from tests.spark_extra import pytest_make_collect_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["pytest_make_collect_report"]

HERE = Path(__file__).parent
TIMEOUT_S = 240  # of any test, because the first one starts the session

TEST_CONF = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test a timeout that includes the start of the session."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Provide a session on two local cores, with the formats of the pipeline."""
    if missing_packages():
        pytest.skip(f'{", ".join(missing_packages())} not installed: pip install ".[spark]"')
    from broker.pipeline import session
    from broker.pipeline.spark.java import NoJava

    folder = tmp_path_factory.mktemp("spark")
    conf = {**TEST_CONF, "spark.local.dir": str(folder / "local"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # for the JVM's log
            made = session(master="local[2]", conf=conf, app="slotmq-tests")
    except NoJava as error:
        pytest.skip(str(error).partition("\n")[0])
    yield made
    made.stop()
