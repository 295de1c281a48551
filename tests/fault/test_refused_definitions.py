"""Imports on a disk that refuses the definitions: none holds the broker, or its start, for ever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Container
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.administration.definitions import Draft
from broker.administration.definitions_import import DefinitionsImport
from broker.amqp.errors import NotNow
from broker.core.definitions.reading import NotWritten, OutcomeUnknown, read_document
from broker.server import BrokerServer
from broker.store.definitions_file import DefinitionsFile
from broker.store.files import Files
from tests.deadline import wait_until_async
from tests.gated_files import NO_SPACE, GatedFiles
from tests.in_process import running_broker

pytestmark = pytest.mark.fault

DOCUMENT: Any = {
    "vhosts": [{"name": "made"}],
    "queues": [{"vhost": vhost, "name": "q", "durable": True, "arguments": {}} for vhost in ("/", "made")],
}
END = 2  # the number of the write that ends the first import; 0 is that of the start
ALWAYS = 1 << 20


def full_disk(refused: Container[int]) -> GatedFiles:
    """Return files that refuse these writes of the definitions until they are told otherwise."""
    writes = count()
    files = GatedFiles("rename", lambda path: path.name == "definitions" and next(writes) in refused)
    files.fails = NO_SPACE
    return files


def importing(broker: BrokerServer) -> DefinitionsImport:
    """Return an import of the document."""
    return DefinitionsImport(
        read_document(DOCUMENT), broker.administration, broker._definitions.rehearsal, lambda _progress: None
    )


def stored(folder: Path) -> dict[str, Any]:
    """Return the stored definitions."""
    found = DefinitionsFile(Files(), folder).read()
    assert found is not None
    return found


def reasons(events: list[Any], name: str) -> list[str]:
    """Return the reasons of an event."""
    return [event["reason"] for event in events if event["event"] == name]


@pytest.mark.parametrize("written", ["by itself", "with another change", "with another import", "at the stop"])
async def test_an_import_whose_end_is_refused(tmp_path: Path, written: str) -> None:
    """It is undone, refused and logged once; its mark and its vhost leave the file with the next write."""
    files = full_disk(range(END, ALWAYS))
    with capture_logs() as events:
        async with running_broker(tmp_path, files) as broker:
            administration = broker.administration
            with pytest.raises(NotWritten, match=f"^nothing was changed: .*{NO_SPACE}"):
                await importing(broker).run()
            assert not broker.vhosts["/"].queues
            assert "importing" in stored(tmp_path)
            with pytest.raises(NotWritten):  # it holds no other change
                await administration.change(lambda draft: draft.add_vhost("other", {}))
            files.fails = ""
            if written == "with another change":
                await administration.change(lambda draft: draft.set_facts("/", {"description": "d"}))
                assert administration.importing is None
            elif written == "with another import":
                await importing(broker).run()
                assert [list(vhost.queues) for vhost in broker.vhosts.values()] == [["q"], ["q"]]
            elif written == "by itself":
                await wait_until_async(lambda: administration.importing is None, "the mark is dropped")
                assert list(broker.vhosts) == ["/"]
            assert broker.failure is None
    assert "importing" not in stored(tmp_path)
    assert [row["name"] for row in stored(tmp_path)["vhosts"]] == (["/", "made"] if "import" in written else ["/"])
    assert len(reasons(events, "definitions.import_waits")) == 1
    assert len(reasons(events, "definitions.not_written")) == 1


async def test_a_refused_import_on_a_disk_that_stays_full(tmp_path: Path) -> None:
    """A stop that cannot undo it in the file says so, because the next start completes it."""
    with capture_logs() as events:
        async with running_broker(tmp_path, full_disk(range(END, ALWAYS))) as broker:
            with pytest.raises(NotWritten):
                await importing(broker).run()
    assert len(reasons(events, "definitions.not_undone")) == 1
    async with running_broker(tmp_path) as again:
        assert [list(vhost.queues) for vhost in again.vhosts.values()] == [["q"], ["q"]]


async def test_an_import_whose_end_is_refused_once(tmp_path: Path) -> None:
    """It ends as if nothing had happened."""
    with capture_logs() as events:
        async with running_broker(tmp_path, full_disk([END])) as broker:
            run = importing(broker)
            await run.run()
            assert run.outcome()["made"] == {"vhosts": 1, "queues": 2}
            assert [list(vhost.queues) for vhost in broker.vhosts.values()] == [["q"], ["q"]]
    assert "importing" not in stored(tmp_path)
    assert len(reasons(events, "definitions.import_waits")) == 1


async def test_a_stop_while_an_import_waits(tmp_path: Path) -> None:
    """The stop does not wait for space, and the next start finishes the import."""
    with capture_logs() as events:
        async with running_broker(tmp_path, full_disk(range(END, ALWAYS))) as broker:
            run = asyncio.ensure_future(importing(broker).run())
            await wait_until_async(lambda: reasons(events, "definitions.import_waits"), "the import waits")
            await broker.administration.close()
            assert list(broker.vhosts["/"].queues) == ["q"], "it is not undone"
            with pytest.raises(OutcomeUnknown, match=r"^the next start finishes the import: "):
                await run
    async with running_broker(tmp_path) as again:
        assert [list(vhost.queues) for vhost in again.vhosts.values()] == [["q"], ["q"]]
    assert "importing" not in stored(tmp_path)


async def test_a_refusal_is_logged_again_after_a_write(tmp_path: Path) -> None:
    """One line for each outage."""
    with capture_logs() as events:
        async with running_broker(tmp_path, full_disk([1, 2, 4])) as broker:
            for number in range(4):
                with suppress(NotWritten):
                    await broker.administration.change(partial(Draft.add_vhost, name=f"v{number}", facts={}))
            assert list(broker.vhosts) == ["/", "v2"]
    assert len(reasons(events, "definitions.not_written")) == 2


async def test_a_start_whose_import_is_refused(tmp_path: Path) -> None:
    """The start ends with the reason, also one that goes on with an earlier import; one with space finishes it."""
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(DOCUMENT))
    server = {"load_definitions": str(file)}
    folder = tmp_path / "d"
    with capture_logs() as events:
        for refused in (range(END, ALWAYS), range(ALWAYS), range(1, ALWAYS)):
            with pytest.raises(NotNow, match=f"^cannot start: nothing was changed: .*{NO_SPACE}$"):
                async with running_broker(folder, full_disk(refused), server=server):
                    pass
            assert "importing" in stored(folder)
    assert len(reasons(events, "definitions.not_written")) == 3
    assert not reasons(events, "definitions.import_waits")
    async with running_broker(folder) as broker:
        assert [list(vhost.queues) for vhost in broker.vhosts.values()] == [["q"], ["q"]]
    assert "importing" not in stored(folder)
