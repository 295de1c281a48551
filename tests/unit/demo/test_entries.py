"""Where clients and queues of a run are."""

from demo.entries import Entries
from demo.ledger import Address
from demo.plan import Shares


def address(port: int) -> Address:
    """Return an address of loopback."""
    return Address("127.0.0.1", port, "guest", "guest", "/")


def test_a_queue_is_at_the_broker_of_its_consumer() -> None:
    """Three consumers share two brokers in turn; pika's come first."""
    entries = Entries(address(1), (address(2), address(3)))
    shares = Shares(pika=[[0, 3], [1]], aio=[[2, 4]])
    assert [home.port for home in entries.homes(shares)] == [2, 3, 2, 2, 2]
    assert [one.port for one in entries.brokers()] == [1, 2, 3]


def test_one_broker_is_named_once() -> None:
    """Publishers and consumers of one broker have one address."""
    entries = Entries.single(address(1))
    assert entries.homes(Shares([[0], [1]], [[]])) == [address(1), address(1)]
    assert entries.brokers() == [address(1)]
