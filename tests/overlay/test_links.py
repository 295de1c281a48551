"""Links between brokers on real sockets: who is let in, what is carried, what happens when they break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pika
import pytest
import trustme
from pamqp import commands

from broker.overlay.packets import Ack, Conjunction, Data, Hello, Packet, Resync, Space, StreamName, StreamRun, Update
from broker.overlay.wire import VERSION, encode
from broker.overlay_node.links import Links
from broker.overlay_node.overlay_link import LinkFault, OverlayLink
from broker.settings import Settings
from broker.testing import Broker
from tests.broker_process import BrokerAddress
from tests.deadline import DEADLINE_S, PAUSE_S
from tests.raw_client import RawClient, publish_frames
from tools.link_proxy import LinkProxy, Way

SPACE = Space("/", "orders")
STREAM = StreamName("paris", SPACE)


class Heard:
    """Keeps what the links of one process reported."""

    def __init__(self) -> None:
        self.links: list[OverlayLink] = []
        self.packets: list[Packet] = []
        self.lost_count = 0
        self.refuse = ""
        self.answers = False
        self._changed = asyncio.Event()

    def opened(self, link: OverlayLink) -> None:
        """Keep the link."""
        self.links.append(link)
        self._changed.set()

    def received(self, link: OverlayLink, packets: Sequence[Packet]) -> None:
        """Keep the packets."""
        if self.answers:
            for _ in (packet for packet in packets if isinstance(packet, Resync)):
                link.send(Ack(STREAM, 1, 1))
        if self.refuse:
            raise LinkFault(self.refuse)
        self.packets += packets
        self._changed.set()

    def lost(self, link: OverlayLink) -> None:
        """Forget the link."""
        self.links.remove(link)
        self.lost_count += 1
        self._changed.set()

    async def link(self) -> OverlayLink:
        """Return the only link, once it is open."""
        await self.until(lambda: len(self.links) == 1)
        return self.links[0]

    async def until(self, reached: Callable[[], object]) -> None:
        """Wait until something has become true."""
        async with asyncio.timeout(DEADLINE_S):
            while not reached():
                self._changed.clear()
                await self._changed.wait()


class Told:
    """The other end of a link, which keeps why the link was closed."""

    def __init__(self) -> None:
        self.has_room = True
        self.texts: list[str] = []

    def carry(self, body: bytes) -> None:
        """Lose a message."""

    def close(self, text: str) -> None:
        """Keep the reason."""
        self.texts.append(text)


class Site:
    """A real broker, and the links of the broker of the overlay that it holds."""

    def __init__(self, name: str, node: str, *neighbours: dict[str, Any], **sections: Any) -> None:
        overlay = {"node": [{"broker": name, "node": node, "neighbours": list(neighbours)}]}
        self.broker = Broker(**sections)
        self.settings = Settings(overlay=overlay)
        self.heard = Heard()
        self.links = Links(self.settings, self.heard)

    async def __aenter__(self) -> Self:
        """Start both."""
        await self.broker.__aenter__()
        self.broker.server.vhosts["/"].accept_links(self.links.accept)
        self.links.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Stop both."""
        await self.links.stop()
        await self.broker.__aexit__(None, None, None)


@asynccontextmanager
async def pair(user: str = "guest:guest") -> AsyncIterator[tuple[Site, Site]]:
    """Run two sites; the second opens the link."""
    async with Site("hub-1", "hub", {"node": "paris", "broker": "paris"}) as hub:
        url = f"amqp://{user}@127.0.0.1:{hub.broker.port}"
        async with Site("paris", "paris", {"node": "hub", "broker": "hub-1", "url": url}) as paris:
            yield hub, paris


async def poll(reached: Callable[[], bool]) -> None:
    """Wait until something has become true that no one tells."""
    async with asyncio.timeout(DEADLINE_S):
        while not reached():  # noqa: ASYNC110 - neither the log nor a link's output reports a change
            await asyncio.sleep(PAUSE_S)


class Logged:
    """The events that the brokers of a test log."""

    def __init__(self, records: pytest.LogCaptureFixture) -> None:
        self._records = records

    def lines(self, event: str) -> list[str]:
        """Return the lines of an event."""
        return [line for line in self._records.messages if line.startswith(event + " ")]

    async def until(self, event: str, text: str = "") -> str:
        """Return the first line of an event that has a text, once there is one."""
        await poll(lambda: any(text in line for line in self.lines(event)))
        return next(line for line in self.lines(event) if text in line)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    """Provide the events that the brokers of the test log."""
    return Logged(caplog)


async def test_packets_travel_both_ways_in_order() -> None:
    """One connection carries both directions, also what is larger than a frame and more than a batch."""
    run = StreamRun(STREAM, 1, 3, 0, (Data(2, "order.1", bytes(range(256)) * 2000),))
    many: list[Packet] = [Ack(STREAM, number, 1) for number in range(1, 20_001)]
    async with pair() as (hub, paris):
        down, up = await hub.heard.link(), await paris.heard.link()
        assert (down.peer, down.node, up.peer, up.node) == ("paris", "paris", "hub-1", "hub")
        assert down.session != up.session
        for packet in [run, *many]:
            up.send(packet)
            down.send(packet)
        await hub.heard.until(lambda: len(hub.heard.packets) > len(many))
        await paris.heard.until(lambda: len(paris.heard.packets) > len(many))
        assert hub.heard.packets == paris.heard.packets == [run, *many]
        assert down.received_bytes == up.sent_bytes


async def test_a_broken_link_is_opened_again() -> None:
    """Both ends hear of the loss, and of a new session."""
    async with pair() as (hub, paris):
        first = (await hub.heard.link()).session
        await paris.heard.link()
        for transport in list(hub.broker.server.listener.transports):
            transport.drop("cut")
        await paris.heard.until(lambda: paris.heard.lost_count == 1)
        await paris.heard.link()
        assert (await hub.heard.link()).session != first
        assert hub.heard.lost_count == 1


async def test_a_second_process_of_a_name_is_refused_while_the_first_one_answers(logged: Logged) -> None:
    """Both are told. One that hangs does not keep the place of the process that was started for it."""
    async with pair() as (hub, paris):
        paris.heard.answers = True
        session = (await hub.heard.link()).session
        url = f"amqp://127.0.0.1:{hub.broker.port}"
        async with Site("paris", "paris", {"node": "hub", "broker": "hub-1", "url": url}) as second:
            text = "another process named 'paris' has a link to 'hub-1'"
            await poll(lambda: sum(text in line for line in logged.lines("overlay.link_failed")) == 4)
            assert len(logged.lines("overlay.link_refused")) == 4
            assert (await hub.heard.link()).session == session
            paris.heard.answers = False
            await second.heard.link()
            await hub.heard.until(lambda: hub.heard.lost_count == 1)


async def test_a_neighbour_that_is_not_there_yet_is_dialled_again(logged: Logged) -> None:
    """The order of starts does not matter; each failure is logged with its reason and the next attempt."""
    async with Site("hub-1", "hub", {"node": "paris", "broker": "paris"}) as hub:
        port = hub.broker.port
    async with Site("paris", "paris", {"node": "hub", "broker": "hub-1", "url": f"amqp://127.0.0.1:{port}"}) as paris:
        failed = await logged.until("overlay.link_failed")
        async with Site("hub-1", "hub", {"node": "paris", "broker": "paris"}, server={"port": port}):
            await paris.heard.link()
    assert "broker='paris' peer='hub-1' reason='Connection refused' next_s=0.1" in failed


@pytest.mark.parametrize(
    ("name", "node", "peer", "peer_node", "reason"),
    [
        ("rome", "rome", "hub-1", "hub", "'hub-1' has no neighbour 'rome' elsewhere"),
        ("paris", "paris", "hub-2", "hub", "no broker 'hub-2' of the overlay is here"),
        ("paris", "lyon", "hub-1", "hub", "paris of tree node lyon answers, not paris of tree node paris"),
        ("paris", "paris", "hub-1", "centre", "hub-1 of tree node hub answers, not hub-1 of tree node centre"),
    ],
)
async def test_who_is_no_neighbour_is_refused(
    logged: Logged, name: str, node: str, peer: str, peer_node: str, reason: str
) -> None:
    """Two settings that contradict each other make no link, and an operator reads why."""
    async with Site("hub-1", "hub", {"node": "paris", "broker": "paris"}) as hub:
        url = f"amqp://127.0.0.1:{hub.broker.port}"
        async with Site(name, node, {"node": peer_node, "broker": peer, "url": url}):
            await logged.until("overlay.link_refused", reason)


async def test_a_broker_of_another_version_is_refused() -> None:
    """Both versions are named; no packet after the hello is taken."""
    heard, carrier = Heard(), Told()
    link = OverlayLink("hub-1", "hub", "paris", "paris", carrier, heard, leaf=False)
    link.take(encode(Hello("paris", "paris", 1, leaf=True, version=1)) + encode(Ack(STREAM, 1, 1)))
    assert carrier.texts == ["paris speaks version 1 of the overlay's protocol, not 3"]
    assert not (link.is_open or heard.links or heard.packets)


@pytest.mark.parametrize(("here", "there"), [("all", "none"), ("none", "all")])
async def test_ends_that_differ_in_subscriptions_are_refused(logged: Logged, here: str, there: str) -> None:
    """An operator reads which end has what; each end says it of itself first."""
    async with Site("hub-1", "hub", {"node": "paris", "broker": "paris", "subscriptions": here}) as hub:
        url = f"amqp://127.0.0.1:{hub.broker.port}"
        neighbour = {"node": "hub", "broker": "hub-1", "url": url, "subscriptions": there}
        async with Site("paris", "paris", neighbour) as paris:
            line = await logged.until("overlay.link_refused", "subscriptions")
            assert (f'hub-1 has subscriptions = "{here}"' in line) != (f'paris has subscriptions = "{there}"' in line)
            assert not hub.heard.links
            assert not paris.heard.links


async def test_a_wrong_password_is_said(logged: Logged) -> None:
    """The log names the neighbour and RabbitMQ's reason, not the password."""
    async with pair("guest:wrong"):
        failed = await logged.until("overlay.link_failed", "ACCESS_REFUSED")
    assert "wrong" not in failed


async def test_packets_that_make_no_sense_end_the_link(logged: Logged) -> None:
    """A fault of one neighbour is logged, told to it, and harms no other connection."""
    async with pair() as (hub, paris):
        await hub.heard.link()
        up = await paris.heard.link()
        hub.heard.refuse = "an update without a beginning"
        up.send(Hello("paris", "paris", 1, leaf=True, version=1))
        await paris.heard.until(lambda: paris.heard.lost_count == 1)
        hub.heard.refuse = ""
        await paris.heard.link()
    (refused,) = logged.lines("overlay.link_refused")
    assert "reason='an update without a beginning'" in refused
    assert "reason='an update without a beginning'" in logged.lines("overlay.link_lost")[0]


async def test_both_ends_may_have_a_url() -> None:
    """The first end opens the link; the other end's attempts end, or replace it once, and one link remains."""
    async with Site("rome", "rome", {"node": "hub", "broker": "hub-1"}) as probe:
        port = probe.broker.port
    async with Site("hub-1", "hub", {"node": "rome", "broker": "rome", "url": f"amqp://127.0.0.1:{port}"}) as hub:
        back = {"node": "hub", "broker": "hub-1", "url": f"amqp://127.0.0.1:{hub.broker.port}"}
        async with Site("rome", "rome", back, server={"port": port}) as rome:
            listeners = [site.broker.server.listener for site in (hub, rome)]

            def one_is_left() -> bool:
                """Return whether both ends have the same single link, and no attempt is under way."""
                links = [len(site.heard.links) for site in (hub, rome)]
                return links == [1, 1] and sum(len(listener.transports) for listener in listeners) == 1

            for number in range(1, 4):
                ack = Ack(STREAM, number, 1)
                async with asyncio.timeout(DEADLINE_S):
                    while ack not in rome.heard.packets:  # what was sent on a link that is replaced is lost
                        await poll(one_is_left)
                        hub.heard.links[0].send(ack)
                        await asyncio.sleep(PAUSE_S)
                await poll(one_is_left)
                lost = hub.heard.lost_count
                for transport in [transport for listener in listeners for transport in listener.transports]:
                    transport.drop("cut")
                await hub.heard.until(lambda: hub.heard.lost_count > lost)  # noqa: B023 - awaited here


async def test_brokers_of_one_process_are_linked_without_a_socket() -> None:
    """An inner broker and the leaf beside it exchange packets as over a link."""
    heard = Heard()
    node = [
        {"broker": "hub-1", "node": "hub", "neighbours": [{"node": "paris", "broker": "paris"}]},
        {"broker": "paris", "node": "paris", "leaf": True, "neighbours": [{"node": "hub", "broker": "hub-1"}]},
    ]
    links = Links(Settings(overlay={"exchanges": ["orders"], "node": node}), heard)
    links.start()
    await heard.until(lambda: len(heard.links) == 2)
    update = Update(1, full=True, last=True, added=(Conjunction(SPACE, "#"),))
    next(link for link in heard.links if link.own == "paris").send(update)
    await heard.until(lambda: heard.packets == [update])
    await links.stop()
    await heard.until(lambda: not heard.links)


async def test_a_link_over_tls_checks_the_certificate(logged: Logged, tmp_path: Path) -> None:
    """With the authority in the settings the link opens; without, the log says why it does not."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "password").write_text("guest\n")
    tls = {"certfile": str(tmp_path / "cert.pem"), "keyfile": str(tmp_path / "key.pem"), "port": 0}
    async with Site("hub-1", "hub", {"node": "paris", "broker": "paris"}, tls=tls) as hub:
        url = f"amqps://guest@127.0.0.1:{hub.broker.server.listener.tls_port}"
        neighbour = {"node": "hub", "broker": "hub-1", "url": url, "password_file": str(tmp_path / "password")}
        async with Site("paris", "paris", neighbour):
            await logged.until("overlay.link_failed", "certificate")
        async with Site("paris", "paris", neighbour | {"cafile": str(tmp_path / "ca.pem")}) as paris:
            await paris.heard.link()


async def test_a_neighbour_that_reads_nothing_makes_the_link_full() -> None:
    """Runs can be left out then; what is sent all the same waits, and arrives when it reads again."""
    body = Data(1, "k", bytes(1 << 20))
    async with pair() as (hub, paris):
        up, down = await paris.heard.link(), await hub.heard.link()
        (transport,) = hub.broker.server.listener.transports
        transport._socket.pause_reading()
        sent = 0
        while not up.full:
            up.send(StreamRun(STREAM, 1, 1, 0, (body,)))
            sent += 1
            await asyncio.sleep(0)
        assert not down.full
        transport._socket.resume_reading()
        await hub.heard.until(lambda: len(hub.heard.packets) == sent)
        await poll(lambda: not up.full)


@pytest.mark.parametrize("stops", [False, True])
async def test_a_neighbour_that_hangs_holds_nothing_up(logged: Logged, stops: bool) -> None:
    """Its silence ends the link, and the broker can stop, although what was sent to it cannot be written."""
    body = Data(1, "k", bytes(1 << 20))
    async with Site("hub-1", "hub", {"node": "paris", "broker": "paris"}) as hub:
        proxy = LinkProxy(hub.broker.port)
        await proxy.start()
        url = f"amqp://127.0.0.1:{proxy.port}"
        async with Site("paris", "paris", {"node": "hub", "broker": "hub-1", "url": url}) as paris:
            up = await paris.heard.link()
            proxy.lose(*Way)
            for _ in range(32):  # more than all sockets on the way take
                up.send(StreamRun(STREAM, 1, 1, 0, (body,)))
            assert up.full
            if stops:
                await paris.links.stop()
            else:
                (dialler,) = paris.links._diallers.values()
                assert dialler._carrier is not None
                for _ in range(6):
                    dialler._carrier.connection.beat()
                await paris.heard.until(lambda: paris.heard.lost_count == 1)
                await logged.until("overlay.link_lost", "no heartbeat for 12 s")
            proxy.heal()
        await proxy.stop()


def test_clients_cannot_open_a_link(broker: BrokerAddress) -> None:
    """A broker that is in no overlay, and a user without the right to read the name, answer 403."""
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.port)) as connection:
        channel = connection.channel()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="takes no part in an overlay"):
            channel.basic_consume("amq.slotmq.overlay", lambda *_: None, auto_ack=True)


async def test_a_client_that_names_no_broker_is_refused() -> None:
    """The arguments name both brokers; acks are not possible."""
    async with pair() as (hub, paris):
        await hub.heard.link()
        await paris.heard.link()
        consume = commands.Basic.Consume(queue="amq.slotmq.overlay", no_ack=True)
        close = await asyncio.to_thread(refusal, hub.broker.port, consume)
        assert close.reply_code == 403
        assert "no broker 'None' of the overlay is here" in close.reply_text
        close = await asyncio.to_thread(refusal, hub.broker.port, commands.Basic.Consume(queue="amq.slotmq.overlay"))
        assert close.reply_code == 406
        assert len(hub.heard.links) == 1


async def test_a_channel_has_one_link_until_it_cancels(logged: Logged) -> None:
    """A second link on the channel is refused, and one after a cancel is not."""
    async with Site("hub-1", "hub", {"node": "paris", "broker": "paris"}) as hub:
        arguments: Any = {"x-overlay-broker": "paris", "x-overlay-peer": "hub-1"}
        consume = commands.Basic.Consume(queue="amq.slotmq.overlay", no_ack=True, arguments=arguments)
        hello = encode(Hello("paris", "paris", 1, leaf=True, version=VERSION))

        def talk() -> commands.Channel.Close:
            with RawClient("127.0.0.1", hub.broker.port) as client:
                client.open()
                client.open_channel()
                for _ in range(2):
                    tag = client.call(1, consume, commands.Basic.ConsumeOk).consumer_tag
                    key = client.skip_to(commands.Basic.Deliver, 1).routing_key or ""
                    client.send(publish_frames(1, "", key, hello))
                    client.method(1, commands.Basic.Cancel(tag))
                    client.skip_to(commands.Basic.CancelOk, 1)
                client.call(1, consume, commands.Basic.ConsumeOk)
                client.method(1, consume)
                return client.skip_to(commands.Channel.Close, 1)

        close = await asyncio.to_thread(talk)
        assert close.reply_code == 406
        assert "this channel has a link already" in close.reply_text
        assert hub.heard.lost_count == 2
        assert len(logged.lines("overlay.link_lost")) == 2


def refusal(port: int, consume: commands.Basic.Consume) -> commands.Channel.Close:
    """Return the channel.close that answers a consume."""
    with RawClient("127.0.0.1", port) as client:
        client.open()
        client.call(1, commands.Channel.Open(), commands.Channel.OpenOk)
        return client.call(1, consume, commands.Channel.Close)
