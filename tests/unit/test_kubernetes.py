"""The manifest for Kubernetes agrees with Kubernetes' schemas, with the image and with the broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from broker.cli.main import build_parser
from broker.cli.settings_layers import load
from broker.manage.probes import PROBES
from tests.unit.test_docker import environment, settings_with, the

MANIFEST = Path(__file__).parents[2] / "docker" / "kubernetes.yaml"
VERSIONS = ("1.29.0", kubernetes_validate.latest_version())

Document = dict[str, Any]


def documents(kind: str) -> list[Document]:
    """Return the objects of one kind."""
    return [found for found in yaml.safe_load_all(MANIFEST.read_text()) if found["kind"] == kind]


@pytest.fixture
def stateful_set() -> Document:
    """Provide the spec of the stateful set."""
    (found,) = documents("StatefulSet")
    return dict(found["spec"])


@pytest.fixture
def pod(stateful_set: Document) -> Document:
    """Provide the spec of the pods."""
    return dict(stateful_set["template"]["spec"])


@pytest.fixture
def container(pod: Document) -> Document:
    """Provide the only container."""
    (found,) = pod["containers"]
    return dict(found)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_accepts_each_object(version: str) -> None:
    """Each object is valid in an old version of Kubernetes and in the newest, without an unknown field."""
    kinds = []
    for document in yaml.safe_load_all(MANIFEST.read_text()):
        kubernetes_validate.validate(document, version, strict=True)
        kinds.append(document["kind"])
    assert kinds == ["ConfigMap", "Service", "Service", "StatefulSet"]


def test_the_settings_are_valid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, container: Document, pod: Document
) -> None:
    """The file of the config map, the variables and the secrets are settings, and the ports are theirs."""
    (config,) = documents("ConfigMap")
    (file, text), *_ = config["data"].items()
    path = tmp_path / file
    path.write_text(text)
    (tmp_path / "user").write_text("alice\n")
    (tmp_path / "password").write_text("secret\n")
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    secrets = Path(mounts["secret"]["mountPath"])
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert {Path(value).parent for value in variables.values()} == {secrets}
    moved = {name: str(tmp_path / Path(value).name) for name, value in variables.items()}
    settings_with(monkeypatch, environment() | moved)
    settings = load(path)
    assert (settings.auth.default_user, settings.auth.default_pass.get_secret_value()) == ("alice", "secret")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"amqp": settings.server.port, "http": settings.http.port, "metrics": settings.metrics.port}
    assert (settings.http.enabled, settings.metrics.enabled) == (True, True)
    assert mounts["data"]["mountPath"] == str(settings.server.data_dir) == the("VOLUME")
    assert pod["terminationGracePeriodSeconds"] * 1000 > settings.server.drain_timeout_ms
    arguments = build_parser().parse_args(container["args"])
    assert str(arguments.config) == mounts["settings"]["mountPath"]
    assert Path(mounts["settings"]["mountPath"]).name == mounts["settings"]["subPath"] == file
    assert container["args"][:1] == json.loads(the("CMD"))


def test_the_probes_are_routes(container: Document) -> None:
    """The probes ask routes that need no login, on a port that the container has."""
    probes = [container["livenessProbe"]["httpGet"], container["readinessProbe"]["httpGet"]]
    assert [probe["path"] for probe in probes] == list(PROBES)
    assert {probe["port"] for probe in probes} <= {port["name"] for port in container["ports"]}


def test_services_find_the_pods(stateful_set: Document, container: Document) -> None:
    """The services select the pods by their labels and lead to ports that these have."""
    services = {service["metadata"]["name"]: service["spec"] for service in documents("Service")}
    labels = stateful_set["template"]["metadata"]["labels"]
    names = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert stateful_set["selector"]["matchLabels"] == labels
    assert services[stateful_set["serviceName"]]["clusterIP"] == "None"
    for spec in services.values():
        assert spec["selector"] == labels
        for port in spec["ports"]:
            assert names[port["targetPort"]] == port["port"]
    annotations = stateful_set["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(names["metrics"])


def test_the_pod_needs_no_rights(pod: Document, container: Document) -> None:
    """The pod runs as the user of the image, without capabilities and on a file system that it cannot write to."""
    assert pod["securityContext"]["runAsUser"] == int(the("USER"))
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claims = documents("StatefulSet")[0]["spec"]["volumeClaimTemplates"]
    volumes = [volume["name"] for volume in pod["volumes"]] + [claim["metadata"]["name"] for claim in claims]
    assert mounted == set(volumes)
