"""The compose file with Prometheus and Grafana is right: what it mounts is there, every metric that it reads exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manage.metrics_scene import samples
from tests.manage.test_metrics import measured_broker, scraped
from tests.manage.test_own_metrics import SHOWN_IN_CLUSTER, SHOWN_IN_OVERLAY, SHOWN_WITH_TAPS
from tests.unit.test_docker import ROOT

DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.metrics.yaml").read_text())
DASHBOARD: dict[str, Any] = json.loads((DOCKER / "grafana/dashboards/slotmq.json").read_text())
PROMETHEUS: dict[str, Any] = yaml.safe_load((DOCKER / "prometheus/prometheus.yaml").read_text())
RULES: dict[str, Any] = yaml.safe_load((DOCKER / "prometheus/rules.yaml").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
NAME = re.compile(r"\b(?:rabbitmq|slotmq)_\w+")


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard that show something."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """Return what the dashboard, the rules and the page ask Prometheus for."""
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    asked += [rule["expr"] for rule in ALERTS]
    return [*asked, *re.findall(r"expr: (.+)", (ROOT / "docs/metrics.md").read_text())]


def test_what_is_mounted_is_there() -> None:
    """Each file and folder exists; the dashboard is where Grafana looks for it, and the rules where Prometheus does."""
    services = COMPOSE["services"]
    mounted: dict[str, Path] = {}
    for service in services.values():
        for volume in service["volumes"]:
            source, target, *_mode = volume.split(":")
            if source.startswith("."):
                mounted[target] = DOCKER / source
            else:
                assert source in COMPOSE["volumes"]
    assert all(path.is_dir() for path in mounted.values())
    assert all((mounted["/etc/prometheus"] / name).is_file() for name in PROMETHEUS["rule_files"])
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (mounted[str(home.parent)] / home.name).is_file()
    provider = yaml.safe_load((mounted["/etc/grafana/provisioning"] / "dashboards/slotmq.yaml").read_text())
    assert [one["options"]["path"] for one in provider["providers"]] == [str(home.parent)]


def test_everything_is_reachable_from_this_machine_only() -> None:
    """Grafana lets viewers in without a login, and Prometheus has none."""
    ports = [port for service in COMPOSE["services"].values() for port in service["ports"]]
    assert ports == ["127.0.0.1:9090:9090", "127.0.0.1:3000:3000"]


def test_prometheus_asks_the_broker_and_grafana_asks_prometheus() -> None:
    """The names are those of services, the ports those of the image."""
    (included,) = COMPOSE["include"]
    broker = yaml.safe_load((DOCKER / included).read_text())["services"]["broker"]
    assert broker["build"] == ".."
    targets = {
        target for job in PROMETHEUS["scrape_configs"] for one in job["static_configs"] for target in one["targets"]
    }
    assert targets == {"broker:15692"}
    (source,) = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (chosen,) = [one for one in DASHBOARD["templating"]["list"] if one["type"] == "datasource"]
    assert chosen["current"]["value"] == source["uid"]


def test_the_panels_do_not_overlap() -> None:
    """Each panel has an id and a place of its own, within the width of a dashboard."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


async def test_every_metric_that_is_read_exists(tmp_path: Path) -> None:
    """The dashboard, the alerts and the page name metrics that a scrape has; labels in `by` are labels of theirs."""
    jobs = [job for job in PROMETHEUS["scrape_configs"] if "params" in job]
    families = "&".join(f"family={name}" for job in jobs for name in job["params"]["family"])
    async with measured_broker(tmp_path) as broker:
        broker.vhosts["/"].queues.declare("q")
        found = samples(await scraped(broker)) | samples(await scraped(broker, f"{jobs[0]['metrics_path']}?{families}"))
    known = set(found) | SHOWN_WITH_TAPS | SHOWN_IN_CLUSTER | SHOWN_IN_OVERLAY
    asked = expressions()
    assert len(asked) > 60
    for expression in asked:
        named = set(NAME.findall(expression))
        assert named, expression
        assert named <= known, expression
        assert expression.count("(") == expression.count(")"), expression


@pytest.mark.parametrize(
    "rule", [rule for group in RULES["groups"] for rule in group["rules"]], ids=lambda one: one["alert"]
)
def test_an_alert_says_what_is_wrong(rule: dict[str, Any]) -> None:
    """Each has a summary with the labels that its expression keeps, and waits before it is raised."""
    assert rule["for"]
    assert "{{ $labels." in rule["annotations"]["summary"]
