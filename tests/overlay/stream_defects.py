"""Defects that someone might make in the streams of the overlay, and the tests that must catch each of them."""

from __future__ import annotations

from typing import Final

from tests.cluster.defect import Defect

SIMULATION: Final = ("tests/overlay/test_simulation.py",)
INNER: Final = ("tests/unit/overlay/test_inner.py",)
START_POINTS: Final = ("tests/unit/overlay/test_start_points.py",)
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
    Defect(
        "one answer to a question is on its way at a time",
        "broker/overlay/progress.py",
        "        if not self.since < first <= self.next:",
        "        if True:",
        CATCH_UP,
    ),
    Defect(
        "a question that goes on does not move the window",
        "broker/overlay/progress.py",
        "            self.flight_bytes -= self._in_flight.popleft()[1]",
        "            self._in_flight.popleft()",
        CATCH_UP,
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
    Defect(
        "a gap throws away what has arrived behind it",
        "broker/overlay/sink.py",
        "            last = min(last, run.last)\n            self._gaps",
        "            last = run.last\n            self._drop_waiting(coverage)\n            self._gaps",
        SINK,
    ),
    Defect(
        "a stream keeps its incarnation over a start",
        "broker/overlay/source.py",
        "return self.is_stale or not self._changes or self._changes[-1].incarnation != self._incarnation",
        "return self.is_stale",
        SIMULATION,
    ),
    Defect(
        "a leaf takes the virtual times of another life for its own",
        "broker/overlay/virtual_time.py",
        "return time if any(first <= time <= last for first, last in self._lived[:-1]) else None",
        "return time",
        SIMULATION,
    ),
    Defect(
        "a leaf without bindings does not read which virtual times others have of it",
        "broker/overlay/leaf.py",
        "            self._read_time(run.vector[self._name])\n            self._leave_foreign(now_ms)\n",
        "            pass\n",
        LEAF,
    ),
    Defect(
        "who had another incarnation begins with the first number that is kept",
        "broker/overlay/source.py",
        "begin = 1 + max(known, default=0)",
        "begin = 1 + min(self.trimmed, had)",
        SIMULATION,
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
        "if not held.overlay.bindings.busy and self",
        "if self",
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
    Defect(
        "the cached sufficiency is not reset when interest changes",
        "broker/overlay/forwarding.py",
        "if self._version != interest.version:",
        "if self._version < 0:",
        SIMULATION,
    ),
    Defect(
        "silence is claimed over a gap",
        "broker/overlay/forwarding.py",
        "if silence.leads_to(run):\n            return",
        "if silence.vector_at == run.vector_at:\n            return",
        SIMULATION,
    ),
    Defect(
        "silence is extended over a gap",
        "broker/overlay/forwarding.py",
        "if silence is not None and silence.leads_to(run):",
        "if silence is not None and silence.vector_at == run.vector_at:",
        FORWARDING,
    ),
    Defect(
        "an inner broker looks at the routing key alone",
        "broker/overlay/forwarding.py",
        "return any(node in interest.wanting(space, key) for key in data.copies)",
        "return False",
        FORWARDING,
    ),
    Defect(
        "no tips: the end of a stream that was lost is never missed",
        "broker/overlay/leaf.py",
        "        if source.needed_from() <= source.sent or source.stream.space in self._waiting:\n            tip",
        "        if source.needed_from() < 0:\n            tip",
        SIMULATION,
    ),
    Defect(
        "an unknown vector counts as sufficient",
        "broker/overlay/forwarding.py",
        "            if vector is None:\n                return _INSUFFICIENT",
        "            if vector is None:\n                return _SUFFICIENT",
        FORWARDING,
    ),
    Defect(
        "a leaf that nobody knows yet after a restart is dropped from the vector",
        "broker/overlay/leaf.py",
        "return self.interest.direction(leaf) is not None and self.interest.time(leaf) >= virtual_time",
        "return True",
        SIMULATION,
    ),
    Defect(
        "a restarted publisher binds only what it knows",
        "broker/overlay/leaf.py",
        "frozenset(interest.roots(node, space)) if enough else EVERYTHING",
        "frozenset(interest.roots(node, space))",
        SIMULATION,
    ),
    Defect(
        "V_m follows what is known now, although it promised more",
        "broker/overlay/source.py",
        "vector[leaf] = max(vector[leaf], virtual_time)",
        "pass",
        SIMULATION,
    ),
    Defect(
        "a leaf starts wherever its first run begins",
        "broker/overlay/sink.py",
        "if run.first == 1 and run.last > 0:\n            self._value = 0\n            return self._begin(0)",
        "if run.last > 0:\n            self._value = 0\n            return self._begin(run.first - 1)",
        SIMULATION,
    ),
    Defect(
        "a leaf takes any vector change that names it for its base",
        "broker/overlay/sink.py",
        "if before < floor <= value:",
        "if floor <= value:",
        SIMULATION,
    ),
    Defect(
        "a message that was delivered but not committed is acknowledged",
        "broker/overlay/sink.py",
        "return self._coverage.upto if self.committed_upto >= self._handed else self.committed_upto",
        "return self._coverage.upto",
        SINK,
    ),
    Defect(
        "a run that comes twice is delivered twice",
        "broker/overlay/sink.py",
        "(e for e in run.elements if e.number >= expected)",
        "run.elements",
        SINK,
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
    Defect(
        "the position of a leaf that joins is the end of the stream",
        "broker/overlay/source.py",
        "self.acks.credit([leaf for leaf in new if leaf not in old], change.number - 1)",
        "self.acks.credit(list(new), change.number)",
        SOURCE,
    ),
    Defect(
        "each change of interest is appended at once",
        "broker/overlay/leaf.py",
        "source.before_next(partial(self._change_vector, source) if source.begins else None)",
        "self._change_vector(source) if source.is_stale else None",
        LEAF,
    ),
    Defect(
        "a new leaf hears of a stream with its next message only",
        "broker/overlay/leaf.py",
        "if source.has_newcomers or self._now_ms",
        "if self._now_ms",
        LEAF,
    ),
    Defect(
        "what was known between two vector changes is forgotten",
        "broker/overlay/source.py",
        "for leaf, virtual_time in self.vector.items():",
        "for leaf, virtual_time in self._appended.items():",
        SOURCE,
    ),
    Defect(
        "a leaf that comes back has an earlier virtual time",
        "broker/overlay/source.py",
        "vector = {leaf: max(virtual_time, self._appended.get(leaf, 0)) for leaf, virtual_time in known.items()}",
        "vector = dict(known)",
        SOURCE,
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
    Defect(
        "an inner broker forgets streams that somebody wants",
        "broker/overlay/inner.py",
        "if has_ended or not any(",
        "if True or not any(",
        INNER,
    ),
    Defect(
        "an inner broker forgets no stream",
        "broker/overlay/inner.py",
        "                del self.forwardings[stream]\n                self.peers.forget(stream)",
        "                pass",
        INNER,
    ),
    Defect(
        "a received stream is forgotten before it is durable",
        "broker/overlay/leaf.py",
        "if sink.is_settled and self._subscriptions",
        "if self._subscriptions",
        LEAF,
    ),
    Defect(
        "a batch of start points is not synced",
        "broker/overlay_node/leaf_file.py",
        "            self._file.sync()\n",
        "",
        LEAF_FILE,
    ),
    Defect(
        "a binding that is gone stays in the file",
        "broker/overlay_node/leaf_file.py",
        '                for binding in change["gone"]:\n                    points.pop(binding, None)\n',
        "",
        LEAF_FILE,
    ),
    Defect(
        "what a limit forced out is silent",
        "broker/overlay/source.py",
        "        if begin <= lost:",
        "        if begin < 0:",
        SOURCE,
    ),
)
