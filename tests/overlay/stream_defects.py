"""Defects that someone might make in the streams of the overlay, and the tests that must catch each of them."""

from __future__ import annotations

from typing import Final

from tests.cluster.defect import Defect, defects

SIMULATION: Final = ("tests/overlay/test_simulation.py",)
INNER: Final = ("tests/unit/overlay/test_inner.py",)
START_POINTS: Final = ("tests/unit/overlay/test_subscriptions.py",)
LEAF: Final = ("tests/unit/overlay/test_leaf.py",)
SINK: Final = ("tests/unit/overlay/test_sink.py",)
SOURCE: Final = ("tests/unit/overlay/test_source.py",)
STREAMS: Final = ("tests/integration/test_overlay_streams.py",)
LEAF_FILE: Final = ("tests/unit/overlay/test_leaf_file.py", "tests/fault/test_leaf_file_loss.py")
FORWARDING: Final = ("tests/unit/overlay/test_forwarding.py",)

CATCH_UP: Final = ("tests/unit/overlay/test_catch_up.py",)
SITES: Final = ("tests/overlay/test_sites.py",)
LIMITS: Final = ("tests/overlay/test_limits.py",)

STREAM_DEFECTS: Final = (
    Defect(
        "a stream goes on to a leaf that catches up with it",
        "broker/overlay/peers.py",
        "            behind.leave_out(run.last)\n            return False",
        "            behind.leave_out(run.last)\n            return True",
        CATCH_UP,
    ),
    *defects(
        "broker/overlay/progress.py",
        CATCH_UP,
        (
            "one answer to a question is on its way at a time",
            "        if not self.since < first <= self.next:",
            "        if True:",
        ),
        (
            "a question that goes on does not move the window",
            "            self.flight_bytes -= self._in_flight.popleft()[1]",
            "            self._in_flight.popleft()",
        ),
    ),
    Defect(
        "what expired while a link was down is sent",
        "broker/overlay_node/exchange_log.py",
        "if message is None or _is_expired(message, now_ms):",
        "if message is None:",
        STREAMS,
    ),
    Defect(
        "two tree nodes may reach one leaf",
        "broker/overlay/interest.py",
        "            self._refuse_loop(node, replica, packet)\n",
        "",
        ("tests/unit/overlay/test_interest.py",),
    ),
    Defect(
        "a second process takes the link of the first one of its name",
        "broker/overlay_node/links.py",
        "if known.process != arguments.get(PROCESS_ARGUMENT, known.process) and known.answers():",
        "if False:",
        ("tests/overlay/test_links.py",),
    ),
    *defects(
        "broker/overlay/sink.py",
        SINK,
        (
            "a gap throws away what has arrived behind it",
            "            last = min(last, run.last)\n            self._gaps",
            "            last = run.last\n            self._drop_waiting(coverage)\n            self._gaps",
        ),
        (
            "a message that was delivered but not committed is acknowledged",
            "return self._coverage.upto if self.committed_upto >= self._handed else self.committed_upto",
            "return self._coverage.upto",
        ),
        (
            "a run that comes twice is delivered twice",
            "(e for e in run.elements if e.number >= expected)",
            "run.elements",
        ),
    ),
    *defects(
        "broker/overlay/source.py",
        SIMULATION,
        (
            "a stream keeps its incarnation over a start",
            "return self.is_stale or not self._changes or self._changes[-1].incarnation != self._incarnation",
            "return self.is_stale",
        ),
        (
            "who had another incarnation begins with the first number that is kept",
            "begin = 1 + max(known, default=0)",
            "begin = 1 + min(self.trimmed, had)",
        ),
        (
            "V_m follows what is known now, although it promised more",
            "vector[leaf] = max(vector[leaf], virtual_time)",
            "pass",
        ),
    ),
    Defect(
        "a leaf takes the virtual times of another life for its own",
        "broker/overlay/virtual_time.py",
        "return time if any(first <= time <= last for first, last in self._lived[:-1]) else None",
        "return time",
        SIMULATION,
    ),
    *defects(
        "broker/overlay/leaf.py",
        LEAF,
        (
            "a leaf without bindings does not read which virtual times others have of it",
            "            self._read_time(run.vector[self._name])\n            self._leave_foreign(now_ms)\n",
            "            pass\n",
        ),
        (
            "each change of interest is appended at once",
            "source.before_next(partial(self._change_vector, source) if source.begins else None)",
            "self._change_vector(source) if source.is_stale else None",
        ),
        (
            "a new leaf hears of a stream with its next message only",
            "if source.has_newcomers or self._now_ms",
            "if self._now_ms",
        ),
        (
            "a received stream is forgotten before it is durable",
            "if sink.is_settled and self.subscriptions",
            "if self.subscriptions",
        ),
    ),
    Defect(
        "a binding that is covered starts with what covers it",
        "broker/overlay/subscriptions.py",
        "known = held.start(conjunction.pattern) if self._joins else None",
        "known = held.start(conjunction.pattern)",
        SIMULATION,
    ),
    Defect(
        "a binding gets messages before the leaf has told it",
        "broker/overlay_node/leaf_driver.py",
        "not held.overlay.bindings.busy and latest",
        "latest",
        SITES,
    ),
    Defect(
        "a message that is too large for a neighbour is silent",
        "broker/overlay/packets.py",
        "add(element.number, lost=True)",
        "add(element.number, lost=False)",
        SIMULATION,
    ),
    Defect(
        "what clients may publish limits a link that was accepted",
        "broker/core/session/channel.py",
        "self.channel.limit_messages(LINK_MESSAGE_BYTES)",
        "pass",
        LIMITS,
    ),
    Defect(
        "a long packet is one message of a link",
        "broker/overlay_node/overlay_link.py",
        "for at in range(0, len(body), LINK_MESSAGE_BYTES):\n",
        "for at in (0,):\n                self._carrier.carry(body)\n                break\n",
        LIMITS,
    ),
    Defect(
        "a binding that was removed and made again keeps its start",
        "broker/overlay_node/binding_interest.py",
        " and (wanted is None or one not in cut)",
        "",
        ("tests/integration/test_overlay_interest.py",),
    ),
    Defect(
        "a cursor is released early: an ack counts for whatever leaves are listed when it arrives",
        "broker/overlay/logical_broker.py",
        "if packet.serial == self.interest.applied(node, broker):",
        "if packet.serial:",
        LEAF,
    ),
    Defect(
        "an inner broker takes the minimum over the leaves that have acknowledged something",
        "broker/overlay/progress.py",
        "return min((positions.get(leaf, 0) for leaf in leaves), default=None)",
        "return min((positions[leaf] for leaf in leaves if leaf in positions), default=None)",
        SIMULATION,
    ),
    *defects(
        "broker/overlay/forwarding.py",
        SIMULATION,
        (
            "the cached sufficiency is not reset when interest changes",
            "if self._version != interest.version:",
            "if self._version < 0:",
        ),
        (
            "silence is claimed over a gap",
            "if silence.leads_to(run):\n            return",
            "if silence.vector_at == run.vector_at:\n            return",
        ),
    ),
    *defects(
        "broker/overlay/forwarding.py",
        FORWARDING,
        (
            "silence is extended over a gap",
            "if silence is not None and silence.leads_to(run):",
            "if silence is not None and silence.vector_at == run.vector_at:",
        ),
        (
            "an inner broker looks at the routing key alone",
            "return any(node in interest.wanting(space, key) for key in data.copies)",
            "return False",
        ),
        (
            "an unknown vector counts as sufficient",
            "            if vector is None:\n                return _INSUFFICIENT",
            "            if vector is None:\n                return _SUFFICIENT",
        ),
    ),
    *defects(
        "broker/overlay/leaf.py",
        SIMULATION,
        (
            "no tips: the end of a stream that was lost is never missed",
            "        if source.needed_from() <= source.sent or source.stream.space in self._waiting:\n            tip",
            "        if source.needed_from() < 0:\n            tip",
        ),
        (
            "a leaf that nobody knows yet after a restart is dropped from the vector",
            "return self.interest.direction(leaf) is not None and self.interest.time(leaf) >= virtual_time",
            "return True",
        ),
        (
            "a restarted publisher binds only what it knows",
            "frozenset(interest.roots(node, space)) if enough else EVERYTHING",
            "frozenset(interest.roots(node, space))",
        ),
    ),
    *defects(
        "broker/overlay/sink.py",
        SIMULATION,
        (
            "a leaf starts wherever its first run begins",
            "if run.first == 1 and run.last > 0:\n            self._value = 0\n            return self._begin(0)",
            "if run.last > 0:\n            self._value = 0\n            return self._begin(run.first - 1)",
        ),
        (
            "a leaf takes any vector change that names it for its base",
            "if before < floor <= value:",
            "if floor <= value:",
        ),
    ),
    Defect(
        "a full link loses a run, and nobody says so",
        "broker/overlay/peers.py",
        "            self.skipped.add(run.stream)\n            return False",
        "            return True",
        INNER,
    ),
    Defect(
        "a recovered binding starts over",
        "broker/overlay/subscriptions.py",
        "min(start, self._recovered.get(binding, start))",
        "start",
        START_POINTS,
    ),
    *defects(
        "broker/overlay/source.py",
        SOURCE,
        (
            "the position of a leaf that joins is the end of the stream",
            "self.acks.credit([leaf for leaf in new if leaf not in old], change.number - 1)",
            "self.acks.credit(list(new), change.number)",
        ),
        (
            "what was known between two vector changes is forgotten",
            "for leaf, virtual_time in self.vector.items():",
            "for leaf, virtual_time in self._appended.items():",
        ),
        (
            "a leaf that comes back has an earlier virtual time",
            "vector = {leaf: max(virtual_time, self._appended.get(leaf, 0)) for leaf, virtual_time in known.items()}",
            "vector = dict(known)",
        ),
        ("what a limit forced out is silent", "        if begin <= lost:", "        if begin < 0:"),
    ),
    Defect(
        "a vector change that is appended by itself goes before itself, too",
        "broker/overlay/source.py",
        "        self._log.before_next(None)\n",
        "",
        LEAF,
    ),
    Defect(
        "nothing goes before the next message",
        "broker/core/publishing/local_store.py",
        "            if level.before_next is not None:\n                level.go_before()\n",
        "            pass\n",
        STREAMS,
    ),
    *defects(
        "broker/overlay/inner.py",
        INNER,
        ("an inner broker forgets streams that somebody wants", "if has_ended or not any(", "if True or not any("),
        (
            "an inner broker forgets no stream",
            "                del self.forwardings[stream]\n                self.peers.forget(stream)",
            "                pass",
        ),
    ),
    *defects(
        "broker/overlay_node/leaf_file.py",
        LEAF_FILE,
        ("a batch of start points is not synced", "            self._file.sync()\n", ""),
        (
            "a binding that is gone stays in the file",
            '                for binding in change["gone"]:\n                    points.pop(binding, None)\n',
            "",
        ),
    ),
)
