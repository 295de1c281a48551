"""broker.testing as its users see it: a broker in their process, its content, and a clock that they move."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aio_pika
import aiomqtt
import pika
import pytest
import structlog
from structlog.testing import capture_logs

from broker.net.address import AddressTaken
from broker.testing import Broker, VirtualClock
from tests.deadline import wait_until
from tests.pages.page_run import run_pytest
from tests.raw_client import RawClient, publish_frames


@pytest.fixture
def threaded() -> Iterator[Broker]:
    """Provide a broker in a thread."""
    with Broker() as running:
        yield running


def channel_of(url: str) -> Any:
    """Return a pika channel of a new connection."""
    return pika.BlockingConnection(pika.URLParameters(url)).channel()


def bodies(broker: Broker, queue: str) -> list[bytes]:
    """Return the bodies in a queue."""
    return [message.body for message in broker.queue(queue).messages]


# -- the view of a test ------------------------------------------------------------------------------------------------


async def test_a_broker_in_the_tests_own_loop() -> None:
    """aio-pika and the broker share one loop; a queue shows its messages, and `published` every publish."""
    async with Broker() as broker, await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("q", durable=True)
        for number in range(3):
            message = aio_pika.Message(b"%d" % number, headers={"n": number}, delivery_mode=2)
            await channel.default_exchange.publish(message, "q")
        await channel.default_exchange.publish(aio_pika.Message(b"lost"), "nowhere", mandatory=False)
        got = await queue.get()
        await broker.idle()
        seen = broker.queue("q")
        assert [(one.body, one.state, one.headers, one.properties.delivery_mode) for one in seen.messages] == [
            (b"0", "unacked", {"n": 0}, 2), (b"1", "ready", {"n": 1}, 2), (b"2", "ready", {"n": 2}, 2),
        ]  # fmt: skip
        assert (seen.ready, seen.unacked, seen.consumers) == (2, 1, 0)
        assert [(one.exchange, one.routing_key, one.body) for one in broker.published] == [
            ("", "q", b"0"), ("", "q", b"1"), ("", "q", b"2"), ("", "nowhere", b"lost"),
        ]  # fmt: skip
        await got.nack(requeue=True)
        await broker.idle()
        assert [one.redelivered for one in broker.queue("q").messages] == [True, False, False]
        assert broker.queues() == ["q"]
        assert "amq.topic" in broker.exchanges()


def test_a_broker_in_a_thread_for_a_client_that_blocks(threaded: Broker) -> None:
    """pika publishes without confirms; when the broker is idle the message is there."""
    channel = channel_of(threaded.url)
    channel.queue_declare("q")
    channel.queue_bind("q", "amq.topic", "a.#")
    channel.basic_publish("amq.topic", "a.b", b"1")
    threaded.wait_idle()
    assert bodies(threaded, "q") == [b"1"]
    assert ("amq.topic", "a.#") in threaded.bindings("q")
    channel.connection.close()


async def test_a_broker_in_a_thread_for_a_test_with_a_loop() -> None:
    """A test with its own loop waits for a broker in another."""
    with Broker() as broker:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel(publisher_confirms=False)
            await channel.declare_queue("q")
            await channel.default_exchange.publish(aio_pika.Message(b"1"), "q")
            await broker.idle()
            assert bodies(broker, "q") == [b"1"]


async def test_another_thread_looks_in_and_moves_the_clock() -> None:
    """Calls from another thread run in the broker's loop, where nothing else happens meanwhile."""
    async with Broker() as broker, await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel()
        await channel.declare_queue("q", arguments={"x-message-ttl": 1000})
        await channel.default_exchange.publish(aio_pika.Message(b"1"), "q")
        assert await asyncio.to_thread(bodies, broker, "q") == [b"1"]
        await asyncio.to_thread(broker.wait_idle)
        await asyncio.to_thread(broker.clock.advance, 1)
        assert await asyncio.to_thread(bodies, broker, "q") == []
        with pytest.raises(RuntimeError, match="await idle"):
            broker.wait_idle()


def test_published_in_a_transaction_and_with_confirms(threaded: Broker) -> None:
    """`published` lists every publish once, whatever the channel's mode."""
    channel = channel_of(threaded.url)
    channel.queue_declare("q")
    channel.tx_select()
    channel.tx_select()
    channel.basic_publish("", "q", b"kept")
    channel.tx_commit()
    confirming = channel.connection.channel()
    confirming.confirm_delivery()
    confirming.basic_publish("", "q", b"sure", pika.BasicProperties(priority=3), mandatory=True)
    assert [(one.body, one.mandatory, one.properties.priority) for one in threaded.published] == [
        (b"kept", False, None), (b"sure", True, 3),
    ]  # fmt: skip
    channel.connection.close()


def test_published_in_one_piece_up_to_what_is_refused(threaded: Broker) -> None:
    """Publishes that the broker accepts as a run are listed one by one in `published`, the refused one last."""
    with RawClient("127.0.0.1", threaded.port).with_channel() as client:
        client.declare_queue(1, "q")
        keys = ["q", "q", "nowhere", "q"]
        frames = [publish_frames(1, "", key, b"%d" % number) for number, key in enumerate(keys)]
        client.send(*frames, publish_frames(1, "gone", "q", b"refused"), publish_frames(1, "", "q", b"too late"))
        client.expect_channel_close(1, 404)
        assert bodies(threaded, "q") == [b"0", b"1", b"3"]
        assert [(one.exchange, one.routing_key, one.body) for one in threaded.published] == [
            *(("", key, b"%d" % number) for number, key in enumerate(keys)), ("gone", "q", b"refused"),
        ]  # fmt: skip


def test_messages_on_disk_and_of_every_priority_are_seen() -> None:
    """Messages on disk are shown like those in memory, in the order of delivery, with unacked ones in their places."""
    with Broker(memory={"resident_max_bytes": 1 << 20}, slots={"window_messages": 50}) as broker:
        channel = channel_of(broker.url)
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True, arguments={"x-max-priority": 1})
        for number in range(400):
            body = b"%06d" % number + bytes(10_000)
            channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2, priority=int(number == 399)))
        taken = [channel.basic_get("q")[2][:6] for _ in range(2)]
        expected = [b"000399", *(b"%06d" % number for number in range(399))]
        assert taken == expected[:2]

        def paged_out() -> bool:
            streams = broker.server.vhosts["/"].queues["q"].levels
            return any(slot.contents is None for stream in streams for slot in list(stream.manager.slots.values()))

        wait_until(paged_out, "a slot that left memory")
        seen = broker.queue("q")
        assert [one.body[:6] for one in seen.messages] == expected
        assert [one.state for one in seen.messages] == ["unacked"] * 2 + ["ready"] * 398
        channel.connection.close()


def test_what_is_not_there_is_named(threaded: Broker) -> None:
    """A missing queue or vhost is a KeyError with its name."""
    with pytest.raises(KeyError, match="nothing"):
        threaded.queue("nothing")
    with pytest.raises(KeyError, match="no queue 'nothing' in vhost '/'"):
        threaded.bindings("nothing")
    with pytest.raises(KeyError, match="nowhere"):
        threaded.queues("nowhere")


# -- the clock ---------------------------------------------------------------------------------------------------------


def test_messages_and_queues_expire_when_the_clock_says_so(threaded: Broker) -> None:
    """Nothing expires by itself; when `advance` returns, everything due has expired, to the millisecond."""
    channel = channel_of(threaded.url)
    channel.queue_declare("q", arguments={"x-message-ttl": 60_000, "x-expires": 120_000})
    channel.basic_publish("", "q", b"own", pika.BasicProperties(expiration="10000"))
    channel.basic_publish("", "q", b"queue's")
    threaded.wait_idle()
    threaded.clock.advance(9.999)
    assert bodies(threaded, "q") == [b"own", b"queue's"]
    threaded.clock.advance(0.001)
    assert bodies(threaded, "q") == [b"queue's"]
    threaded.clock.advance(50)
    assert bodies(threaded, "q") == []
    threaded.clock.advance(60)
    assert threaded.queues() == []
    channel.connection.close()


def test_a_retry_through_dead_letter_queues_takes_its_time(threaded: Broker) -> None:
    """A message that waits in two queues, one after the other, does so within one move of the clock."""
    channel = channel_of(threaded.url)
    next_queue = {"x-dead-letter-exchange": ""}
    channel.queue_declare("5s", arguments=next_queue | {"x-message-ttl": 5_000, "x-dead-letter-routing-key": "20s"})
    channel.queue_declare("20s", arguments=next_queue | {"x-message-ttl": 20_000, "x-dead-letter-routing-key": "end"})
    channel.queue_declare("end")
    channel.basic_publish("", "5s", b"1")
    threaded.wait_idle()
    threaded.clock.advance(24.999)
    assert (bodies(threaded, "20s"), bodies(threaded, "end")) == ([b"1"], [])
    threaded.clock.advance(0.001)
    (message,) = threaded.queue("end").messages
    assert [(death["queue"], death["reason"]) for death in message.headers["x-death"]] == [
        ("20s", "expired"), ("5s", "expired"),
    ]  # fmt: skip
    channel.connection.close()


def test_a_delayed_message_comes_when_the_clock_says_so(threaded: Broker) -> None:
    """x-delay of a delayed exchange uses the clock too."""
    channel = channel_of(threaded.url)
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "later", "k")
    properties = pika.BasicProperties(headers={"x-delay": 3_600_000}, delivery_mode=2)
    channel.basic_publish("later", "k", b"1", properties)
    threaded.wait_idle()
    assert bodies(threaded, "q") == []
    threaded.clock.advance(3600)
    threaded.wait_idle()
    assert bodies(threaded, "q") == [b"1"]
    channel.connection.close()


def test_messages_on_disk_expire_by_the_clock() -> None:
    """Messages on disk that expire have been read and dead-lettered when the broker is idle."""
    with Broker(memory={"resident_max_bytes": 1 << 20}, slots={"window_messages": 50}) as broker:
        channel = channel_of(broker.url)
        channel.confirm_delivery()
        channel.queue_declare("dead", durable=True)
        channel.queue_declare(
            "q",
            durable=True,
            arguments={"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
        )
        for number in range(300):
            channel.basic_publish("", "q", b"%06d" % number + bytes(10_000), pika.BasicProperties(delivery_mode=2))
        broker.clock.advance(1)
        broker.wait_idle()
        assert bodies(broker, "q") == []
        assert [body[:6] for body in bodies(broker, "dead")] == [b"%06d" % number for number in range(300)]
        channel.connection.close()


def test_a_consumer_that_never_acks_is_overdue_by_the_clock() -> None:
    """amqp.consumer_timeout_ms uses the clock, so a test of it need not wait."""
    with Broker(amqp={"consumer_timeout_ms": 1_800_000}) as broker:
        channel = channel_of(broker.url)
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"1")
        broker.wait_idle()
        channel.basic_consume("q", lambda *_: None)
        channel.connection.process_data_events()
        broker.clock.advance(1799)
        channel.connection.process_data_events()
        assert channel.is_open
        broker.clock.advance(2)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="timed out"):
            channel.basic_qos(prefetch_count=1)
        channel.connection.close()


# -- several brokers, and other settings -------------------------------------------------------------------------------


def test_brokers_do_not_know_each_other() -> None:
    """Two brokers have their own ports, queues and clocks, or one clock when they are given one."""
    clock = VirtualClock()
    with Broker() as one, Broker(clock=clock) as other, Broker(clock=clock) as third:
        for broker in (one, other, third):
            channel = channel_of(broker.url)
            channel.queue_declare("q", arguments={"x-message-ttl": 1000})
            channel.basic_publish("", "q", b"1")
            broker.wait_idle()
            channel.connection.close()
        clock.advance(1)
        assert [bodies(broker, "q") for broker in (one, other, third)] == [[b"1"], [], []]


async def test_mqtt_clients_have_a_port_and_an_address() -> None:
    """With `mqtt` clients of both protocols meet; its settings can be given, and the clock expires what is retained."""
    retained = pika.BasicProperties(headers={"x-mqtt-retain": True}, expiration="5000")
    with Broker(mqtt={"retained_max": 1}) as broker:
        assert broker.mqtt_url == f"mqtt://guest:guest@127.0.0.1:{broker.mqtt_port}"
        async with aiomqtt.Client("127.0.0.1", broker.mqtt_port, username="guest", password="guest") as client:
            channel = channel_of(broker.url)
            channel.basic_publish("amq.topic", "home.hall", b"19", retained)
            broker.wait_idle()
            await client.subscribe("home/+")
            message = await anext(aiter(client.messages))
            assert (str(message.topic), message.payload, message.retain) == ("home/hall", b"19", True)
            assert len(broker.queue("amq.retained").messages) == 1
            broker.clock.advance(6)
            assert not broker.queue("amq.retained").messages
            channel.connection.close()
    with Broker() as broker:
        assert broker.mqtt_port == 0


def test_users_and_vhosts() -> None:
    """Given users replace guest; the address quotes any character in a name or a password."""
    with Broker(users={"a/b@c": "p:w#?%", "bob": "x"}, vhosts=["t/1"]) as broker:
        for url in (broker.url, broker.url_of("t/1"), broker.url_of("t/1", "bob")):
            channel_of(url).connection.close()
        channel = channel_of(broker.url_of("t/1", "bob"))
        channel.queue_declare("q")
        assert (broker.queues("t/1"), broker.queues()) == (["q"], [])
        channel.connection.close()
        with pytest.raises(KeyError, match="guest"):
            broker.url_of("/", "guest")
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            channel_of(f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F")


def test_the_default_user_may_use_the_vhosts() -> None:
    """guest has all rights in the vhosts that the test names."""
    with Broker(vhosts=["tenant"]) as broker:
        channel = channel_of(broker.url_of("tenant"))
        channel.queue_declare("q")
        channel.connection.close()


def test_settings_are_those_of_the_file() -> None:
    """A section means the same as in the settings file; invalid settings are refused before anything starts."""
    with Broker(limits={"queues_max": 1}) as broker:
        channel = channel_of(broker.url)
        channel.queue_declare("q")
        with pytest.raises(pika.exceptions.AMQPError):
            channel.queue_declare("one too many")
        channel.connection.close()
    with pytest.raises(ValueError, match="queues_max"):
        Broker(limits={"queues_max": 0})
    with pytest.raises(ValueError, match="limit"):
        Broker(limit={"queues_max": 1})


def test_entered_again_it_is_restarted() -> None:
    """Durable objects are there after a restart, others are gone, and the clock has advanced."""
    broker = Broker(vhosts=["v"])
    with broker:
        channel = channel_of(broker.url)
        channel.confirm_delivery()
        channel.queue_declare("durable", durable=True)
        channel.queue_declare("transient")
        for body, ttl_ms in ((b"short", "1000"), (b"long", "5000")):
            channel.basic_publish("", "durable", body, pika.BasicProperties(delivery_mode=2, expiration=ttl_ms))
        channel.basic_publish("", "durable", b"transient")
        channel.connection.close()
    broker.clock.advance(2)
    with broker:
        broker.wait_idle()
        assert broker.queues() == ["durable"]
        assert bodies(broker, "durable") == [b"long"]
        channel_of(broker.url_of("v")).connection.close()


# -- start and end -----------------------------------------------------------------------------------------------------


@pytest.mark.interpreted("a function of the passwords is replaced")
def test_a_start_waits_for_no_disk_and_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start syncs no file and hashes no password."""
    slow: list[str] = []

    def count(name: str) -> Any:
        return lambda *_arguments, **_options: slow.append(name)

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, count(name), raising=False)  # macOS has no fdatasync
    monkeypatch.setattr("broker.core.auth.password.argon2_hash", count("argon2"))
    monkeypatch.setattr("broker.core.auth.users.argon2_hash", count("argon2"))
    before = set(os.listdir("."))
    with Broker(users={"alice": "secret"}) as one, Broker() as other:
        for broker in (one, other):
            channel_of(broker.url).connection.close()
    assert slow == []
    assert set(os.listdir(".")) == before


def test_a_start_that_fails_leaves_nothing(threaded: Broker) -> None:
    """A port in use is named; no thread is left, and the next broker starts."""
    threads = threading.active_count()
    with pytest.raises(AddressTaken, match="in use"), Broker(server={"port": threaded.port}):
        pass
    with pytest.raises(ValueError, match="vhost"), Broker(vhosts=["x" * 256]):
        pass
    assert threading.active_count() <= threads
    with Broker():
        pass


@pytest.mark.slow
def test_fifty_brokers_leave_nothing_behind() -> None:
    """Fifty brokers leave no thread, descriptor or unclosed socket, although their clients never said good-bye."""
    with Broker():
        pass
    gc.collect()
    threads, descriptors = threading.active_count(), len(os.listdir("/dev/fd"))
    for _ in range(50):
        with Broker(server={"drain_timeout_ms": 0}) as broker:
            connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connection.channel()
        del connection
    gc.collect()
    assert threading.active_count() <= threads
    assert len(os.listdir("/dev/fd")) <= descriptors


async def test_brokers_in_a_loop_leave_no_task() -> None:
    """Only the test's own task is left in the loop."""
    for _ in range(3):
        async with Broker() as broker, await aio_pika.connect(broker.url):
            pass
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_it_has_to_be_entered() -> None:
    """Outside `with`, the broker raises an error that says so; its published messages can still be read."""
    broker = Broker()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="context manager"):
            broker.url  # noqa: B018 - reading it is the test
        with pytest.raises(RuntimeError, match="context manager"):
            broker.queue("q")
        with broker, pytest.raises(RuntimeError, match="already"), broker:
            pass
    assert broker.published == []


def fail(broker: Broker) -> None:
    """Cause a defect in the broker, and send it a request."""
    with broker:
        broker._call(lambda: broker.server._fail(ZeroDivisionError("a defect")))
        with pytest.raises(RuntimeError, match="failed") as caught:
            broker.queue("q")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_broker_that_failed_fails_the_test() -> None:
    """A defect in the broker is raised at the exit of `with`, and named by every earlier call."""
    with pytest.raises(ZeroDivisionError):
        fail(Broker())


# -- its log -----------------------------------------------------------------------------------------------------------


def test_it_says_what_went_wrong_to_the_standard_library_and_nothing_on_the_terminal(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A client's error is a warning of the logger `slotmq`; the program's own structlog gets nothing of it."""
    before = structlog.get_config()
    with capture_logs() as own, Broker() as broker:
        channel = channel_of(broker.url)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            channel.queue_declare("nothing", passive=True)
        channel.connection.close()
    assert own == []
    assert structlog.get_config() == before
    (said,) = [record for record in caplog.records if record.name == "slotmq"]
    assert said.levelname == "WARNING"
    assert said.getMessage().startswith("channel.failed ")
    assert "code=404" in said.getMessage()
    assert capfd.readouterr() == ("", "")


def test_it_says_more_when_asked(caplog: pytest.LogCaptureFixture) -> None:
    """Events of connections are logged at info, without passwords."""
    with caplog.at_level(logging.INFO, "slotmq"), Broker(users={"alice": "hunter2"}) as broker:
        channel_of(broker.url).connection.close()
    events = [message.split()[0] for message in caplog.messages]
    assert {"server.started", "connection.opened", "connection.closed", "server.stopped"} <= set(events)
    assert "hunter2" not in caplog.text


# -- the plugin --------------------------------------------------------------------------------------------------------

USERS_TESTS = """
import pika
import pytest

URLS = set()

def test_sync(broker, broker_url):
    assert broker.url == broker_url
    URLS.add(broker_url)
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"1")
        broker.wait_idle()
        assert [message.body for message in broker.queue("q").messages] == [b"1"]

def test_fresh(broker, broker_url):
    assert broker_url not in URLS
    assert broker.queues() == []

def test_mqtt(mqtt_broker):
    assert mqtt_broker.mqtt_port > 0


def test_process(broker_process):
    with pika.BlockingConnection(pika.URLParameters(broker_process)) as connection:
        connection.channel().queue_declare("q", durable=True)

async def test_async(broker):
    import aio_pika
    async with await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel()
        await channel.declare_queue("q")
        await channel.default_exchange.publish(aio_pika.Message(b"1"), "q")
        await broker.idle()
        assert broker.queue("q").ready == 1
"""


@pytest.mark.slow
def test_fixtures_come_with_the_package(tmp_path: Path) -> None:
    """Tests in an empty folder use the fixtures without any import or setting, and get no warning."""
    (tmp_path / "test_users.py").write_text(USERS_TESTS)
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "5 passed" in ran.stdout


def test_a_fixture_of_the_project_wins(tmp_path: Path) -> None:
    """A fixture `broker` of the project takes precedence."""
    (tmp_path / "conftest.py").write_text("import pytest\n@pytest.fixture\ndef broker(): return 'ours'\n")
    (tmp_path / "test_ours.py").write_text("def test_ours(broker): assert broker == 'ours'\n")
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_run_without_a_broker_does_not_load_one(tmp_path: Path) -> None:
    """The plugin imports only itself and modules that pytest has loaded already."""
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n"
        "def test_nothing():\n"
        "    ours = {name for name in sys.modules if name.partition('.')[0] == 'broker'}\n"
        "    assert not ours\n"
        "    assert not {'pydantic', 'structlog', 'pamqp', 'uvloop', 'bitarray'} & set(sys.modules)\n"
    )
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("module", [pytest.param("broker.py", marks=pytest.mark.torture), "broker/__init__.py"])
def test_a_project_with_a_broker_of_its_own_runs_its_tests(tmp_path: Path, module: str) -> None:
    """A project with its own module `broker` imports that one; our fixture says in one line what hides the package."""
    (tmp_path / module).parent.mkdir(exist_ok=True)
    (tmp_path / module).write_text("VALUE = 'ours'\n")
    (tmp_path / "test_ours.py").write_text("import broker\ndef test_ours(): assert broker.VALUE == 'ours'\n")
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (tmp_path / "test_url.py").write_text("def test_url(broker_url): pass\ndef test_process(broker_process): pass\n")
    ran = run_pytest(tmp_path)
    assert "1 passed, 2 errors" in ran.stdout
    assert ran.stdout.count(f"\n`broker` is {tmp_path / module} in this run and hides SlotMQ's package") == 2


def test_the_failure_of_a_start_is_told(tmp_path: Path) -> None:
    """A broker in a separate process that does not start reports why."""
    (tmp_path / "test_start.py").write_text(
        "def test_start(tmp_path, request):\n"
        "    (tmp_path / 'slotmq').write_text('not a folder')\n"
        "    request.getfixturevalue('broker_process')\n"
    )
    ran = run_pytest(tmp_path)
    assert ran.returncode == 1
    assert "the broker did not start: slotmq: " in ran.stdout
