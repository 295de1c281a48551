"""A migration whose process is killed at random times and restarted until it completes."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pika

from tests.broker_process import BrokerAddress

KILLS = 25
MANY = 60_000


def migrate_through_kills(source: BrokerAddress, target: BrokerAddress) -> None:
    """Move a queue through kills, and check that each message arrived once and in order."""
    random.seed(17)
    for address, messages in ((source, MANY), (target, 0)):
        with pika.BlockingConnection(pika.URLParameters(address.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("killed", durable=True)
            for number in range(messages):
                channel.basic_publish("", "killed", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    command = [sys.executable, "-m", "broker", "migrate", "--from", source.url, "--to", target.url, "--queue", "killed"]
    kills = 0
    while True:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        if kills < KILLS:
            time.sleep(random.uniform(0.3, 0.9))
            process.kill()
            kills += process.wait() < 0
        if process.wait() == 0:
            break
    with pika.BlockingConnection(pika.URLParameters(target.url)) as connection:
        channel = connection.channel()
        assert channel.queue_declare("killed", passive=True).method.message_count == MANY
        for number, (_, _, body) in enumerate(channel.consume("killed", auto_ack=True)):
            assert body == b"%d" % number
            if number == MANY - 1:
                break
    print(f"{kills} kills")
