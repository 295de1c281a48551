"""Messages encoded in advance: their content, and what is written into them when they are sent."""

from __future__ import annotations

import pytest
from pamqp import commands, frame, header
from pamqp.body import ContentBody

from broker.perf.spool import CHUNK_BYTES, PASS_DIGITS, STAMP, Material, Spool


def messages(spool: Spool) -> list[tuple[commands.Basic.Publish, bytes]]:
    """Return the method and body of each message, parsed by pamqp."""
    found = []
    for at in range(0, spool.length, spool.stride):
        rest, body, method, size = bytes(spool.buffer[at : at + spool.stride]), b"", None, 0
        while rest:
            taken, _, value = frame.unmarshal(rest)
            rest = rest[taken:]
            if isinstance(value, commands.Basic.Publish):
                method = value
            elif isinstance(value, header.ContentHeader):
                size = value.body_size
            elif isinstance(value, ContentBody):
                body += value.value
        assert method is not None
        assert len(body) == size
        found.append((method, body))
    return found


def test_one_key_fills_a_whole_chunk() -> None:
    """A chunk is full even with few keys, so that each send is worth its system call."""
    spool = Spool(Material("x", ("key",), 16), 0, 1 << 30)
    assert CHUNK_BYTES <= spool.length < CHUNK_BYTES + spool.stride
    assert {method.routing_key for method, _ in messages(spool)[:10]} == {"key"}


def test_publishers_begin_with_different_keys() -> None:
    """Each publisher starts at another key and sends all keys."""
    keys = tuple(f"k{number}" for number in range(5))
    found = [method.routing_key for method, _ in messages(Spool(Material("", keys, 1), 3, 1 << 30))]
    assert found[:6] == ["k3", "k4", "k0", "k1", "k2", "k3"]


def test_room_bounds_a_spool_of_many_keys() -> None:
    """A spool is limited in bytes, however many keys there are, and has at least one message."""
    keys = tuple(f"{number:06d}" for number in range(1000))
    assert len(messages(Spool(Material("", keys, 100), 0, 10_000))) < 100
    assert len(messages(Spool(Material("", keys, 100), 0, 1))) == 1


def test_keys_of_several_lengths_are_refused() -> None:
    """Keys of different lengths are refused, because all messages have one stride."""
    with pytest.raises(ValueError, match="equally long"):
        Spool(Material("", ("a", "bb"), 0), 0, 1 << 20)


@pytest.mark.parametrize("size", [16, 100, 131_064, 131_065, 300_000])
def test_stamps_stand_at_the_beginning_of_the_body(size: int) -> None:
    """A body starts with the due time and the send time, in one frame or several."""
    spool = Spool(Material("e", ("key", "kez"), size), 0, 3 * size + 1000)
    spool.stamp_each(0, [11, 22], 33)
    bodies = [body for _, body in messages(spool)]
    assert [STAMP.unpack_from(body) for body in bodies[:2]] == [(11, 33), (22, 33)]
    assert all(len(body) == size for body in bodies)


def test_a_slice_is_stamped_as_a_whole() -> None:
    """Stamping a slice leaves the messages outside it unchanged."""
    spool = Spool(Material("e", ("key",), 20), 0, 1)
    spool = Spool(Material("e", tuple(f"{n:02d}" for n in range(9)), 20), 0, 8 * spool.stride)
    due_ns = 0x0102030405060708
    spool.stamp_all(spool.stride, 3 * spool.stride, due_ns)
    dues = [STAMP.unpack_from(body)[0] for _, body in messages(spool)]
    assert dues[:4] == [0, due_ns, due_ns, 0]


def test_small_bodies_carry_one_time_or_none() -> None:
    """A body of eight bytes has the due time only, a body of seven has none."""
    eight, seven = (Spool(Material("", ("k",), size), 0, 1) for size in (8, 7))
    for spool in (eight, seven):
        spool.stamp_each(0, [5], 6)
        spool.stamp_all(0, spool.stride, 7)
    assert messages(eight)[0][1] == (7).to_bytes(8, "big")
    assert messages(seven)[0][1] == bytes(7)


def test_renewed_keys_were_never_sent_before() -> None:
    """Each pass over the spool has new keys, also where a key is all zeros."""
    keys = tuple(f"r.{number:07d}.{PASS_DIGITS}" for number in range(3))
    spool = Spool(Material("000000", keys, 4, renewed=True), 0, 1)
    seen = []
    for _ in range(3):
        seen += [method.routing_key for method, _ in messages(spool)]
        spool.renew()
    assert seen == ["r.0000000.000000", "r.0000000.000001", "r.0000000.000002"]


def test_flags_are_on_the_wire() -> None:
    """The method has mandatory and the header has persistent exactly if configured."""
    for asked in (False, True):
        spool = Spool(Material("x", ("k",), 1, persistent=asked, mandatory=asked), 0, 1)
        assert messages(spool)[0][0].mandatory is asked
        taken, _, _ = frame.unmarshal(bytes(spool.buffer))
        _, _, content = frame.unmarshal(bytes(spool.buffer[taken : spool.stride]))
        assert isinstance(content, header.ContentHeader)
        assert content.properties.delivery_mode == (2 if asked else 1)
