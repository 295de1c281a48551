"""The data of a broker: its folder, vhosts and taps; in a cluster, its node, which stores messages in PostgreSQL."""

from __future__ import annotations

import asyncio
import secrets
import socket
import string
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from broker.amqp.errors import BrokerError
from broker.delivery.clock_watch import ClockWatch
from broker.net.address import Bound
from broker.parts.part import Part, Shared
from broker.parts.ports import Ports
from broker.settings import Settings
from broker.slot_files.slot_folder import SlotFolder
from broker.store.clock_file import ClockFile
from broker.store.data_folder import DataFolder
from broker.taps.taps import Taps
from broker.vhosts.vhosts import Vhosts

if TYPE_CHECKING:
    from broker.cluster.broker_node import BrokerNode

ALPHABET: Final = string.ascii_letters + string.digits + "-_"
NAME_LENGTH: Final = 22  # 132 bits, as in RabbitMQ's generated names
WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - not bound here


def generate_name() -> str:
    """Return a random name, for a queue that is declared without a name."""
    return "".join(secrets.choice(ALPHABET) for _ in range(NAME_LENGTH))


class Data(Part):
    """The locked data folder with its clock and slot files, the vhosts and the taps; in a cluster, the node.

    No vhost is open until the definitions are read.
    """

    def __init__(self, shared: Shared, ports: Ports) -> None:
        self._shared = shared
        self._ports = ports
        self.folder: DataFolder
        self.watch: ClockWatch
        self.node: BrokerNode | None = None
        self.vhosts: Vhosts
        self.taps: Taps

    async def open(self) -> None:
        """Lock the folder, resume its clock, open its slot files, and create the turn of the loop. *Blocking.*

        Raises: what DataFolder.open, ClockWatch.resume and SlotFolder.open raise; BrokerError from `_node`.
        """
        shared = self._shared
        settings = shared.settings
        loop = asyncio.get_running_loop()
        self.folder = DataFolder.open(shared.files, shared.path, reserve_bytes=settings.store.reserve_bytes)
        with ExitStack() as undo:
            undo.callback(self.folder.close)
            self.watch = ClockWatch(ClockFile(shared.files, shared.path), shared.clock)
            slots = self._open_slots(self.watch.resume())
            turn = shared.begin(loop)
            self.node = self._node(loop, self._ports.bound) if settings.cluster.is_on else None
            undo.pop_all()
        self.vhosts = Vhosts(
            self.folder,
            settings,
            turn,
            loop,
            generate=generate_name,
            fail=shared.fail,
            sealed=slots.view.ends,
            shared=self.node,
        )
        self.watch.start(turn, self.vhosts.log_positions)
        self.taps = Taps(slots, self.vhosts, settings, turn, shared.fail)

    async def start(self) -> None:
        """Start writing slot files."""
        self.taps.start()

    async def stop(self, timeout_s: float) -> None:
        """Write everything to disk, or return messages to the other nodes, after all clients have disconnected."""
        stopping = self._shared.stopping
        await self.vhosts.finish_sliced()
        await self.taps.close(timeout_s, lambda count: stopping.wait_for("slot files", count=count))
        if self.node is not None:
            stopping.wait_for("PostgreSQL")
            await self.node.drain(timeout_s)
            await self.node.leave()
        await self.vhosts.stop(lambda vhost: stopping.wait_for("checkpoint", vhost=vhost))
        await self.watch.stop()
        stopping.finish()

    async def close(self) -> None:
        """Close all files and release the folder. If the broker never served, its vhosts are closed as unchanged."""
        served = self._shared.served
        if self.node is not None and not served:
            await self.node.leave()
        self.taps.abort()
        self.vhosts.close(unchanged=not served)
        self.folder.close()

    async def drain(self, timeout_s: float) -> None:
        """Wait until all accepted messages are on disk, or in PostgreSQL."""
        if unwritten_bytes := self.vhosts.pending_bytes():
            self._shared.stopping.wait_for("sync", bytes=unwritten_bytes)
        await (self.vhosts.drain() if self.node is None else self.node.drain(timeout_s))

    async def apply_settings(self, settings: Settings) -> None:
        self.vhosts.apply_settings(settings)
        self.taps.apply_settings(settings)

    def _open_slots(self, ahead_ms: int) -> SlotFolder:
        shared, store = self._shared, self._shared.settings.store
        return SlotFolder.open(
            shared.files,
            shared.path / "slots",
            sync=store.sync,
            ahead_ms=ahead_ms,
            incarnation=self.folder.incarnation,
            expected=self.folder.has_begun,
            quarantine=store.quarantines,
        )

    def _node(self, loop: asyncio.AbstractEventLoop, bound: Bound) -> BrokerNode:
        """Create this broker's node of the cluster. Brokers outside a cluster do not import its modules.

        Raises: BrokerError when the driver is missing, or the data folder contains data of a standalone broker.
        """
        try:
            from broker.cluster.broker_node import BrokerNode  # noqa: PLC0415 - other brokers need no database driver
        except ImportError as error:
            raise BrokerError(f"a node of a cluster needs slotmq[cluster]: {error}") from error
        folder, settings = self.folder, self._shared.settings
        if folder.has_begun or folder.files.exists(folder.path / "definitions") or folder.list_vhosts():
            raise BrokerError(
                f"{folder.path} contains the messages of a standalone broker: a node needs another data folder"
            )
        host = settings.server.host
        if host in WILDCARDS:
            host = socket.gethostname()
        plain = bound.of("server.port")
        scheme, sockets = ("amqp", plain) if plain else ("amqps", bound.of("tls.port"))
        url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{sockets[0].getsockname()[1]}/"
        return BrokerNode(settings, self._shared.turn, loop, url=url, fail=self._shared.fail)
