"""The data of a broker: its folder, vhosts and taps; in a cluster, the node that has PostgreSQL hold the messages."""

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
LETTERS: Final = 22  # 132 bits, as in RabbitMQ's generated names
WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - not bound here


def generate_name() -> str:
    """Return a random name of 22 characters."""
    return "".join(secrets.choice(ALPHABET) for _ in range(LETTERS))


class Data(Part):
    """The locked data folder with its clock and slot files, the vhosts and the taps; in a cluster, the node.

    The vhosts have no engines until the definitions name them.
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
        """Lock the folder, resume its clock, open its slot files, and begin the turns of the loop. *Blocking.*

        Raises: what DataFolder.open, ClockWatch.resume and SlotFolder.open raise; BrokerError, as `_node`.
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
        """Begin to write slot files."""
        self.taps.start()

    async def stop(self, timeout_s: float) -> None:
        """Write everything to disk, or return it to the other nodes, once no clients are connected."""
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
        """Close all files and release the folder. If the broker never served, no vhost has changed."""
        served = self._shared.served
        if self.node is not None and not served:
            await self.node.leave()
        self.taps.abort()
        self.vhosts.close(unchanged=not served)
        self.folder.close()

    async def drain(self, timeout_s: float) -> None:
        """Finish what clients were promised: their messages are on disk, or in PostgreSQL."""
        if unwritten_bytes := self.vhosts.pending_bytes():
            self._shared.stopping.wait_for("sync", bytes=unwritten_bytes)
        await (self.vhosts.drain() if self.node is None else self.node.drain(timeout_s))

    async def take_settings(self, settings: Settings) -> None:
        """Apply changed settings."""
        self.vhosts.take_settings(settings)
        self.taps.take_settings(settings)

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
        """Create this broker's node of the cluster. Brokers outside a cluster import nothing of it.

        Raises: BrokerError when the driver is missing, or the data folder has messages of a broker that stood alone.
        """
        try:
            from broker.cluster.broker_node import BrokerNode  # noqa: PLC0415 - other brokers need no database driver
        except ImportError as error:
            raise BrokerError(f"a node of a cluster needs slotmq[cluster]: {error}") from error
        folder, settings = self.folder, self._shared.settings
        if folder.has_begun or folder.files.exists(folder.path / "definitions") or folder.list_vhosts():
            raise BrokerError(
                f"{folder.path} has the messages of a broker that stood alone: a node needs another data folder"
            )
        host = settings.server.host
        if host in WILDCARDS:
            host = socket.gethostname()
        plain = bound.of("server.port")
        scheme, sockets = ("amqp", plain) if plain else ("amqps", bound.of("tls.port"))
        url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{sockets[0].getsockname()[1]}/"
        return BrokerNode(settings, self._shared.turn, loop, url=url, fail=self._shared.fail)
