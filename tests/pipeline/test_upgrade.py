"""A lake of an older version: this version continues archiving after its last rows."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest
from pyspark.sql import SparkSession

from broker.pipeline.lake.lake import Lake
from tests.broker_process import BrokerProcess
from tests.delta_log import messages_of
from tests.pipeline.test_archive import archive, ids
from tests.upgrade.contents import SMALL
from tests.upgrade.recordings import CLEAN, FORMATS, unpack

ARCHIVED = 6  # the id of the one message that no reader had passed


@pytest.mark.parametrize("recorded", FORMATS)
def test_an_archive_goes_on(recorded: str, spark: SparkSession, tmp_path: Path) -> None:
    """The older version's rows are there once, and so are those that the upgraded broker seals afterwards."""
    lake = unpack(recorded, "lake", tmp_path / "lake")
    assert messages_of(lake) == [ARCHIVED]
    broker = BrokerProcess(unpack(recorded, CLEAN, tmp_path / "data"), environment=SMALL).start()
    try:
        with pika.BlockingConnection(pika.URLParameters(broker.address.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("amq.topic", "heard.later", b"by the new version")
        assert archive(spark, lake, path=str(broker.folder)).values["rows"] == 1
    finally:
        broker.kill()
    messages = Lake(lake).messages(spark)
    assert ids(messages) == [ARCHIVED, ARCHIVED + 1]
    bodies = [bytes(row.body).decode() for row in messages.orderBy("offset").collect()]
    assert bodies == ["behind the cursor", "by the new version"]
