"""Waits until every binding of the run counts: the start point that the overlay promises, seen by a client."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from pika.adapters.blocking_connection import BlockingChannel

from demo.broker_process import BrokerFailed
from demo.entries import Entries
from demo.ledger import Address
from demo.matcher import matched
from demo.plan import EXCHANGE, QueuePlan
from demo.topology import channel_to

QUEUE = "demo.probe"
KEY = "demo.probe"
LIMIT_S = 30.0
PAUSE_S = 0.05


def await_bindings(entries: Entries, plan: Sequence[QueuePlan], homes: Sequence[Address]) -> int:
    """Return how many probes were published until the last one had reached every site.

    A site's bindings start in the order in which they were made: once a probe has reached the queue that was bound
    last, all others get what they want. Messages of a stream keep their order: after the last probe no other one
    follows, so the queues that want everything can be emptied.
    Raises: BrokerFailed after half a minute.
    """
    with ExitStack() as stack:
        publisher = stack.enter_context(channel_to(entries.publish))
        channels = {address: stack.enter_context(channel_to(address)) for address in entries.consume}
        sites = list(channels.values())
        for site in sites:
            site.queue_declare(QUEUE, exclusive=True)
            site.queue_bind(QUEUE, EXCHANGE, routing_key=KEY)
        waiting = list(sites)
        deadline_s = time.monotonic() + LIMIT_S
        probes = 0
        while waiting:
            _check(deadline_s)
            probes += 1
            publisher.basic_publish(EXCHANGE, KEY, str(probes).encode())
            time.sleep(PAUSE_S)
            waiting = [site for site in waiting if _newest(site) == 0]
        probes += 1
        publisher.basic_publish(EXCHANGE, KEY, str(probes).encode())
        for site in sites:
            while _newest(site) < probes:
                _check(deadline_s)
                time.sleep(PAUSE_S)
        for queue, home in zip(plan, homes, strict=True):
            if any(matched(queue.binding_keys, [KEY])):
                channels[home].queue_purge(queue.name)
    return probes


def _newest(site: BlockingChannel) -> int:
    """Return the number of the last probe that has arrived, 0 if none has."""
    newest = 0
    while True:
        method, _, body = site.basic_get(QUEUE, auto_ack=True)
        if method is None or body is None:
            return newest
        newest = int(body)


def _check(deadline_s: float) -> None:
    if time.monotonic() > deadline_s:
        raise BrokerFailed(f"a probe had not reached every site after {LIMIT_S:.0f} s")
