"""The credit of publishers: how many queue entries they may make, and who may continue when."""

from __future__ import annotations

from typing import Any, Final

import pytest

from broker.core.publish_credit import (
    DELIVERIES_PER_AWAITED_ENTRY,
    DELIVERIES_PER_ENTRY,
    PIECE_ENTRIES,
    SHARE_ENTRIES,
    CreditShare,
    PublishCredit,
)

pytestmark = pytest.mark.interpreted("a publisher without a connection takes the place of one")

PIECES: Final = SHARE_ENTRIES // PIECE_ENTRIES


class Publisher:
    """A connection that publishes as long as it is not held."""

    def __init__(self, credit: PublishCredit) -> None:
        self.held = False
        connection: Any = self
        self.share = CreditShare(connection, credit)
        self.made = 0

    def hold(self) -> None:
        """Stop."""
        self.held = True

    def release(self) -> None:
        """Go on."""
        self.held = False

    def publish(self, *, lags: bool = False, queues: int = 1) -> None:
        """Publish until held; with `lags` the queues lag."""
        while not self.held:
            lagged = self.share.credit.lagged
            left = self.share.begin()
            while left > 0:
                left -= queues
                self.made += queues
                if lags:
                    self.share.credit.lagged += 1
            self.share.end(left, lagged)


def test_a_message_counts_once_for_each_queue() -> None:
    """A publisher makes one share of entries per turn, at most one message more, and the next turn renews the share."""
    asked: list[str] = []
    credit = PublishCredit(lambda: asked.append("turn"))
    publisher = Publisher(credit)
    for turns in range(1, 4):
        publisher.publish(queues=50)
        assert turns * SHARE_ENTRIES <= publisher.made < turns * (SHARE_ENTRIES + 50)
        assert credit.busy
        assert len(asked) == turns  # a turn follows, which lets the publisher go on
        credit.turn(publisher.made, behind=False, crowded=False)
    assert not credit.busy


def test_a_publisher_that_pauses_has_a_new_share_in_each_turn() -> None:
    """Credit that a publisher used in an earlier turn does not count in a later one."""
    credit = PublishCredit()
    publisher = Publisher(credit)
    for _ in range(3):
        publisher.share.end(publisher.share.begin() - SHARE_ENTRIES + 1, credit.lagged)
        assert not publisher.held
        credit.turn(0, behind=False, crowded=False)


def test_many_publishers_go_on_in_the_order_in_which_they_waited() -> None:
    """The publishers that wait share a turn, each with a piece that is worth a turn of its own."""
    credit = PublishCredit()
    publishers = [Publisher(credit) for _ in range(2 * PIECES)]
    for publisher in publishers:
        publisher.publish()
    for group in (publishers[:PIECES], publishers[PIECES:], publishers[:PIECES]):
        credit.turn(0, behind=False, crowded=False)
        assert [publisher for publisher in publishers if not publisher.held] == group
        for publisher in group:
            before = publisher.made
            publisher.publish()
            assert publisher.made - before == PIECE_ENTRIES


def test_publishers_of_a_queue_that_lags_get_a_small_part_of_what_is_delivered() -> None:
    """They are never stopped, the backlog shrinks, and afterwards they have a whole share again."""
    credit = PublishCredit()
    publisher = Publisher(credit)
    publisher.publish(lags=True)
    delivered = 2000
    for _ in range(3):
        before = publisher.made
        credit.turn(delivered, behind=True, crowded=False)
        publisher.publish(lags=True)
        assert 0 < publisher.made - before <= delivered // DELIVERIES_PER_ENTRY
    for entries in (SHARE_ENTRIES, SHARE_ENTRIES):
        before = publisher.made
        credit.turn(0, behind=False, crowded=False)
        publisher.publish()
        assert publisher.made - before == entries


@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize("behind", [False, True])
def test_a_turn_follows_as_long_as_a_publisher_waits(lags: bool, behind: bool) -> None:
    """More publishers than a turn releases are all released, by turns that the credit itself schedules."""
    asked: list[str] = []
    credit = PublishCredit(lambda: asked.append("turn"))
    publishers = [Publisher(credit) for _ in range(2 * PIECES + 1)]
    for publisher in publishers:
        publisher.publish(lags=lags)
    assert all(publisher.held for publisher in publishers)
    released = []
    while asked:
        asked.clear()
        credit.turn(SHARE_ENTRIES, behind=behind, crowded=behind)
        released.append(sum(not publisher.held for publisher in publishers))
        assert len(released) <= len(publishers)
    assert released[0] <= PIECES
    assert released[-1] == len(publishers)
    assert not credit.busy


def test_publishers_wait_for_acks_and_add_half_of_what_is_delivered_meanwhile() -> None:
    """A turn without deliveries releases no one, and causes no other turn: acks do, or the end of the wait."""
    asked: list[str] = []
    credit = PublishCredit(lambda: asked.append("turn"))
    publisher = Publisher(credit)
    publisher.publish(lags=True)
    asked.clear()
    before = publisher.made
    credit.turn(0, behind=False, crowded=False, awaited=True)
    assert publisher.held
    assert not asked
    credit.turn(200, behind=False, crowded=False, awaited=True)
    publisher.publish(lags=True)
    assert publisher.made - before == 200 // DELIVERIES_PER_AWAITED_ENTRY
    credit.turn(0, behind=False, crowded=False, awaited=False)
    assert not publisher.held


def test_other_publishers_do_not_wait_for_a_queue_that_lags() -> None:
    """While a queue lags, a publisher to other queues has its share, unless too many queues lag to tell them apart."""
    credit = PublishCredit()
    lagging, other = Publisher(credit), Publisher(credit)
    lagging.publish(lags=True)
    for crowded, entries in ((False, SHARE_ENTRIES), (True, SHARE_ENTRIES // DELIVERIES_PER_ENTRY)):
        other.publish()
        before = other.made
        credit.turn(SHARE_ENTRIES, behind=True, crowded=crowded)
        other.publish()
        assert other.made - before == entries
