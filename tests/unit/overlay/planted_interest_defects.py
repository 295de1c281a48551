"""Defects that someone might make in the interest of the overlay, and the tests that must catch each of them."""

from __future__ import annotations

from typing import Final

from tests.cluster.defect import Defect, defects

_OVERLAY: Final = "broker/overlay"
_TESTS: Final = "tests/unit/overlay"
_MODELS: Final = f"{_TESTS}/test_small_models.py"
_TREES: Final = f"{_TESTS}/test_interest_convergence.py"

INTEREST_DEFECTS: Final = (
    Defect(
        "removals before additions in a batch",
        f"{_OVERLAY}/subscriptions.py",
        """        for binding, (conjunction, durable) in""",
        """        for binding, conjunction in old:
            self._release(binding, conjunction, batch)
        old = []
        for binding, (conjunction, durable) in""",
        [f"{_TESTS}/test_subscriptions.py"],
    ),
    Defect(
        "a full update forgets nothing",
        f"{_OVERLAY}/replica.py",
        "removed = self._forgotten() if whole else self._removed",
        "removed = self._removed",
        [_TREES],
    ),
    Defect(
        "a virtual time holds before the last part",
        f"{_OVERLAY}/replica.py",
        """        self._removed += update.removed
        if update.last:""",
        """        self._removed += update.removed
        self._set_times(update, change, whole=False)
        change.removed = [conjunction for conjunction in update.removed if self._discard(conjunction)]
        if update.last:""",
        [f"{_TESTS}/test_replica.py"],
    ),
    Defect(
        "an update is applied behind a gap",
        f"{_OVERLAY}/replica.py",
        "return update.serial == self.expected or (update.full and update.serial > self.expected)",
        "return update.serial >= self.expected",
        [_MODELS],
    ),
    Defect(
        "a broker that restarted takes its leaves away",
        f"{_OVERLAY}/interest.py",
        "            if before is not None:",
        "            if before is not None and packet.gone:",
        [f"{_TESTS}/test_interest.py"],
    ),
    Defect(
        "what a cover hid comes after its withdrawal",
        f"{_OVERLAY}/announcement.py",
        "            self._patterns[conjunction] = came",
        "            self._patterns = {conjunction: came} | self._patterns if came else {conjunction: came}",
        [_TREES],
    ),
    *defects(
        f"{_OVERLAY}/aggregation.py",
        [f"{_TESTS}/test_aggregation.py"],
        (
            "a counter in place of the set of holders",
            """        if brokers is None or broker not in brokers:
            return None
        if len(brokers) > 1:""",
            """        if brokers is None:
            return None
        if len(brokers) > 1:""",
        ),
        (
            "a neighbour is told of its own interest",
            "return [told for told in self._announced if told != node]",
            "return list(self._announced)",
        ),
        (
            "the time of the freshest replica with the patterns of one",
            "            held[text] = self._group(brokers | {broker})",
            "            held[text] = self._group(frozenset({broker}))",
        ),
    ),
    Defect(
        "virtual time goes back in a crash",
        f"{_OVERLAY}/virtual_time.py",
        "self._begin(persisted_bound)",
        "self._begin(0)",
        [f"{_TESTS}/test_virtual_time.py"],
    ),
    Defect(
        "the time ends though no root has changed, and does not though one has",
        f"{_OVERLAY}/interest.py",
        "ended = self._batches == 1 or bool(batch.touched)",
        "ended = self._batches == 1 or not batch.touched",
        [_TREES],
    ),
    Defect(
        "the earliest time of the replicas is taken for the latest",
        f"{_OVERLAY}/replica.py",
        """            elif self.times.get(leaf) != max(times):
                self.times[leaf] = max(times)""",
        """            elif self.times.get(leaf) != min(times):
                self.times[leaf] = min(times)""",
        [f"{_TESTS}/test_interest.py", _TREES],
    ),
    Defect(
        "any replica says which leaves are interested",
        f"{_OVERLAY}/replica.py",
        "interested = any(leaf in replica.interested.get(space, ()) for replica in self._latest(leaf))",
        "interested = any(leaf in replica.interested.get(space, ()) for replica in self.replicas.values())",
        [f"{_TESTS}/test_interest.py"],
    ),
    Defect(
        "a lost update is not repeated",
        f"{_OVERLAY}/announcement.py",
        "            updates += islice(self._queue, self._in_flight)",
        "            updates += islice(self._queue, 0)",
        [f"{_TESTS}/test_announcement.py"],
    ),
    Defect(
        "an unknown kind of exchange asks for its key",
        f"{_OVERLAY}/aggregation.py",
        "    return Conjunction(space, HASH)\n\n\ndef",
        "    return Conjunction(space, key)\n\n\ndef",
        [f"{_TESTS}/test_aggregation.py"],
    ),
    Defect(
        "the full feed keeps to nothing",
        f"{_OVERLAY}/aggregation.py",
        "wanted = {EVERYTHING.text} if self._full_feed else roots_now",
        "wanted = roots_now",
        [f"{_TESTS}/test_aggregation.py"],
    ),
)
