"""The Spark image and its compose file are right: commands parse, ports are local, all services share one secret."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from broker.cli.main import build_parser
from broker.cli.pipeline import missing_packages
from broker.settings import Settings
from tests.unit.test_docker import IMAGE as BROKER_IMAGE
from tests.unit.test_docker import ROOT, compose, instructions, the
from tools.packages.image import stages

IMAGE = ROOT / "docker" / "spark.Dockerfile"
SPARK = ("master", "worker-1", "worker-2", "archive", "query")


def services() -> dict[str, Any]:
    """Return the services with the defaults of their variables."""
    found: dict[str, Any] = compose("compose.spark.yaml")["services"]
    return found


def words(service: str) -> list[str]:
    """Return the whole command line of a service."""
    found = services()[service]
    return [*found.get("entrypoint", ["slotmq"]), *found["command"]]


def test_the_package_is_built_from_the_same_files() -> None:
    """This build has the same files as the tested build of the broker's image."""
    needed, copied = ([rest for name, rest in stages(file)[0] if name == "COPY"] for file in (BROKER_IMAGE, IMAGE))
    assert copied == needed


def test_nobody_runs_as_root() -> None:
    """Master, workers and jobs run as a user who owns the lake's folder."""
    assert int(the("USER", IMAGE)) > 0
    names = [name for name, _ in instructions(IMAGE)]
    assert names.index("USER") > max(number for number, name in enumerate(names) if name in ("RUN", "COPY"))
    (made,) = [rest for name, rest in instructions(IMAGE) if name == "RUN"]
    assert f"--uid {the('USER', IMAGE)} " in made and made.endswith(f" {the('VOLUME', IMAGE)}")


def test_the_image_has_the_pipeline_on_one_python_and_an_accepted_java() -> None:
    """The extra is installed into the Python that runs it, and both stages have the same minor version."""
    text = IMAGE.read_text()
    assert '".[spark]"' in text
    assert len(set(re.findall(r"^FROM python:(\d+\.\d+)-", text, re.MULTILINE))) == 1
    assert "openjdk-17-jre-headless" in text
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    assert all((ROOT / name).exists() for names in copied for name in names.split())


def test_all_of_spark_is_one_image_with_one_secret() -> None:
    """A worker needs the same packages, or jobs fail; without the secret it is rejected."""
    found = services()
    for name in SPARK:
        assert found[name]["build"] == {"context": "..", "dockerfile": "docker/spark.Dockerfile"}
        (config,) = found[name]["configs"]
        assert (
            str(Path(config["target"]).parent)
            == dict(word.split("=", 1) for word in shlex.split(the("ENV", IMAGE)))["SPARK_CONF_DIR"]
        )
    text = yaml.safe_load((ROOT / "docker" / "compose.spark.yaml").read_text())["configs"]["spark-defaults"]["content"]
    conf = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert conf["spark.authenticate"] == "true" and conf["spark.master.rest.enabled"] == "false"
    assert conf["spark.authenticate.secret"].startswith("${SLOTMQ_SPARK_SECRET:?")


def test_it_is_reachable_from_this_machine_only() -> None:
    """Every published port is on loopback, and each only once."""
    published = [port for one in services().values() for port in one.get("ports", [])]
    assert published and all(port.startswith("127.0.0.1:") for port in published)
    assert len(set(published)) == len(published)


def test_workers_and_job_share_the_lake_and_the_masters_address() -> None:
    """Workers and the job mount one lake, and all use the address of the same master."""
    found = services()
    master = words("master")
    url = f"spark://master:{master[master.index('--port') + 1]}"
    for name in ("worker-1", "worker-2"):
        assert words(name)[-1] == url
    assert f"--master={url}" in words("archive")
    for name in ("worker-1", "worker-2", "archive", "query"):
        assert found[name]["volumes"] == [f"lake:{the('VOLUME', IMAGE)}"]


def test_the_tap_is_made_by_a_command_that_there_is() -> None:
    """The command uses the broker's volume with its control socket, and the cursor that the archive moves."""
    arguments = build_parser().parse_args(words("tap")[1:])
    assert (arguments.exchange, arguments.name, arguments.cursors) == ("amq.topic", "everything", ["archive"])
    assert services()["tap"]["volumes"] == services()["broker"]["volumes"]


@pytest.mark.skipif(bool(missing_packages()), reason='not installed: pip install ".[spark]"')
def test_the_jobs_are_commands_that_there_are() -> None:
    """The archive reads from the broker's HTTP server as the broker's user; the query reads the same lake."""
    arguments = build_parser().parse_args(words("archive")[1:])
    url = urlsplit(arguments.url)
    assert (url.username, url.password, url.hostname, url.port) == ("spark", "spark", "broker", Settings().http.port)
    assert arguments.follow and arguments.taps == ["everything"]
    query = build_parser().parse_args(words("query")[1:])
    assert query.lake == arguments.lake
