"""The options that scenarios share, the quantities in them (30s, 1KiB, 10k, 1%), and the load that they describe.

Options that PerfTest also has keep PerfTest's names and letters. `add_scenario` creates a scenario's parser with the
options that every scenario has: broker, interval and output. Most scenarios with messages also call `add_load`.
"""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from broker.perf.faults import BadOptions
from broker.perf.machine import ProcessTree, cores
from broker.perf.parts import Load
from broker.perf.peer import AMQP_PORTS, CREDENTIALS, Address
from broker.perf.receiver import ReceiverPace
from broker.perf.spool import STAMP_BYTES, Material

T = TypeVar("T", int, float)

_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z%]*)")
_SECONDS: Final = {"": 1.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES: Final = {
    "": 1, "b": 1, "k": 1000, "kb": 1000, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
}  # fmt: skip
_MULTIPLES: Final = {"": 1, "k": 1000, "m": 10**6}
_QUANTITY_MAX: Final = 10**15
DEFAULT_URI: Final = "amqp://guest:guest@127.0.0.1:5672"
PROCESSES_MAX: Final = 4
_DEFAULT_S: Final = 10.0
_LIMITS: Final = ("pmessages", "cmessages", "cycles")  # options that end a run without --time


def argument(text: str) -> tuple[str, str | int | bool]:
    """Return the name and value of K=V; up to 18 digits become an integer, `true` and `false` a bool."""
    name, equals, value = text.partition("=")
    if not equals or not name or len(name.encode()) > 255:
        raise ArgumentTypeError(f"{text!r} is not K=V")
    if re.fullmatch(r"-?[0-9]{1,18}", value):
        return name, int(value)
    return name, {"true": True, "false": False}.get(value, value)


def within(kind: Callable[[str], T], least: float, most: float, problem: str) -> Callable[[str], T]:
    """Return a parser that accepts values from `least` to `most`; `problem` describes any other value."""

    def parse(text: str) -> T:
        value = kind(text)
        if not least <= value <= most:
            raise ArgumentTypeError(f"{text!r} is {problem}")
        return value

    return parse


def at_most(kind: Callable[[str], int], most: int, limit: str) -> Callable[[str], int]:
    """Return a parser of numbers up to `most`; `limit` completes "the most that ..." in the error."""
    return within(kind, 0, most, f"more than {most}, the most that {limit}")


def _scaled(units: Mapping[str, float], expected: str, text: str) -> float:
    found = _QUANTITY.fullmatch(text.strip())
    unit = units.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ArgumentTypeError(f"{text!r} is not {expected}")
    value = float(found[1]) * unit
    if value > _QUANTITY_MAX:
        raise ArgumentTypeError(f"{text!r} is too much")
    return value


def _whole(units: Mapping[str, float], expected: str, least: int, text: str) -> int:
    value = _scaled(units, expected, text)
    if value < least or value != int(value):
        raise ArgumentTypeError(f"{text!r} is not {expected}")
    return int(value)


duration: Final = partial(_scaled, _SECONDS, "a time such as 30s, 500ms or 5m")
size: Final = partial(_whole, _BYTES, "a size such as 16, 1KiB or 64kB", 0)
count: Final = partial(_whole, _MULTIPLES, "a number such as 1000 or 10k, at least 1", 1)
count_or_none: Final = partial(_whole, _MULTIPLES, "a number such as 0, 1000 or 10k", 0)
_rate: Final = partial(_scaled, _MULTIPLES, "a rate per second such as 0.5, 1000 or 10k")
rate: Final = within(_rate, 1e-6, _QUANTITY_MAX, "not a rate: leave it out for as fast as possible")
share: Final = within(partial(_scaled, {"": 1.0, "%": 0.01}, "a share such as 1% or 0.01"), 0, 1, "more than all")
heartbeat: Final = at_most(partial(_whole, _SECONDS, "whole seconds up to 65535", 0), 0xFFFF, "AMQP allows")
_interval: Final = within(duration, 0.05, 3600, "not between 50ms and 1h")


def add(
    group: argparse._ActionsContainer,
    names: str,
    metavar: str,
    kind: Callable[[str], Any],
    text: str,
    value: Any = None,
    dest: str = "",
) -> None:
    """Add an option with one value. Its attribute is `dest`, or else the last long name in `names`."""
    attribute, shown = dest or names.rpartition("--")[2].replace("-", "_"), ", default %(default)s" if value else ""
    group.add_argument(*names.split(), dest=attribute, metavar=metavar, type=kind, default=value, help=text + shown)


def add_switch(group: argparse._ActionsContainer, names: str, text: str) -> None:
    """Add an option that takes no value."""
    group.add_argument(*names.split(), action="store_true", help=text)


def add_scenario(
    commands: Any,
    name: str,
    summary: str,
    default_uri: str = DEFAULT_URI,
    ports: Mapping[str, int] = AMQP_PORTS,
) -> argparse.ArgumentParser:
    """Add a scenario's parser with the options that every scenario has, and return it.

    Shapes: the parsed options have `scenario` (its name), `uri` (an Address), `pid` (a ProcessTree or None), `interval`
    (seconds), `json` (None, "-" or a file name), `plot` and `quiet`; `ports` maps the plain and TLS scheme to ports.
    """
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary, allow_abbrev=False, add_help=False
    )
    made.set_defaults(scenario=name)
    broker = made.add_argument_group("broker")
    plain, secure = ports
    uri = f"{plain}://, or {secure}:// with ?cacertfile=FILE or ?verify=verify_none"
    add(broker, "-h --uri", "URL", partial(_address, ports=ports), uri, default_uri)
    add(broker, "--pid", "PID", _processes, "the broker's process on this machine, for CPU time and memory")
    output = made.add_argument_group("output")
    add(output, "-i --interval", "T", _interval, "interval of progress lines", "1s")
    document = "write the result as JSON to FILE, or print it instead of the table"
    output.add_argument("-j", "--json", metavar="FILE", nargs="?", const="-", help=document)
    add(output, "--plot", "FILE", Path, "draw the result as one HTML page")
    add_switch(output, "--quiet", "show no progress")
    output.add_argument("-?", "--help", action="help", help="show this and exit")
    return made


def add_time(group: argparse._ActionsContainer) -> None:
    """Add the option for the duration of a run; 0 means until Ctrl-C."""
    add(group, "-z --time", "T", duration, f"stop after T (default {_DEFAULT_S:g}s; 0: at Ctrl-C)")


def add_flow(group: argparse._ActionsContainer, consumer: str = "consumer") -> None:
    """Add the options for message counts, rates, processes and unsent bytes of publishers and consumers."""
    add(group, "-C --pmessages", "N", count, "publish N messages in total")
    add(group, "-D --cmessages", "N", count, "consume N messages in total")
    add(group, "-r --rate", "R", rate, "messages per second and publisher")
    add(group, "-R --consumer-rate", "R", rate, f"messages per second and {consumer}")
    processes = "number of processes for publishers, and for consumers (default one per core, at most 4)"
    add(group, "--processes", "N", count, processes)
    unsent = "limit of what a publisher sends with one time stamp, and may have unsent in its kernel"
    add(group, "--unsent", "SIZE", size, f"{unsent} (default: the kernel's)", 0)


def add_load(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options for publishing and consuming, and return their group."""
    load = parser.add_argument_group("load")
    add(load, "-x --publishers --producers", "N", count_or_none, "number of publishers", 1)
    add(load, "-y --consumers", "N", count_or_none, "number of consumers", 1)
    add(load, "-s --size", "SIZE", size, "size of a body in bytes", STAMP_BYTES)
    add(load, "-c --confirm", "N", count_or_none, "use confirms, with at most N unconfirmed messages", 0)
    add_flow(load)
    prefetch = at_most(count_or_none, 0xFFFF, "AMQP allows")
    add(load, "-q --qos -P --prefetch", "N", prefetch, "unacked messages per consumer (default no limit)", 0)
    add_switch(load, "-a --autoack", "consume without acks")
    add(load, "-A --multi-ack-every --ack", "N", count, "one ack for N messages", 1, "ack_every")
    flag = load.add_argument("-f", "--flag", dest="flags", metavar="FLAG", action="append", default=[])
    flag.choices, flag.help = ("persistent", "mandatory"), "persistent or mandatory; can be repeated"
    load.add_argument("--persistent", dest="flags", action="append_const", const="persistent", help="as -f persistent")
    arguments = "an argument of the queues; can be repeated"
    load.add_argument("--queue-args", metavar="K=V", type=argument, action="append", default=[], help=arguments)
    add_switch(load, "--ceiling", "first measure how fast the generator is without a broker")
    return load


def load_of(
    options: argparse.Namespace,
    material: Material,
    queues: Sequence[str],
    *,
    copies: int | None = None,
    demand: ReceiverPace | None = None,
) -> Load:
    """Return the load that the options describe; `demand` replaces the consumers' pace. Raises: BadOptions."""
    return Load(
        address=options.uri,
        material=material,
        producers=options.producers,
        queues=spread(queues, options.consumers),
        demand=demand or _demand(options),
        window=options.confirm,
        messages=options.pmessages,
        per_s=options.rate,
        prefetch=options.prefetch,
        deliveries=options.cmessages,
        seconds=seconds_of(options),
        interval_s=options.interval,
        copies=copies,
        processes=processes_of(options),
        unsent_bytes=options.unsent,
    )


def material_of(options: argparse.Namespace, exchange: str, keys: Sequence[str], *, renewed: bool = False) -> Material:
    """Return the messages that the options of `add_load` describe."""
    persistent, mandatory = "persistent" in options.flags, "mandatory" in options.flags
    return Material(exchange, tuple(keys), options.size, persistent, mandatory, renewed)


def spread(queues: Sequence[str], consumers: int) -> tuple[tuple[str, ...], ...]:
    """Return the queues of each consumer: one each in rotation, or several if there are more queues than consumers."""
    if consumers >= len(queues):
        return tuple((queues[number % len(queues)],) for number in range(consumers)) if queues else ()
    return tuple(tuple(queues[number::consumers]) for number in range(consumers))


def seconds_of(options: argparse.Namespace) -> float | None:
    """Return the duration of a run, or None for no limit; the default applies unless -C or -D ends the run."""
    if getattr(options, "time", None) is not None:
        return options.time or None
    return None if any(getattr(options, name, None) for name in _LIMITS) else _DEFAULT_S


def processes_of(options: argparse.Namespace) -> int:
    """Return the maximum number of publishing processes, and of consuming processes."""
    return options.processes or min(PROCESSES_MAX, cores())


def _demand(options: argparse.Namespace) -> ReceiverPace:
    """Return how consumers receive and ack. Raises: BadOptions."""
    if options.autoack and options.ack_every > 1:
        raise BadOptions("--autoack and --multi-ack-every do not go together")
    if not options.autoack and 0 < options.prefetch < options.ack_every:
        raise BadOptions(f"--multi-ack-every {options.ack_every} is never reached with --qos {options.prefetch}")
    return ReceiverPace(0 if options.autoack else options.ack_every, options.size, options.consumer_rate)


def check_sides(options: argparse.Namespace, both: str = "") -> None:
    """Check that the options include the publishers or consumers that the run needs.

    Shapes: `both` is the error text if the scenario needs both sides, "" if it does not.
    Raises: BadOptions.
    """
    needed = {
        "-x 0 -y 0 leaves nothing to do": options.producers or options.consumers,
        "--pmessages needs a publisher": options.producers or not options.pmessages,
        "--cmessages needs a consumer": options.consumers or not options.cmessages,
        "--confirm needs a publisher": options.producers or not options.confirm,
        both: (options.producers and options.consumers) or not both,
    }
    for problem, fulfilled in needed.items():
        if not fulfilled:
            raise BadOptions(problem)


def masked(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with the credentials in URLs masked."""
    return [CREDENTIALS.sub("//***@", word) for word in words]


def _address(text: str, ports: Mapping[str, int]) -> Address:
    try:
        return Address.parse(text, ports)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _processes(text: str) -> ProcessTree:
    found = ProcessTree(count(text))
    if not found.usage().rss_bytes:
        raise ArgumentTypeError(f"{text}: no such process on this machine (this needs Linux)")
    return found
