"""What users of each tag read: their own vhosts and connections, or those of all."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from broker.administration.administration import Administration
from broker.core.auth.password import SHA256
from broker.core.auth.users import User
from tests.http_talk import ask
from tests.in_process import client_of
from tests.manage.shop import get, managed_broker

SECRET = "an own password"
SALT = b"salt"
HASH = b64encode(SALT + sha256(SALT + SECRET.encode()).digest()).decode()  # checked in microseconds, unlike argon2's


async def with_users(administration: Administration) -> None:
    """Make a user of each tag, with rights in the vhost `own` and not in `/` and `foreign`."""

    def edit(draft: Any) -> None:
        for name in ("own", "foreign"):
            draft.add_vhost(name, {})
        for tag in ("management", "policymaker", "monitoring", "administrator", "nothing"):
            draft.users.put(User(tag, "", () if tag == "nothing" else (tag,), HASH, SHA256))
            draft.permissions.set(tag, "own", "", "", "")

    await administration.change(edit)


async def test_each_tag_reads_its_own(tmp_path: Path) -> None:
    """A user without the tag monitoring reads of the own vhosts and connections only; without a tag of nothing."""
    async with managed_broker(tmp_path / "data") as broker, client_of(broker):
        await with_users(broker.administration)
        for vhost in broker.vhosts.values():
            vhost.queues.declare("q")
        connection = quote((await get(broker, "connections"))[0]["name"], safe="")
        for tag, looks_after in (
            ("management", False), ("policymaker", False), ("monitoring", True), ("administrator", True),
        ):  # fmt: skip
            user = (tag, SECRET)
            seen = ["/", "foreign", "own"] if looks_after else ["own"]
            assert [row["name"] for row in await get(broker, "vhosts", user=user)] == seen
            for noun in ("queues", "bindings", "exchanges"):
                rows = await get(broker, noun, user=user)
                assert sorted({row["vhost"] for row in rows}) == seen, (tag, noun)
                status = 200 if looks_after else 401
                assert (await ask(broker, "GET", f"/api/{noun}/foreign", user=user)).status == status
            assert (await ask(broker, "GET", "/api/queues/foreign/q", user=user)).status == status
            assert (await ask(broker, "GET", "/api/vhosts/foreign", user=user)).status == status
            assert (await ask(broker, "GET", "/api/vhosts/foreign/connections", user=user)).status == status
            assert (await ask(broker, "GET", "/api/consumers/foreign", user=user)).status == status
            assert (await ask(broker, "GET", "/api/nodes", user=user)).status == status
            overview = await get(broker, "overview", user=user)
            assert overview["object_totals"]["queues"] == len(seen)
            assert overview["object_totals"]["connections"] == int(looks_after)
            assert ("node" in overview) is looks_after
            assert len(await get(broker, "connections", user=user)) == int(looks_after)
            assert len(await get(broker, "channels", user=user)) == int(looks_after)
            status = 200 if looks_after else 404
            assert (await ask(broker, "GET", f"/api/connections/{connection}", user=user)).status == status
            assert (await ask(broker, "GET", f"/api/connections/{connection}/channels", user=user)).status == status
        for path in ("overview", "queues", "connections", "exchanges", "vhosts", "whoami"):
            said = await ask(broker, "GET", f"/api/{path}", user=("nothing", SECRET))
            assert said.refusal == (401, "not_authorised", "Not management user"), path
