"""A driver process that archives data folders into lakes, one after the other, and prints its resource use.

python cluster_driver.py MASTER DATA LAKE [DATA LAKE ...]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.pipeline import session
from broker.pipeline.job import Progress
from broker.pipeline.jobs.archive import ArchiveOptions, run_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONF: Final = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # start no task before both executors
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    "spark.sql.shuffle.partitions": "2",
}
BATCH_BYTES: Final = 24 << 20


def main(master: str, *places: str) -> None:
    """Print a line of JSON for each data folder."""
    spark = session(master=master, conf=CONF, app="slotmq-cluster-test")
    for data, lake in zip(places[::2], places[1::2], strict=True):
        options = ArchiveOptions(lambda: spark, Path(lake), path=data, seal=False, batch_bytes=BATCH_BYTES)
        summary = run_archive(options, Progress("archive", quiet=True))
        print(json.dumps({**summary.values, "code": summary.code, **figures(spark)}), flush=True)
    spark.stop()


def figures(spark: SparkSession) -> dict[str, Any]:
    """Return the driver's memory, its JVM's heap after a collection, and each executor's number of tasks."""
    context: Any = spark.sparkContext
    runtime = context._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    executors = context._jsc.sc().statusStore().executorList(True)
    found = [executors.apply(number) for number in range(executors.size())]
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {
        "heap_bytes": runtime.totalMemory() - runtime.freeMemory(),
        "rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "tasks": {str(each.id()): int(each.completedTasks()) for each in found if each.id() != "driver"},
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
