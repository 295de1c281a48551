"""Defects of a node: its database calls, its lease, and its view of the other nodes."""

from __future__ import annotations

from typing import Final

from tests.cluster.defect import Defect, defects

DATABASE: Final = "broker/cluster/database.py"
NODE: Final = "broker/cluster/node.py"
DEMAND: Final = "broker/cluster/demand.py"
OTHERS: Final = "broker/cluster/other_nodes.py"
OF_DATABASE: Final = ("tests/cluster/test_database.py",)
OF_NODE: Final = ("tests/cluster/test_membership.py",)
OF_RETURNS: Final = ("tests/cluster/test_data_path_returns.py",)
OF_ORDER: Final = ("tests/unit/cluster/test_demand.py", "tests/cluster/test_sql_order.py")

NODE_DEFECTS: Final = (
    *defects(
        DATABASE,
        OF_DATABASE,
        (
            "a call that is sent again as another one",
            "            self._sent = sequence\n",
            "            sequence += 0 if self._sent is None else 1\n            self._sent = sequence\n",
        ),
        (
            "a lease whose answer was lost is never noticed",
            "            await self._reconcile(connections, self.epoch)\n",
            "            pass\n",
        ),
        ("statements of the lost connections run on", "        await connections.end_backends(backends)\n", ""),
        (
            "held rows are compared before the result of the call in flight is known",
            """        while self._sent is not None and not connections.is_broken:
            await self.link.change()
""",
            "",
        ),
        (
            "new calls go before held rows were compared",
            "self.link.ready(early=self._sent is not None)",
            "self.link.ready(early=True)",
        ),
        ("an answer that no standby confirmed", 'warning = connections.warning("call")', 'warning = ""'),
        (
            "a database that went back in time is not noticed",
            "newest = MISSING if is_older else self._newest_synchronous if epoch else None",
            "newest = MISSING if is_older else None",
        ),
    ),
    Defect(
        "a call that is cancelled with its caller",
        "broker/tasks.py",
        "try:\n            return await asyncio.shield(task)\n        finally:",
        "try:\n            return await task\n        finally:",
        OF_DATABASE,
    ),
    Defect(
        "a node that goes on in an old generation",
        NODE,
        "if pulse.generation != self.database.generation:",
        "if False:",
        OF_DATABASE,
    ),
    Defect(
        "a hint that PostgreSQL refuses for its length",
        "broker/cluster/hint.py",
        "PAYLOAD_BYTES_MAX: Final = 7999",
        "PAYLOAD_BYTES_MAX: Final = 8200",
        OF_DATABASE,
    ),
    Defect(
        "a password in a log line",
        "broker/cluster/server_address.py",
        r'return re.sub(_LOGIN, r"\1@", head)',
        "return head",
        ("tests/unit/cluster/test_connections.py",),
    ),
    *defects(
        NODE,
        OF_NODE,
        (
            "a zombie that acts",
            "return self._is_caught_up and self._tenure.may_act(self._clock())",
            "return self._is_caught_up",
        ),
        (
            "a lease that counts from the answer of a beat",
            "                self._extend_lease(sent_s, now_s)\n",
            "                self._extend_lease(now_s, now_s)\n",
        ),
        (
            "a new epoch that begins before the old one was dropped",
            "                await self._events.lost(self._reason)\n",
            "                asyncio.ensure_future(self._events.lost(self._reason))\n",
        ),
        (
            "a network that loses everything is waited for",
            '            self.database.link.drop(f"PostgreSQL did',
            '            str(f"PostgreSQL did',
        ),
    ),
    Defect(
        "an observer that counts its own outage",
        "broker/cluster/other_nodes.py",
        "            self._nodes.clear()\n",
        "            pass\n",
        OF_NODE,
    ),
    Defect(
        "an observer that counts a pause of its own",
        "broker/cluster/other_nodes.py",
        "if self._polled_s is None or answered_s - self._polled_s > self._lease_s * GAP_SHARE:",
        "if self._polled_s is None:",
        ("tests/unit/cluster/test_observer.py",),
    ),
    Defect(
        "a node that beat again is counted out",
        "broker/cluster/sql/members.sql",
        " AND b.beats = p_dead_beats;",
        ";",
        OF_NODE,
    ),
    *defects(
        OTHERS,
        OF_NODE,
        (
            "a dead node whose session hangs stays for ever",
            "            await self._database.end_sessions(node)\n",
            "            pass\n",
        ),
        ("two brokers of one name", "if beats.setdefault(member.epoch, member.beats) != member.beats:", "if False:"),
    ),
    Defect(
        "a node that was counted out begins a generation",
        "broker/cluster/sql/failover.sql",
        "p_sequence IS NULL OR NOT (is_member OR p_changed) OR EXISTS (",
        "p_sequence IS NULL OR EXISTS (",
        ("tests/cluster/test_sql_members.py",),
    ),
    *defects(
        DEMAND,
        OF_ORDER,
        (
            "a lease begins where the last one ended, whatever is in flight",
            "            if finished < self._candidate_before:\n                return\n",
            "",
        ),
        (
            "the bound passes calls that began between two leases",
            "                self._candidate_before = began\n",
            "                self._candidate_before = finished\n",
        ),
        (
            "a lease that its room cut short raises the bound beyond what it left",
            "self.bound = min(self._candidate, last)",
            "self.bound = self._candidate",
        ),
        (
            "a message that was returned during a lease is skipped",
            "        if number < self._candidate:\n            self._candidate = number\n",
            "",
        ),
    ),
    *defects(
        "broker/cluster/leases.py",
        OF_RETURNS,
        (
            "messages are returned that arriving ones overtake",
            "        if level.demand.asked:\n            return\n        ready =",
            "        ready =",
        ),
        (
            "messages are returned that released ones do not hold back",
            "        if level.manager.ready < ready:\n            level.demand.note_backlog()\n",
            "",
        ),
    ),
    Defect(
        "messages are returned from ahead of those of the call that runs",
        "broker/cluster/shared_level.py",
        "            if not gathers and not place.slot.number:\n                break\n",
        "            if not gathers and not place.slot.number:\n                continue\n",
        OF_RETURNS,
    ),
)
