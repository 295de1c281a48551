"""Runs `slotmq perf` against a broker, as its users do, and returns its document."""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.parse import quote, urlencode

from bench.brokers import PROJECT, Broker
from bench.light import Companion
from bench.meter import Meter
from bench.run import Figures
from bench.stage import NotOffered
from broker.perf.faults import BadDocument, RunFailed
from broker.perf.peer import Address
from broker.perf.result import Result


def perf(broker: Broker, scenario: str, *flags: str, limit_s: float) -> tuple[Result, Figures]:
    """Return the result of a scenario, and what the broker used; its reads and writes include those for the topology.

    Raises: RunFailed when the tool fails, or when it reports a failed run; NotOffered by a broker without MQTT.
    """
    place = url(broker.address)
    if scenario == "mqtt":
        if not broker.mqtt:
            raise NotOffered
        place = f"mqtt://guest:guest@{broker.mqtt.host}:{broker.mqtt.port}"
    command = [sys.executable, "-m", "broker", "perf", scenario, "--uri", place, "--json", "--quiet"]
    if broker.processes:
        command += ["--pid", str(broker.processes.root)]
    meter = Meter(broker)
    meter.start()
    with Companion(broker):
        try:
            done = subprocess.run(
                [*command, *flags],
                env={**os.environ, "PYTHONPATH": str(PROJECT)},
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RunFailed(f"slotmq perf {scenario} took longer than {limit_s:.0f} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise RunFailed(said[-1] if said else f"slotmq perf {scenario} ended with {done.returncode}")
    try:
        result = Result.from_json(done.stdout)
    except BadDocument as error:
        raise RunFailed(f"slotmq perf {scenario}: {error}") from None
    if result.failures:
        raise RunFailed(result.failures[0])
    process = result.process
    used = meter.stop(max(1, result.totals.delivered, result.totals.published))
    if not process or not used:
        return result, {}
    del used["cpu_us"], used["rss_growth_bytes"]  # the run counts the messages, and knows where it begins
    used |= {"cpu_s": process.cpu_s, "rss_bytes": process.rss_bytes, "peak_rss_bytes": process.peak_rss_bytes}
    return result, used | ({"cpu_us": process.cpu_us_per_message} if process.cpu_us_per_message is not None else {})


def url(address: Address) -> str:
    """Return the URL of an address."""
    user, password, vhost = (quote(part, safe="") for part in (address.user, address.password, address.vhost))
    host = f"[{address.host}]" if ":" in address.host else address.host
    scheme = "amqps" if address.tls else "amqp"
    trust = {"cacertfile": address.ca_file} if address.ca_file else {}
    if not address.verify:
        trust["verify"] = "verify_none"
    query = f"?{urlencode(trust)}" if trust else ""
    return f"{scheme}://{user}:{password}@{host}:{address.port}/{vhost}{query}"
