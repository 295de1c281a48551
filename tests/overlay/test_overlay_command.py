"""`slotmq overlay` on running sites."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from broker.cli.main import main
from tests.overlay.sites import Site, X, free_port, held_by, overlay, reached, wanted
from tests.tap_files import channel_of, publish


async def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Run a command; return its exit code and its output."""
    code = await asyncio.to_thread(main, ["overlay", *words])
    out = capsys.readouterr()
    return code, out.out + out.err


async def test_commands_show_explain_and_forget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Peers, patterns, vectors, counts and lag; where a key goes and why; a leaf that is gone is forgotten."""
    ports = [free_port(), free_port()]
    middle = (
        overlay("m", "middle", ("site-l", "l", 0), ("site-b", "b", ports[1])),
        overlay("l", "site-l", ("middle", "m", 0), leaf=True),
    )
    far = Site(ports[1], overlay("b", "site-b", ("middle", "m", 0), leaf=True)).broker(tmp_path / "b")
    server = {"port": ports[0], "control_socket": True}
    async with Site(ports[0], *middle).broker(tmp_path / "a", server=server) as near, channel_of(near) as channel:
        folder = ("--data-dir", str(tmp_path / "a"))
        async with far, channel_of(far) as other:
            exchange = await channel.declare_exchange("x", "topic", durable=True)
            await (await channel.declare_queue("here", durable=True)).bind("x", "h.#")
            await other.declare_exchange("x", "topic", durable=True)
            await (await other.declare_queue("q", durable=True)).bind("x", "a.*")
            driver = held_by(near).driver
            assert driver is not None
            await reached(lambda: wanted(near, "middle") == ["a.*"], "the binding")
            await publish(exchange, ["a.1", "a.2", "h.1"])
            await reached(lambda: far.queue("q").ready == 2, "the messages")
            await reached(lambda: driver.leaf.sources[X].needed_from() > driver.leaf.sources[X].last, "the acks")
            code, text = await said(capsys, *folder, "--json")
            inner, leaf = json.loads(text)
            assert code == 0
            assert [(link["peer"], link["state"]) for link in inner["links"]] == [("l", "up"), ("b", "up")]
            assert [row["leaf"] for row in inner["leaves"]] == ["l", "b"]
            assert (inner["matched"], inner["flooded"]) == (2, 0)
            (stream,) = leaf["streams"]
            assert (stream["exchange"], stream["lag"], list(stream["vector"])) == ("x", 0, ["b"])
            assert [row["patterns"] for row in leaf["patterns"]] == [["a.*"]]
            code, text = await said(capsys, *folder)
            assert code == 0
            assert "leaf l of tree node site-l" in text
            assert "2 messages forwarded as wanted" in text
            code, text = await said(capsys, "explain", "a.7", *folder)
            assert [line.split("\t")[1:] for line in text.splitlines() if line.startswith("x\t")] == [
                ["m", "site-l", "no", "nobody there wants it", "l"],
                ["m", "site-b", "yes", "wanted: a.*", "b"],
                ["l", "here", "no", "no queue here is bound", ""],
                ["l", "middle", "yes", "wanted: a.*", "b"],
            ]
            code, text = await said(capsys, "explain", "h.1", "--exchange", "x", *folder, "--json")
            assert [row["goes"] for row in json.loads(text)] == [True, False, True, False]
            code, text = await said(capsys, "forget", "b", *folder)
            assert (code, text) == (1, "slotmq: 'b' is not away: a link leads to it\n")
        await publish(exchange, ["a.3"])
        await reached(lambda: driver.leaf.sources[X].needed_from() <= driver.leaf.sources[X].last, "the lag")
        assert (await said(capsys, "forget", "b", *folder))[0] == 0
        await reached(lambda: "b" not in driver.leaf.sources[X].vector, "the end of the leaf")
        code, text = await said(capsys, "forget", "nobody", *folder)
        assert (code, text) == (1, "slotmq: no leaf 'nobody' is known here\n")
