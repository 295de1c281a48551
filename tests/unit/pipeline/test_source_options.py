"""The options of the sources and the places of lakes: what is accepted, and one line for what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from broker.pipeline.faults import (
    LakeRefused,
    PipelineFault,
    SinkRefused,
    SlotGap,
    SlotMissing,
    SourceRefused,
    fault_in,
    without_worker_trace,
)
from broker.pipeline.formats import arrow_schema_of
from broker.pipeline.lake.lake import Lake
from broker.pipeline.lake.place import LakePlace
from broker.pipeline.options import local_path
from broker.pipeline.sink.rows import SinkOptions
from broker.pipeline.source.catalog import open_catalog
from broker.pipeline.source.options import SourceOptions, given_options
from broker.pipeline.source.planner import BatchLimits, Condition
from broker.pipeline.source.schema import ARROW_SCHEMA, COLUMNS


def test_without_options_all_taps_are_read_from_the_first_message_on() -> None:
    """The defaults are those of the page on the source."""
    options = SourceOptions.read({"path": "data"})
    assert (options.taps, options.queues, options.vhost) == (None, (), None)
    assert options.conditions() == []
    assert options.columns == COLUMNS
    assert (options.fail_on_gap, options.fail_on_bad_rows, options.seal_now) == (True, True, False)
    assert options.limits == BatchLimits(None, None, 1 << 30)


def test_names_are_understood_in_any_case() -> None:
    """Option names are case-insensitive, because Spark passes them in lower case."""
    options = SourceOptions.read(
        {
            "PATH": "data",
            "failongap": "False",
            "maxrowspertrigger": "5",
            "topic": "a.#",
            "from": "id:7",
            "columns": "body, ts",
        }
    )
    assert not options.fail_on_gap
    assert options.limits.rows == 5
    assert options.columns == ("body", "ts")
    assert options.conditions() == [Condition("offset", ">=", 7), Condition("routing_key", "topic", "a.#")]


@pytest.mark.parametrize(
    ("given", "taps", "queues"),
    [
        ({"tap": "a"}, ("a",), ()),
        ({"tap": "a, b*"}, ("a", "b*"), ()),
        ({"tap": '["a,b", "c"]'}, ("a,b", "c"), ()),
        ({"tap": "[ab]*"}, ("[ab]*",), ()),
        ({"queue": "late"}, (), ("late",)),
        ({"queue": "late,early"}, (), ("late", "early")),
        ({"queue": "amq.tap.news"}, ("news",), ()),
    ],
)
def test_taps_and_queues_are_told_apart(given: dict[str, str], taps: tuple[str, ...], queues: tuple[str, ...]) -> None:
    """A tap is read from its slots under any of its names; a queue by a snapshot."""
    options = SourceOptions.read({"path": "data", **given})
    assert (options.taps, options.queues) == (taps, queues)


def test_a_name_with_signs_of_a_glob_is_also_a_name() -> None:
    """A tap name may contain glob characters."""
    options = SourceOptions.read({"path": "data", "tap": "[x]"})
    assert options.selects("/", "[x]")
    assert options.selects("/", "x")
    assert not options.selects("/", "y")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"taps": "a"}, "there is no option 'taps'; did you mean tap?"),
        ({"frobnicate": "a"}, "there is no option 'frobnicate'; the options are path, url,"),
        ({"tap": "a", "queue": "b"}, "of the options tap and queue only one"),
        ({"queue": "amq.tap.a,b"}, "taps and other queues cannot be read at once"),
        ({"tap": "a,,b"}, "has an empty name in it"),
        ({"tap": "[]"}, "is not a list of names"),
        ({"from": "5"}, "option from: '5' is not a position"),
        ({"to": "earliest"}, "nothing precedes the earliest"),
        ({"failOnGap": "yes"}, "the option failOnGap should be true or false, not 'yes'"),
        ({"maxRowsPerTrigger": "0"}, "the option maxRowsPerTrigger should be a whole number from 1 on"),
        ({"columns": "body,bdoy"}, "there is no column 'bdoy'"),
        ({"columns": "body,body"}, "column 'body' is named twice"),
    ],
)
def test_what_cannot_be_understood_is_refused_in_one_line(given: dict[str, str], said: str) -> None:
    """The refusal names the option and the given value."""
    with pytest.raises(SourceRefused) as refused:
        SourceOptions.read({"path": "data", **given})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_only_listed_options_are_suggested() -> None:
    """An option that Spark itself uses is accepted, and no typing error leads to it."""
    SinkOptions.read({"url": "amqp://localhost", "checkpointLocation": "c"})
    with pytest.raises(SinkRefused, match="there is no option 'checkpointLocaton'; the options are url, exchange,"):
        SinkOptions.read({"url": "amqp://localhost", "checkpointLocaton": "c"})


@pytest.mark.parametrize("given", [{}, {"path": "data", "url": "http://localhost"}])
def test_path_or_url_is_needed(given: dict[str, str]) -> None:
    """Exactly one of path and url is required."""
    with pytest.raises(SourceRefused, match="say where the broker is"):
        SourceOptions.read(given).catalog()


@pytest.mark.parametrize("url", ["localhost:15672", "amqp://localhost", "http://:secret@", "http://host:port"])
def test_a_url_that_is_none_is_refused_without_showing_it(url: str) -> None:
    """An invalid URL is not quoted, because it may contain a password."""
    with pytest.raises(SourceRefused, match="url") as refused:
        SourceOptions.read({"url": url}).catalog()
    assert url not in str(refused.value)


def test_a_users_schema_chooses_columns_and_their_order() -> None:
    """A schema selects columns and order, like the option; the user decides whether null is allowed."""
    schema = StructType().add("body", "binary", nullable=False).add("offset", "long")
    found = arrow_schema_of(schema)
    assert found.names == ["body", "offset"]
    assert [field.nullable for field in found] == [False, True]
    with pytest.raises(SourceRefused, match="column 'offset' is of type bigint, not int"):
        arrow_schema_of(StructType().add("offset", "integer"))
    with pytest.raises(SourceRefused, match="there is no column 'payload'"):
        arrow_schema_of(StructType().add("payload", "binary"))
    assert ARROW_SCHEMA.field("priority").type.bit_width == 16  # 255 exceeds a signed byte


def test_a_fault_is_found_in_what_spark_made_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault is found by its kind and line within Spark's text, and without the worker's stack."""
    wrapped = RuntimeError(
        "[PYTHON_DATA_SOURCE_ERROR] Failed: broker.pipeline.faults.SlotMissing: slot 7 is gone\n SQLSTATE: 38000"
    )
    found = fault_in(wrapped)
    assert type(found) is SlotMissing
    assert isinstance(found, SlotGap)
    assert str(found) == "slot 7 is gone"
    assert fault_in(found) is found
    assert fault_in(ValueError("broker.pipeline.faults: nothing")) is None

    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    monkeypatch.delenv("PYTHON_WORKER_FACTORY_SECRET", raising=False)
    monkeypatch.delenv("PYTHON_WORKER_FACTORY_SOCK_PATH", raising=False)
    import os

    for secret, hidden in ((None, ""), ("x", "1")):
        if secret is not None:
            monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", secret)
        with pytest.raises(PipelineFault), without_worker_trace():
            raise SourceRefused("no")
        assert os.environ["SPARK_HIDE_TRACEBACK"] == hidden


@pytest.mark.parametrize("names", [("a",), ("a,b", " c ", "[d]*", 'e"f')])
def test_jobs_hand_names_over_whatever_is_in_them(names: tuple[str, ...]) -> None:
    """A tap named `a,b` is not the taps a and b: an archive would otherwise release the wrong slots."""
    for option in ("tap", "queue"):
        options = SourceOptions.read(given_options({"path": "data", "url": None, option: names}))
        assert (options.taps or options.queues) == names
    assert given_options({"tap": ()}) == {}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lake", "lake"),
        ("/data/lake", "/data/lake"),
        ("a:b/c", "a:b/c"),
        ("file:///data/my%20lake", "/data/my lake"),
        ("file:/data/lake", "/data/lake"),
        ("file://localhost/data", "/data"),
        (Path("file:///data/lake"), "/data/lake"),
    ],
)
def test_a_path_is_itself_and_a_file_url_its_path(name: str | Path, meant: str) -> None:
    """A path is unchanged, and a file URL gives its path, also in Spark's spelling."""
    assert local_path(name) == Path(meant)


def test_what_is_no_url_is_refused() -> None:
    """A file URL that cannot be parsed is neither a lake nor a data folder."""
    with pytest.raises(LakeRefused, match=r"^file://\[ is not a valid URL$"):
        local_path("file://[")


@pytest.mark.parametrize("name", ["s3:", "S3://", "s3a://"])
def test_a_lake_may_be_in_a_bucket(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lake may be in a bucket, as text or path, with options of the environment; a data folder may not."""
    monkeypatch.setenv("AWS_REGION", "mars-1")
    for given in (f"{name}/bucket/x/", Path(f"{name}/bucket/x")):
        place = LakePlace.of(given)
        assert (place.uri, place.folder, place.options["AWS_REGION"]) == ("s3://bucket/x", None, "mars-1")
    assert "mars" not in repr(place)
    with pytest.raises(LakeRefused, match="names no bucket"):
        LakePlace.of(f"{name}//")
    with pytest.raises(SourceRefused, match="is a URL"):
        open_catalog(f"{name}//bucket/x").view()


@pytest.mark.parametrize("name", ["gs://bucket/x", Path("gs://bucket/x"), "hdfs:/x", "file://host/x", "HTTP://h/x"])
def test_any_other_url_is_refused(name: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other URL is refused for a lake and for a data folder, and nothing is created."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LakeRefused, match="is a URL"):
        Lake(name, create=True)
    with pytest.raises(SourceRefused, match="is a URL"):
        open_catalog(str(name)).view()
    assert not list(tmp_path.iterdir())
