"""URLs in place of a folder: refused, never taken as a folder named `s3:`."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.pipeline.faults import LakeRefused, SourceRefused
from broker.pipeline.lake.lake import Lake
from broker.pipeline.lake.place import LakePlace
from broker.pipeline.options import local_path
from broker.pipeline.source.catalog import open_catalog


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
