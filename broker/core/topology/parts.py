"""The parts of a vhost that its exchanges, queues and bindings share."""

from __future__ import annotations

from dataclasses import dataclass

from broker.core.names import Resource
from broker.core.policy.policy import Policies
from broker.core.policy.policy_sweep import PolicySweep
from broker.core.topology.changes import Journal
from broker.core.topology.live_bindings import LiveBindings
from broker.core.vhost_limits import VhostLimits


@dataclass(slots=True)
class TopologyParts:
    """The shared parts, and the vhost's name for the texts of errors."""

    vhost_name: str
    live: LiveBindings
    policies: Policies
    sweep: PolicySweep
    journal: Journal
    limits: VhostLimits

    def exchange(self, name: str) -> Resource:
        return Resource("exchange", self.vhost_name, name)

    def queue(self, name: str) -> Resource:
        return Resource("queue", self.vhost_name, name)
