"""Records the answers of RabbitMQ's management API again: `.venv/bin/python -m tests.manage.record`.

Needs an installed RabbitMQ. Writes `tests/manage/recorded/read.json`, which maps paths to statuses and bodies. Values
that differ between runs are replaced with 0 or an empty string, so that only their types are recorded.
"""

from __future__ import annotations

import json
import re
import socket
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.differential.oracle import own_oracle
from tests.http_talk import Web
from tests.manage.scene import PATHS, POLICY, REFUSED, SHOP, Scene

RECORDED = Path(__file__).with_name("recorded") / "read.json"
STATISTICS_S = 12  # until RabbitMQ has all statistics
SAMPLES = 3  # the number kept of each history
VARYING = frozenset(
    "applications auth_mechanisms avg avg_rate backing_queue_status config_files connected_at consumer_capacity "
    "consumer_utilisation context_switches contexts db_dir disk_free disk_free_limit disk_writes enabled_plugins "
    "erlang_full_version erlang_version exchange_types fd_total fd_used garbage_collection gc_bytes_reclaimed gc_num "
    "idle_since io_read_avg_time io_read_bytes io_read_count io_seek_avg_time io_seek_count io_sync_avg_time "
    "io_sync_count io_write_avg_time io_write_bytes io_write_count listeners log_files management_version mem_limit "
    "mem_used memory metrics_gc_queue_length mnesia_disk_tx_count mnesia_ram_tx_count msg_store_read_count "
    "msg_store_write_count os_pid peer_port platform port proc_total proc_used product_version queue_index_read_count "
    "queue_index_write_count ra_open_file_metrics rabbitmq_version rate recv_oct reductions run_queue sample send_oct "
    "send_cnt recv_cnt samples sockets_total timestamp uptime version connection_closed".split()
)
"""The fields whose values depend on the time or the machine."""


def main() -> None:
    """Write the recording."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        settings = [
            "management.tcp.ip = 127.0.0.1",
            f"management.tcp.port = {port}",
            "collect_statistics_interval = 1000",
        ]
        with own_oracle(Path(folder) / "rabbitmq", "rabbitmq_management", settings=settings) as (address, _control):
            answers = record(port, address.port)
    RECORDED.parent.mkdir(exist_ok=True)
    lines = [f"{json.dumps(path)}: {json.dumps(answers[path], sort_keys=True)}" for path in answers]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def record(http_port: int, port: int) -> dict[str, Any]:
    """Return status and body by path, in which a star replaces the name of a connection or channel."""
    web = Web(http_port)
    made: tuple[tuple[str, Any], ...] = (
        ("vhosts/shop", SHOP),
        ("permissions/shop/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("policies/shop/limit", POLICY),
    )
    for path, body in made:
        assert web.ask("PUT", f"/api/{path}", body).status in {201, 204}
    scene = Scene("127.0.0.1", port)
    time.sleep(STATISTICS_S)
    node = web.get("/api/nodes").json[0]["name"]
    connection, channel = (
        quote(web.get(f"/api/{kind}").json[-1]["name"], safe="") for kind in ("connections", "channels")
    )
    asked = {path: path for path in (*PATHS, *REFUSED)}
    asked["connections/*"] = f"connections/{connection}"
    asked["connections/*/channels"] = f"connections/{connection}/channels"
    asked["channels/*"] = f"channels/{channel}"
    found: dict[str, Any] = {}
    for name, path in asked.items():
        said = web.get(f"/api/{path}")
        answer = json.loads(said.body) if said.body else None
        found[name] = {"status": said.status, "body": trimmed(answer, node)}
    scene.close()
    return found


def trimmed(value: Any, node: str, *, varies: bool = False) -> Any:
    """Return a value with the parts that differ between runs replaced."""
    if isinstance(value, dict):
        return {
            name.replace(node, "NODE"): trimmed(inner, node, varies=varies or name in VARYING)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [trimmed(inner, node, varies=varies) for inner in value[: SAMPLES if varies else None]]
    if isinstance(value, str):
        return "" if varies else re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", value.replace(node, "NODE"))
    return type(value)() if varies and value is not None and not isinstance(value, bool) else value


def free_port() -> int:
    """Return an unused port."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


if __name__ == "__main__":
    main()
