"""Plays one conversation with a broker and records its answers after each step."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tests.broker_process import BrokerAddress
from tests.differential.link import Channel, Heard, Link
from tests.differential.steps import Conversation, Step
from tests.differential.talk import PROBE, UNASKED, Manner, Talk
from tests.differential.transcript import Names, line, ordered
from tests.differential.wire import METHODS

__all__ = ["Speaker", "Transcript"]

Transcript = list[list[str]]
"""A list of lines for each step, and a last one with the queues' contents."""

OBSERVER = "~"
_RESERVED: Final = ("channel_id", "known_hosts", "cluster_id")
_AS_SENT: Final = frozenset(("channel.open", "channel.close", "connection.close"))


def reserved(heard: Heard) -> dict[str, Any]:
    """Return the non-empty reserved fields of an answer; RabbitMQ leaves them empty."""
    return {name: heard.fields[name] for name in _RESERVED if heard.fields.get(name)}


class Speaker(Talk):
    """One conversation with one broker."""

    def __init__(self, conversation: Conversation, address: BrokerAddress, manner: Manner, prefix: str) -> None:
        super().__init__(address, manner)
        self.conversation = conversation
        self.names = Names(prefix)
        self._heard: list[tuple[str, int, Heard, str]] = []
        self._opening: set[tuple[str, int]] = set()
        self._steps: dict[str, Callable[[Step], Awaitable[None]]] = {
            "connect": self._connect,
            "drop": self._drop,
            "frames": self._frames,
            "publish": self._publish,
            "ack": self._settle_delivery,
            "nack": self._settle_delivery,
            "reject": self._settle_delivery,
            "together": self._together,
            "pause": self._pause,
            "until": self._until,
            "look": self._look,
        }

    async def play(self, expected: Transcript | None = None) -> Transcript:
        """Return the broker's answers; expected answers are waited for, but do not change the result."""
        transcript: Transcript = []
        try:
            for number, step in enumerate(self.conversation.steps):
                await self._steps.get(step.verb, self._call)(step)
                agreed = expected is not None and number < len(expected) and transcript == expected[:number]
                await self._quiet(len(expected[number]) if expected and agreed else 0)
                transcript.append(self._taken())
            await self._end_links()
            transcript.append(await self._contents())
        finally:
            for link in self.links.values():
                await link.close()
        return transcript

    def _taken(self) -> list[str]:
        lines = ordered(self._heard)
        self._heard = []
        return lines

    # ---- receiving -------------------------------------------------------------------------------------------------

    def noted(self, link: Link, heard: Heard) -> None:
        """Record a received method."""
        if heard.name == "channel.open-ok" and (link.letter, heard.channel) in self._opening and not reserved(heard):
            return
        for one in self._understood(link, heard):
            place = f"{link.letter}{one.channel}"
            remark = self._tag_remark(link, one)
            self._heard.append((link.letter, one.channel, one, line(place, one, self.names, remark)))

    def _understood(self, link: Link, heard: Heard) -> list[Heard]:
        """Answer a close, update the client's state, and return the methods to record."""
        channel = link.channels.setdefault(heard.channel, Channel())
        if heard.name == "gone":
            return [] if link.ending else [heard]
        if heard.name in ("connection.start", "connection.tune", "connection.open-ok") and not (
            link.verbose or reserved(heard)
        ):
            return []
        if heard.name in ("basic.ack", "basic.nack"):
            return self._confirmed(channel, heard)
        if heard.name == "channel.close":
            link.method(heard.channel, "channel.close-ok", {})
            link.channels[heard.channel] = Channel()
        elif heard.name == "channel.close-ok":
            link.channels[heard.channel] = Channel()
        elif heard.name == "channel.open-ok":
            channel.open = True
            return [Heard(heard.channel, heard.name, reserved(heard))]
        elif heard.name == "confirm.select-ok":
            channel.confirming = True
        elif heard.name == "connection.close":
            link.method(0, "connection.close-ok", {})
            link.ending = True
        elif heard.name == "connection.close-ok":
            link.ending = True
        elif heard.name == "connection.start":
            return [self._start(heard)]
        return [heard]

    def _start(self, heard: Heard) -> Heard:
        """Return connection.start with only the fields that a client relies on, so without product and version."""
        properties = heard.fields["server_properties"]
        plain = {
            "capabilities": properties.get("capabilities"),
            "mechanisms": " ".join(sorted(heard.fields["mechanisms"].split())),
            "locales": heard.fields["locales"],
        }
        return replace(heard, fields=plain)

    def _confirmed(self, channel: Channel, heard: Heard) -> list[Heard]:
        """Return one confirm for each message that this one covers."""
        tag, multiple = heard.fields["delivery_tag"], heard.fields["multiple"]
        tags = {one for one in channel.unconfirmed if one <= tag} if multiple else {tag}
        unknown = tags - channel.unconfirmed
        channel.unconfirmed -= tags
        found = [Heard(heard.channel, heard.name, {"delivery_tag": one, "tag": one}) for one in sorted(tags - unknown)]
        return found + [Heard(heard.channel, f"{heard.name} of no message", {"tag": one}) for one in unknown]

    def _tag_remark(self, link: Link, heard: Heard) -> str:
        """Record a delivery, and return its tag as a remark unless it is one more than the channel's last."""
        if heard.name not in ("basic.deliver", "basic.get-ok"):
            return ""
        channel, tag = link.channels[heard.channel], heard.fields["delivery_tag"]
        channel.delivered.append((tag, heard.body))
        follows = tag == channel.last_tag + 1
        channel.last_tag = tag
        return "" if follows else f"(tag {tag})"

    # ---- waiting

    async def _quiet(self, expected: int) -> None:
        """Wait until every expected answer has been received and nothing more arrives."""
        if expected:
            await self._wait(lambda: len(self._heard) >= expected, self.manner.patience_ms)
        if self.manner.probe:
            for link in list(self.links.values()):
                await self._probe(link)
        before = -1
        while before < len(self._all):
            before = len(self._all)
            await self._wait(partial(self._more_than, before), self.manner.quiet_ms)

    async def _probe(self, link: Link) -> None:
        """Make a round trip on a separate channel."""
        channel = link.channels.get(PROBE)
        if channel is not None and channel.open and link.alive and not link.ending:
            await self._ask(link, PROBE, "basic.qos", {})

    # ---- steps

    async def _place(self, step: Step) -> tuple[Link, int]:
        """Return the connection and channel of a step; open them first, the channel only if the step has no `!`."""
        found = re.fullmatch(r"(\w)(\d*)(!?)", step.at)
        assert found is not None, step
        number = int(found[2] or 0)
        as_it_is = bool(found[3]) or step.verb in _AS_SENT or number == 0
        link = self.links.get(found[1])
        if link is None or not link.alive or link.ending:
            if link is not None:
                await link.close()
                self._heard.append((found[1], 0, Heard(0, "again"), f"{found[1]} opened again"))
            link = await self._opened(found[1])
        if not as_it_is and not link.channels.setdefault(number, Channel()).open:
            await self._open_channel(link, number)
        return link, number

    async def _opened(self, letter: str) -> Link:
        link = Link(letter, self.heard)
        self.links[letter] = link
        await self._handshake(link, {})
        if self.manner.probe:
            await self._open_channel(link, PROBE)
        return link

    async def _open_channel(self, link: Link, number: int) -> None:
        self._opening.add((link.letter, number))
        await self._ask(link, number, "channel.open", {})
        self._opening.discard((link.letter, number))
        link.channels.setdefault(number, Channel()).open = True

    async def _connect(self, step: Step) -> None:
        link = Link(step.at, self.heard)
        self.links[step.at] = link
        options = self.names.real(dict(step.fields))
        link.verbose = bool(options.pop("verbose", False))
        await self._handshake(link, options)
        if link.alive and not link.ending:
            self._heard.append((link.letter, 0, Heard(0, "open"), f"{link.letter} is open"))

    async def _drop(self, step: Step) -> None:
        link = self.links[step.at]
        link.ending = True
        await link.close()

    async def _frames(self, step: Step) -> None:
        link, _ = await self._place(step)
        link.send(bytes.fromhex(step.fields["octets"]))

    async def _call(self, step: Step) -> None:
        """Send a method and wait for its answer, if it has one."""
        link, number = await self._place(step)
        if step.verb == "connection.close":
            link.ending = True
        fields = self.names.real(step.fields)
        method = METHODS[step.verb]
        if not method.synchronous or fields.get("nowait"):
            link.method(number, step.verb, fields)
            return
        if await self._ask(link, number, step.verb, fields) is None:
            self._heard.append((link.letter, number, Heard(number, "-"), f"{step.at} {step.verb}: no answer"))

    async def _together(self, step: Step) -> None:
        """Send several methods and messages in one write; all answers are recorded."""
        places = [await self._place(part) for part in step.parts]
        link = places[0][0]
        link.corked = bytearray()
        answers = 0
        for part, (of, number) in zip(step.parts, places, strict=True):
            assert of is link, f"{part} belongs to another connection"
            if part.verb == "publish":
                self._send_message(link, number, part)
            else:
                link.ending = link.ending or part.verb == "connection.close"
                fields = self.names.real(part.fields)
                link.method(number, part.verb, fields)
                answers += METHODS[part.verb].synchronous and not fields.get("nowait")
        before = len(self._all)
        link.uncork()

        def answered() -> bool:
            fresh = [one.name for of, one in self._all[before:] if of is link]
            return sum(name not in UNASKED for name in fresh) >= answers or "connection.close" in fresh

        await self._wait(answered, self.manner.patience_ms)

    async def _publish(self, step: Step) -> None:
        link, number = await self._place(step)
        channel = link.channels[number]
        self._send_message(link, number, step)
        if channel.confirming:
            await self._wait(
                lambda: not channel.unconfirmed or not link.alive or link.channels[number] is not channel,
                self.manner.patience_ms,
            )

    def _send_message(self, link: Link, number: int, step: Step) -> None:
        channel = link.channels[number]
        said = self.names.real(dict(step.fields))
        fields = {"exchange": said["exchange"], "routing_key": said["key"]}
        fields |= {flag: True for flag in ("mandatory", "immediate") if said.get(flag)}
        if channel.confirming:
            channel.published += 1
            channel.unconfirmed.add(channel.published)
        body = step.fields["body"].encode() * int(said.get("repeat", 1))
        link.publish(number, fields, said.get("properties", {}), body)

    async def _settle_delivery(self, step: Step) -> None:
        link, number = await self._place(step)
        fields = dict(step.fields)
        body = fields.pop("body").encode()
        tags = [tag for tag, seen in link.channels[number].delivered if seen == body]
        if not tags:
            self._heard.append((link.letter, number, Heard(number, "-"), f"{step.at} has not seen {body.decode()}"))
            return
        link.method(number, f"basic.{step.verb}", {"delivery_tag": tags[-1], **fields})

    async def _pause(self, step: Step) -> None:
        await asyncio.sleep(step.fields["ms"] / 1000)

    # ---- inspecting ------------------------------------------------------------------------------------------------

    async def _observer(self) -> Link:
        link = self.links.get(OBSERVER)
        if link is None or link.ending or not link.alive:
            if link is not None:
                await link.close()
            link = self.links[OBSERVER] = Link(OBSERVER, self.heard)
            link.muted = True
            await self._handshake(link, {})
        channel = link.channels.setdefault(1, Channel())
        if not channel.open:
            await self._ask(link, 1, "channel.open", {})
            channel.open = True
        return link

    async def _counted(self, name: str) -> tuple[int, int] | None:
        """Return a queue's numbers of ready messages and consumers, or None for a missing or exclusive queue."""
        link = await self._observer()
        heard = await self._ask(link, 1, "queue.declare", {"queue": self.names.real(name), "passive": True})
        assert heard is not None, f"no answer about {name}"
        if heard.name != "queue.declare-ok":
            return None
        return heard.fields["message_count"], heard.fields["consumer_count"]

    async def _until(self, step: Step) -> None:
        name, count = step.fields["queue"], step.fields["count"]
        end = time.monotonic() + max(self.manner.patience_ms, 4000) / 1000
        while (found := await self._counted(name)) is None or found[0] != count:
            if time.monotonic() > end:
                break
            await asyncio.sleep(0.02)
        self._note(f"{name} has {found and found[0]}")

    async def _look(self, step: Step) -> None:
        for name in step.fields["queues"]:
            await self._count_noted(name)

    async def _count_noted(self, name: str) -> bool:
        found = await self._counted(name)
        self._note(f"{name} is not there" if found is None else f"{name} has {found[0]} for {found[1]} consumers")
        return found is not None

    def _note(self, text: str) -> None:
        self._heard.append((OBSERVER, len(self._heard), Heard(0, "-"), text))

    async def _end_links(self) -> None:
        """Close the open connections cleanly, which requeues unacked messages."""
        ending = [link for link in self.links.values() if not link.muted and link.alive and not link.ending]
        for link in ending:
            link.ending = link.muted = True
        for link in ending:
            await self._ask(link, 0, "connection.close", {"reply_code": 200})
        await self._quiet(0)

    async def _contents(self) -> list[str]:
        """Return lines for the messages left in the queues, and delete all queues and exchanges of the conversation."""
        made_up = [f"${number + 1}" for number, name in enumerate(self.names.made_up) if ".gen-" in name]
        for name in [*self.conversation.queues, *made_up]:
            if await self._count_noted(name):
                await self._drain(name)
        link = await self._observer()
        for name in self.conversation.exchanges:
            await self._ask(link, 1, "exchange.delete", {"exchange": self.names.real(name)})
            link = await self._observer()
        link.ending = True
        await self._ask(link, 0, "connection.close", {"reply_code": 200})
        return self._taken()

    async def _drain(self, name: str) -> None:
        link, real = await self._observer(), self.names.real(name)
        while True:
            heard = await self._ask(link, 1, "basic.get", {"queue": real, "no_ack": True})
            if heard is None or heard.name != "basic.get-ok":
                break
            self._note(line(name, heard, self.names))
        if heard is not None and heard.name in ("channel.close", "connection.close"):
            self._note(f"{name} cannot be drained: {heard.fields['reply_text']}".replace(self.names.prefix, "~"))
            link = await self._observer()
        await self._ask(link, 1, "queue.delete", {"queue": real})
