"""Logins: with stored users, whose hash is computed in a thread, and with the first user of the environment."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import aio_pika
import pika
import pytest
from argon2 import low_level
from pamqp import commands

from broker.core.auth import password as passwords
from broker.core.auth.users import user_of
from broker.server import BrokerServer
from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S
from tests.in_process import log_in, running_broker
from tests.raw_client import RawClient


def add_alice(broker: BrokerServer) -> None:
    """Add a user whose password this broker has not yet verified."""
    administration = broker.administration
    administration.users.put(user_of({"name": "alice", "password": "s3cret"}))
    administration.permissions.set("alice", "/", ".*", ".*", ".*")


async def test_a_stored_user_logs_in_and_the_second_time_without_a_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash is computed once, in a thread; the second login needs none."""
    threads: list[str] = []
    verify = low_level.verify_secret

    def watched(*arguments: Any) -> bool:
        threads.append(threading.current_thread().name)
        return verify(*arguments)

    monkeypatch.setattr(passwords, "verify_secret", watched)
    async with running_broker(tmp_path) as broker:
        add_alice(broker)
        await log_in(broker, "alice", "s3cret")
        await log_in(broker, "alice", "s3cret")
        assert [name.partition("_")[0] for name in threads] == ["password"]
        with pytest.raises(aio_pika.exceptions.ProbableAuthenticationError):
            await log_in(broker, "alice", "wrong")
        assert len(threads) == 2


async def test_a_client_that_leaves_before_its_verdict_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result for a disconnected client is dropped; the next client logs in."""
    begun, go_on = threading.Event(), threading.Event()
    verify = low_level.verify_secret

    def slow(*arguments: Any) -> bool:
        begun.set()
        go_on.wait(DEADLINE_S)
        return verify(*arguments)

    monkeypatch.setattr(passwords, "verify_secret", slow)
    async with running_broker(tmp_path, server={"handshake_timeout_ms": 500}) as broker:
        add_alice(broker)

        def leave() -> None:
            with RawClient("127.0.0.1", broker.listener.port) as client:
                client.greet()
                client.authenticate("alice", "s3cret")
                begun.wait(DEADLINE_S)

        await asyncio.to_thread(leave)
        await broker.listener.wait_empty()
        go_on.set()
        await log_in(broker, "alice", "s3cret")


async def test_what_is_sent_behind_the_answer_waits_for_the_verdict(tmp_path: Path) -> None:
    """A client that sends ahead without waiting for connection.tune is served in order."""
    async with running_broker(tmp_path) as broker:
        add_alice(broker)

        def talk() -> None:
            with RawClient("127.0.0.1", broker.listener.port) as client:
                client.greet()
                client.authenticate("alice", "s3cret")
                client.method(0, commands.Connection.TuneOk(2047, 131072, 0))
                client.method(0, commands.Connection.Open("/"))
                client.expect(commands.Connection.Tune, 0)
                client.expect(commands.Connection.OpenOk, 0)

        await asyncio.to_thread(talk)


async def test_amqplain_is_spoken(tmp_path: Path) -> None:
    """AMQPLAIN is a field table of two strings, as RabbitMQ's old clients send it."""
    async with running_broker(tmp_path) as broker:

        def talk() -> None:
            with RawClient("127.0.0.1", broker.listener.port) as client:
                assert client.greet().mechanisms == "PLAIN AMQPLAIN"
                response = "\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x05guest"
                client.method(0, commands.Connection.StartOk({}, "AMQPLAIN", response, "en_US"))
                client.expect(commands.Connection.Tune, 0)

        await asyncio.to_thread(talk)


def parameters(process: BrokerProcess, user: str, password: str, vhost: str = "/") -> pika.ConnectionParameters:
    """Return pika's parameters for the login."""
    address = process.address
    return pika.ConnectionParameters(address.host, address.port, vhost, pika.PlainCredentials(user, password))


@pytest.mark.parametrize("prefix", ["RABBITMQ", "SLOTMQ"])
def test_the_variables_of_rabbitmqs_image_make_the_first_user(tmp_path: Path, prefix: str) -> None:
    """The password may come from a file and is not in any log, and guest does not exist."""
    (tmp_path / "password").write_text("s3cret\n")
    environment = {
        f"{prefix}_DEFAULT_USER": "alice",
        f"{prefix}_DEFAULT_PASS_FILE": str(tmp_path / "password"),
        f"{prefix}_DEFAULT_VHOST": "shop",
    }
    process = BrokerProcess(tmp_path / "data", environment=environment)
    try:
        process.start()
        assert process.address.user == "alice"
        pika.BlockingConnection(parameters(process, "alice", "s3cret", "shop")).close()
        for user, password in (("guest", "guest"), ("alice", "password")):
            with pytest.raises(pika.exceptions.ProbableAuthenticationError):
                pika.BlockingConnection(parameters(process, user, password, "shop"))
        assert process.terminate() == 0
        assert "s3cret" not in process.stderr() + process.stdout()
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"RABBITMQ_DEFAULT_PASS_FILE": "/nowhere/password"},
         "RABBITMQ_DEFAULT_PASS_FILE: /nowhere/password: cannot be read: No such file or directory"),
        ({"RABBITMQ_DEFAULT_USER": "alice"}, "auth: default_user is set and default_pass is not"),
    ],
)  # fmt: skip
def test_a_first_user_that_cannot_be_made_keeps_the_broker_from_starting(
    tmp_path: Path, environment: dict[str, str], line: str
) -> None:
    """An invalid first user ends the start with exit code 2 and one line."""
    process = BrokerProcess(tmp_path / "data", environment=environment)
    process.spawn()
    assert process.wait() == 2
    assert process.stderr() == f"slotmq: {line}\n"
