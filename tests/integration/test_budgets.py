"""Limits and budgets, as docs/operations.md lists them: while one client is at the limit, another's steps work."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aio_pika
from pamqp import commands

from broker.core.auth.attempts import AT_ONCE, WAIT_MAX_S
from broker.core.auth.users import user_of
from broker.server import BrokerServer
from tests.http_talk import ask
from tests.in_process import running_broker
from tests.raw_client import RawClient

HTTP = {"enabled": True, "port": 0}


async def log_in(broker: BrokerServer, user: str, password: str) -> None:
    """Connect over AMQP and disconnect."""
    connection: Any = await aio_pika.connect(f"amqp://{user}:{password}@127.0.0.1:{broker.listener.port}/")
    await connection.close()


async def test_guesses_at_a_name_are_refused_and_lock_nobody_else_out(tmp_path: Path) -> None:
    """Over AMQP and HTTP together. Users of the same address log in, whether their passwords are proven or not."""
    async with running_broker(tmp_path, http=HTTP) as broker:
        administration = broker.administration
        for name in ("alice", "bob"):
            administration.users.put(user_of({"name": name, "password": "s3cret", "tags": ["management"]}))
            administration.permissions.set(name, "/", ".*", ".*", ".*")
        broker.listener._logins._attempts._now_s = lambda: 0.0  # logins are forgotten with time
        guesses = AT_ONCE + int(WAIT_MAX_S) + 5
        with ExitStack() as clients:

            def guess() -> None:
                sent = [clients.enter_context(RawClient("127.0.0.1", broker.listener.port)) for _ in range(guesses)]
                for number, client in enumerate(sent):
                    client.greet()
                    client.authenticate("alice", f"wrong{number}")
                for client in (*sent[:AT_ONCE], *sent[-5:]):
                    assert client.expect(commands.Connection.Close, 0).reply_code == 403
                assert not any(client.readable(0) for client in sent[AT_ONCE:-5])

            await asyncio.to_thread(guess)
            refused = await ask(broker, "GET", "/api/whoami", user=("alice", "s3cret"))
            assert refused.status == 401
            for _ in range(2):
                await log_in(broker, "bob", "s3cret")
                assert (await ask(broker, "GET", "/api/whoami", user=("bob", "s3cret"))).status == 200
                assert (await ask(broker, "GET", "/api/whoami")).status == 200
        assert broker.listener._logins._attempts.begin("127.0.0.1", "bob") == 0.0
