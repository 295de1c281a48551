"""The clients of a broker: users and rights, alarms, and the listener with all connections."""

from __future__ import annotations

import asyncio
import time

from broker.administration.opening import configured_users
from broker.core.alarms import Alarms
from broker.core.auth.logins import Logins
from broker.core.auth.permissions import Permissions
from broker.core.auth.usage import Usage
from broker.core.auth.users import Users
from broker.core.session.revocation import Revocation
from broker.net.alarm_watch import AlarmWatch, watermarks
from broker.net.listener import Listener
from broker.net.password_check import PasswordThreads, logins_of
from broker.net.publisher_throttle import PublisherThrottle, ThrottledConnection
from broker.parts.data import Data
from broker.parts.http import Http
from broker.parts.part import Part, Shared
from broker.parts.ports import Ports
from broker.settings import Settings


class Clients(Part):
    """Users, their rights and their connections. The entrance accepts connections; this part ends them."""

    def __init__(self, shared: Shared, ports: Ports, http: Http, data: Data) -> None:
        self._shared = shared
        self._ports = ports
        self._http = http
        self._data = data
        self._passwords: PasswordThreads
        self.users: Users
        self.permissions: Permissions
        self.usage: Usage
        self.logins: Logins
        self.alarms: Alarms[ThrottledConnection]
        self.alarm_watch: AlarmWatch
        self.throttle: PublisherThrottle
        self.listener: Listener

    async def open(self) -> None:
        """Create the objects that clients need, and the configured users; definitions add other users and rights."""
        shared, vhosts = self._shared, self._data.vhosts
        settings = shared.settings
        self._passwords = PasswordThreads(asyncio.get_running_loop())
        self.users = users = Users(configured_users(settings), now_s=time.monotonic)
        self.permissions = Permissions(users)
        self.usage = Usage(users)
        self.alarms = Alarms(watermarks(settings))
        self.throttle = PublisherThrottle(self.alarms, vhosts.pending_bytes, tell_vhosts=vhosts.set_alarm)
        shared.turn.check_backlog_by(self.throttle.turn, self.throttle.counted_bytes)
        self.logins = logins_of(settings.auth, users, self._passwords.check)
        self.listener = Listener(
            settings,
            shared.turn,
            self.throttle,
            logins=self.logins,
            permissions=self.permissions,
            usage=self.usage,
            vhosts=vhosts,
            is_down=vhosts.is_down,
            tls=self._ports.tls,
        )
        Revocation(users, self.permissions, self.listener.sessions, vhosts)
        self.alarm_watch = AlarmWatch(self.alarms, self.throttle, self._data.folder.reserve, vhosts.save_space)

    async def start(self) -> None:
        """Reallocate the disk reserve, which is free during startup, and measure memory and disk before any publish."""
        self._data.folder.reserve.allocate()
        self.alarm_watch.measure()

    async def stop(self, timeout_s: float) -> None:
        """Send the outstanding confirms, then close AMQP and HTTP connections concurrently."""
        stopping = self._shared.stopping
        await self._data.drain(timeout_s)
        await asyncio.sleep(0)  # one turn writes the last confirms
        await asyncio.gather(
            self.listener.close(timeout_s, lambda count: stopping.wait_for("clients", count=count)),
            self._http.end_clients(timeout_s),
        )

    async def close(self) -> None:
        """Accept no more clients, and abort the remaining connections."""
        self.listener.refuse_new()
        self.drop()
        self._passwords.close()

    def drop(self) -> None:
        """Abort all connections."""
        self.listener.abort()
        self._http.abort()

    async def apply_settings(self, settings: Settings) -> None:
        self.listener.apply_settings(settings)
        self.alarms.set_watermarks(watermarks(settings))
