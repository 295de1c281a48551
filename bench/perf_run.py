"""Runs `slotmq perf` against a broker, as its users do, and returns its result."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from bench.brokers import PROJECT, Broker, run_slotmq
from bench.light import companion
from bench.meter import Meter
from bench.run import Figures
from bench.stage import NotOffered
from broker.perf.faults import BadDocument, RunFailed
from broker.perf.peer import Address
from broker.perf.result import Result


def perf(broker: Broker, scenario: str, *flags: str, limit_s: float) -> tuple[Result, Figures]:
    """Return a scenario's result, and the broker's use of resources; reads and writes include those for the topology.

    Raises: RunFailed when the tool fails, or when it reports a failed run; NotOffered by a broker without MQTT.
    """
    place = url(broker.address)
    if scenario == "mqtt":
        if not broker.mqtt:
            raise NotOffered
        place = f"mqtt://guest:guest@{broker.mqtt.host}:{broker.mqtt.port}"
    words = ["perf", scenario, "--uri", place, "--json", "--quiet", *flags]
    if broker.processes:
        words += ["--pid", str(broker.processes.root)]
    meter = Meter(broker)
    meter.start()
    with companion(broker):
        printed = run_slotmq(PROJECT, *words, limit_s=limit_s)
    try:
        result = Result.from_json(printed)
    except BadDocument as error:
        raise RunFailed(f"slotmq perf {scenario}: {error}") from None
    if result.failures:
        raise RunFailed(result.failures[0])
    process = result.process
    used = meter.stop(max(1, result.totals.delivered, result.totals.published))
    if not process or not used:
        return result, {}
    del used["cpu_us"], used["rss_growth_bytes"]  # they would include the setup; the result has its own figures
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
