"""Plausible defects of the overlay, and the tests that must catch each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.cluster.defect import Defect

TABLE: Final = r"""
@ core/publishing/local_store.py: integration/test_overlay_streams
# nothing goes before the next message
-            if level.before_next is not None:
-                level.run_before_next()
+            pass
@ core/session/channel.py: overlay/test_limits
# what clients may publish limits a link that was accepted
-self.channel.limit_messages(LINK_MESSAGE_BYTES)
+pass
@ overlay/aggregation.py: unit/overlay/test_aggregation
# a counter in place of the set of holders
-        if brokers is None or broker not in brokers:
-            return None
-        if len(brokers) > 1:
+        if brokers is None:
+            return None
+        if len(brokers) > 1:
# a neighbour is told of its own interest
-return [neighbour for neighbour in self._announced if neighbour != node]
+return list(self._announced)
# the time of the freshest replica with the patterns of one
-            held[text] = self._shared(brokers | {broker})
+            held[text] = self._shared(frozenset({broker}))
# an unknown kind of exchange asks for its key
-    return Conjunction(space, HASH)
-
-
-def
+    return Conjunction(space, key)
+
+
+def
# the full feed keeps to nothing
-wanted = {EVERYTHING.text} if self._full_feed else roots_now
+wanted = roots_now
@ overlay/announcement.py: unit/overlay/test_announcement
# a lost update is not repeated
-            updates += islice(self._queue, self._in_flight)
+            updates += islice(self._queue, 0)
@ overlay/announcement.py: unit/overlay/test_interest_convergence
# what a cover hid comes after its withdrawal
-            self._patterns[conjunction] = added
+            self._patterns = {conjunction: added} | self._patterns if added else {conjunction: added}
@ overlay/forwarding.py: overlay/test_simulation
# the cached sufficiency is not reset when interest changes
-if self._version != interest.version:
+if self._version < 0:
@ overlay/forwarding.py: unit/overlay/test_forwarding
# silence is claimed over a gap
-if unwanted.is_continued_by(run):
-            return
+if unwanted.vector_at == run.vector_at:
+            return
# silence is extended over a gap
-if unwanted is not None and unwanted.is_continued_by(run):
+if unwanted is not None and unwanted.vector_at == run.vector_at:
# an inner broker looks at the routing key alone
-return any(node in interest.wanting(space, key) for key in data.copies)
+return False
# an unknown vector counts as sufficient
-            if vector is None:
-                return _INSUFFICIENT
+            if vector is None:
+                return _SUFFICIENT
@ overlay/inner.py: unit/overlay/test_inner
# an inner broker forgets streams that somebody wants
-if has_ended or not any(
+if True or not any(
# an inner broker forgets no stream
-                del self.forwardings[stream]
-                self.peers.forget(stream)
+                pass
@ overlay/interest.py: unit/overlay/test_interest
# a broker that restarted takes its leaves away
-            if before is not None:
+            if before is not None and packet.gone:
# two tree nodes may reach one leaf
-            self._refuse_loop(node, replica, packet)
@ overlay/interest.py: unit/overlay/test_interest_convergence
# the time ends though no root has changed, and does not though one has
-ended = self._batches == 1 or bool(batch.touched)
+ended = self._batches == 1 or not batch.touched
@ overlay/leaf.py: overlay/test_simulation
# no tips: the end of a stream that was lost is never missed
-        if source.needed_from() <= source.sent or source.stream.space in self._waiting:
-            tip
+        if source.needed_from() < 0:
+            tip
# a leaf that nobody knows yet after a restart is dropped from the vector
-return self.interest.direction(leaf) is not None and self.interest.time(leaf) >= virtual_time
+return True
# a restarted publisher binds only what it knows
-frozenset(interest.roots(node, space)) if is_complete else EVERYTHING
+frozenset(interest.roots(node, space))
@ overlay/leaf.py: unit/overlay/test_leaf
# a leaf without bindings does not read which virtual times others have of it
-            self._read_time(run.vector[self._name])
-            self._skip_foreign(now_ms)
+            pass
# each change of interest is appended at once
-source.before_next(partial(self._change_vector, source) if source.needs_change else None)
+self._change_vector(source) if source.is_stale else None
# a new leaf hears of a stream with its next message only
-if source.has_newcomers or self._now_ms
+if self._now_ms
# a received stream is forgotten before it is durable
-if sink.is_settled and self.subscriptions
+if self.subscriptions
@ overlay/logical_broker.py: unit/overlay/test_leaf
# a cursor is released early: an ack counts for whatever leaves are listed when it arrives
-if packet.serial == self.interest.applied(node, broker):
+if packet.serial:
@ overlay/packets.py: overlay/test_simulation
# a message that is too large for a neighbour is silent
-add(element.number, lost=True)
+add(element.number, lost=False)
@ overlay/peers.py: unit/overlay/test_catch_up
# a stream goes on to a leaf that catches up with it
-            lagging.skip(run.last)
-            return False
+            lagging.skip(run.last)
+            return True
@ overlay/peers.py: unit/overlay/test_inner
# a full link loses a run, and nobody says so
-            self.skipped.add(run.stream)
-            return False
+            return True
@ overlay/progress.py: overlay/test_simulation
# an inner broker takes the minimum over the leaves that have acknowledged something
-return min((positions.get(leaf, 0) for leaf in leaves), default=None)
+return min((positions[leaf] for leaf in leaves if leaf in positions), default=None)
@ overlay/progress.py: unit/overlay/test_catch_up
# one answer to a question is on its way at a time
-        if not self.since < first <= self.next:
+        if True:
# a question that goes on does not move the window
-            self.flight_bytes -= self._in_flight.popleft()[1]
+            self._in_flight.popleft()
@ overlay/replica.py: unit/overlay/test_interest
# any replica says which leaves are interested
-interested = any(leaf in replica.interested.get(space, ()) for replica in self._latest(leaf))
+interested = any(leaf in replica.interested.get(space, ()) for replica in self.replicas.values())
@ overlay/replica.py: unit/overlay/test_interest unit/overlay/test_interest_convergence
# the earliest time of the replicas is taken for the latest
-            elif self.times.get(leaf) != max(times):
-                self.times[leaf] = max(times)
+            elif self.times.get(leaf) != min(times):
+                self.times[leaf] = min(times)
@ overlay/replica.py: unit/overlay/test_interest_convergence
# a full update forgets nothing
-removed = self._missing() if whole else self._removed
+removed = self._removed
@ overlay/replica.py: unit/overlay/test_replica
# a virtual time holds before the last part
-        self._removed += update.removed
-        if update.last:
+        self._removed += update.removed
+        self._set_times(update, change, whole=False)
+        change.removed = [conjunction for conjunction in update.removed if self._discard(conjunction)]
+        if update.last:
@ overlay/replica.py: unit/overlay/test_small_models
# an update is applied behind a gap
-return update.serial == self.expected or (update.full and update.serial > self.expected)
+return update.serial >= self.expected
@ overlay/sink.py: overlay/test_simulation
# a leaf starts wherever its first run begins
-if run.first == 1 and run.last > 0:
-            self._entry = 0
-            return self._begin(0)
+if run.last > 0:
+            self._entry = 0
+            return self._begin(run.first - 1)
# a leaf takes any vector change that names it for its base
-if before < floor <= entry:
+if floor <= entry:
@ overlay/sink.py: unit/overlay/test_sink
# a gap throws away what has arrived behind it
-            last = min(last, run.last)
-            self._gaps
+            last = run.last
+            self._drop_waiting(coverage)
+            self._gaps
# a message that was delivered but not committed is acknowledged
-return self._coverage.upto if self.committed_upto >= self._delivered_upto else self.committed_upto
+return self._coverage.upto
# a run that comes twice is delivered twice
-(e for e in run.elements if e.number >= expected)
+run.elements
@ overlay/source.py: overlay/test_simulation
# a stream keeps its incarnation over a start
-return self.is_stale or not self._changes or self._changes[-1].incarnation != self._incarnation
+return self.is_stale
# who had another incarnation begins with the first number that is kept
-begin = 1 + max(known, default=0)
+begin = 1 + min(self.trimmed, highest)
@ overlay/source.py: unit/overlay/test_leaf
# a vector change that is appended by itself goes before itself, too
-        self._log.before_next(None)
@ overlay/source.py: unit/overlay/test_source
# V_m follows what is known now, although it promised more
-vector[leaf] = max(vector[leaf], virtual_time)
+pass
# the position of a leaf that joins is the end of the stream
-self.acks.credit([leaf for leaf in new if leaf not in old], change.number - 1)
+self.acks.credit(list(new), change.number)
# what was known between two vector changes is forgotten
-for leaf, virtual_time in self.vector.items():
+for leaf, virtual_time in self._appended.items():
# a leaf that comes back has an earlier virtual time
-vector = {leaf: max(virtual_time, self._appended.get(leaf, 0)) for leaf, virtual_time in known.items()}
+vector = dict(known)
# what a limit forced out is silent
-        if begin <= lost:
+        if begin < 0:
@ overlay/subscriptions.py: overlay/test_simulation
# a binding that is covered starts with what covers it
-known = held.start(conjunction.pattern) if self._joins else None
+known = held.start(conjunction.pattern)
@ overlay/subscriptions.py: unit/overlay/test_subscriptions
# removals before additions in a batch
-        for binding, (conjunction, durable) in
+        for binding, conjunction in old:
+            self._release(binding, conjunction, batch)
+        old = []
+        for binding, (conjunction, durable) in
# a recovered binding starts over
-min(start, self._recovered.get(binding, start))
+start
@ overlay/virtual_time.py: overlay/test_simulation
# a leaf takes the virtual times of another life for its own
-return time if any(first <= time <= last for first, last in self._ranges[:-1]) else None
+return time
@ overlay/virtual_time.py: unit/overlay/test_virtual_time
# virtual time goes back in a crash
-self._begin(persisted_bound)
+self._begin(0)
@ overlay_node/binding_interest.py: integration/test_overlay_interest
# a binding that was removed and made again keeps its start
- and (wanted is None or binding not in cut)
+
@ overlay_node/exchange_log.py: integration/test_overlay_streams
# what expired while a link was down is sent
-if message is None or _is_expired(message, now_ms):
+if message is None:
@ overlay_node/leaf_driver.py: overlay/test_sites
# a binding gets messages before the leaf has told it
-not held.overlay.bindings.busy and latest
+latest
@ overlay_node/leaf_file.py: unit/overlay/test_leaf_file fault/test_leaf_file_loss
# a batch of start points is not synced
-            self._file.sync()
# a binding that is gone stays in the file
-                for binding in change["gone"]:
-                    points.pop(binding, None)
@ overlay_node/links.py: overlay/test_links
# a second process takes the link of the first one of its name
-if known.process != arguments.get(PROCESS_ARGUMENT, known.process) and known.answers():
+if False:
@ overlay_node/overlay_link.py: overlay/test_limits
# a long packet is one message of a link
-for at in range(0, len(body), LINK_MESSAGE_BYTES):
+for at in (0,):
+                self._carrier.carry(body)
+                break
"""
"""Files, each with the tests that catch its defects, and the defects: a name, removed (-) and added (+) lines."""


def read(table: str) -> Iterator[Defect]:
    """Yield the defects of a table. Shapes: the first and last line of a text may be parts of lines of the file;
    without added lines, whole lines are removed.
    """
    for group in table.strip().removeprefix("@ ").split("\n@ "):
        head, *defects = group.split("\n# ")
        path, _, tests = head.partition(": ")
        for defect in defects:
            name, *lines = defect.split("\n")
            removed, added = ([line[1:] for line in lines if line[0] == mark] for mark in "-+")
            old = "\n".join(removed) + ("" if added else "\n")
            yield Defect(name, f"broker/{path}", old, "\n".join(added), [f"tests/{test}.py" for test in tests.split()])


OVERLAY_DEFECTS: Final = tuple(read(TABLE))
