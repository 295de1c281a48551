"""The settings of a Spark session, without a session."""

from __future__ import annotations

import os

import pytest

from broker.pipeline.faults import USAGE, JobFailed
from broker.pipeline.spark import session as spark_session
from broker.pipeline.spark.session import local_cores, settings


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[*]", 8), ("local[3]", 3), ("local[2,4]", 2), ("local[*,4]", 8)]
)
def test_the_cores_of_a_local_master(master: str, cores: int) -> None:
    """The number of cores is that of the master, or the machine's."""
    assert local_cores(master, 8) == cores


def test_a_local_session_stays_on_loopback() -> None:
    """A local driver listens on loopback only."""
    made = settings("local[3]", "app", {}, 8)
    assert made["spark.driver.host"] == made["spark.driver.bindAddress"] == "127.0.0.1"
    assert made["spark.sql.shuffle.partitions"] == "6"
    assert made["spark.ui.enabled"] == "false"


def test_a_cluster_session_names_no_loopback() -> None:
    """Remote executors must reach the driver, and the cluster decides about shuffle partitions."""
    made = settings("spark://host:7077", "app", {}, 8)
    assert "spark.driver.host" not in made
    assert "spark.sql.shuffle.partitions" not in made


def test_the_users_settings_win() -> None:
    """The user's settings override all settings of the pipeline."""
    made = settings("local", "app", {"spark.ui.enabled": "true", "spark.master": "local[9]"}, 8)
    assert made["spark.ui.enabled"] == "true"
    assert made["spark.master"] == "local[9]"


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables for Spark's start are removed or restored afterwards, also after a failure."""
    monkeypatch.setenv("SLOTMQ_TEST_KEPT", "before")
    monkeypatch.delenv("SLOTMQ_TEST_NEW", raising=False)
    seen = []

    def start() -> None:
        with spark_session.environment({"SLOTMQ_TEST_KEPT": "now", "SLOTMQ_TEST_NEW": "now"}):
            seen.append((os.environ["SLOTMQ_TEST_KEPT"], os.environ["SLOTMQ_TEST_NEW"]))
            raise ValueError("start")

    with pytest.raises(ValueError, match="start"):
        start()
    assert seen == [("now", "now")]
    assert os.environ["SLOTMQ_TEST_KEPT"] == "before"
    assert "SLOTMQ_TEST_NEW" not in os.environ


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session without PySpark is wrong usage, and the text is the remedy."""
    monkeypatch.setattr(spark_session, "find_spec", lambda _: None)
    with pytest.raises(JobFailed, match=r'pip install "\.\[spark\]"') as raised:
        spark_session.session()
    assert raised.value.code == USAGE
