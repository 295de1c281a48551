"""The same conversations with RabbitMQ and with SlotMQ: replies, codes, texts, deliveries, remaining messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.broker_process import PROJECT, BrokerProcess
from tests.differential.everything import CONVERSATIONS
from tests.differential.intended import INTENDED, expected_of
from tests.differential.oracle import major_version, running_oracle
from tests.differential.play import RECORDED_3_10, RECORDED_4_3, play_all, read_recordings, recorded_names
from tests.differential.speaker import Transcript
from tests.differential.talk import Manner

pytestmark = [pytest.mark.slow]

SLOTMQ = Manner(quiet_ms=3, patience_ms=2000, probe=True)
RABBITMQ = Manner(quiet_ms=40, patience_ms=3000)
BY_3_10 = read_recordings(CONVERSATIONS.values(), RECORDED_3_10)
OTHERWISE_BY_4_3 = read_recordings(CONVERSATIONS.values(), RECORDED_4_3)
BY_4_3 = BY_3_10 | OTHERWISE_BY_4_3
EXPECTED = {name: expected_of(name, BY_4_3[name], BY_3_10.get(name)) for name in BY_4_3}


@pytest.fixture(scope="module")
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Transcript | str]:
    """Provide SlotMQ's answers in the conversations of the selected tests, played concurrently."""
    selected = [
        item
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module and "said" in item.fixturenames
    ]
    names = {str(item.callspec.params["name"]) for item in selected}
    process = BrokerProcess(tmp_path_factory.mktemp("differential") / "folder").start()
    expected = {name: EXPECTED[name][0] for name in names}
    try:
        heard = play_all([CONVERSATIONS[name] for name in names], process.address, SLOTMQ, expected=expected)
        assert process.alive, f"the broker died:\n{process.stderr()[-4000:]}"
        assert not process.errors(), process.errors()
        assert process.terminate() == 0
    finally:
        process.kill()
    return heard


def told(name: str, expected: Transcript, heard: Transcript) -> str:
    """Return the first step at which two transcripts differ, as text; an empty text when they are equal."""
    steps = [*map(str, CONVERSATIONS[name].steps), "contents"]
    for step, wanted, got in zip(steps, expected, heard, strict=False):
        if wanted != got:
            return "\n".join(
                [f"{name}, at `{step}`", *(f"  - {line}" for line in wanted if line not in got)]
                + [f"  + {line}" for line in got if line not in wanted]
                + ([f"  order: {wanted} / {got}"] if sorted(wanted) == sorted(got) else [])
            )
    return ""


def test_every_conversation_is_recorded() -> None:
    """Each conversation as it is now has RabbitMQ's recorded answers; CONTRIBUTING.md says how to record them."""
    assert sorted(set(CONVERSATIONS) - set(BY_3_10)) == []
    assert sorted(recorded_names(RECORDED_4_3) - set(OTHERWISE_BY_4_3)) == [], "recorded with other steps, or gone"
    assert sorted(name for name, said in OTHERWISE_BY_4_3.items() if said == BY_3_10.get(name)) == [], "kept twice"


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_slotmq_says_what_rabbitmq_says(name: str, said: Mapping[str, Transcript | str]) -> None:
    """SlotMQ's transcript is that of RabbitMQ 4.3, except for the intended differences."""
    heard = said[name]
    assert not isinstance(heard, str), f"{name}: {heard}"
    apart = told(name, EXPECTED[name][0], heard)
    assert not apart, f"\n- RabbitMQ, + SlotMQ\n{apart}"


@pytest.fixture(scope="module")
def oracle_said(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Mapping[str, Transcript], Mapping[str, Transcript | str]]]:
    """Provide the recording of the available RabbitMQ, and its answers now; skip where there is none."""
    try:
        with running_oracle(tmp_path_factory.mktemp("oracle") / "rabbitmq") as address:
            recorded = BY_3_10 if major_version(address) < 4 else BY_4_3
            asked = [CONVERSATIONS[name] for name in recorded]
            yield recorded, play_all(asked, address, RABBITMQ, expected=recorded, at_once=48)
    except FileNotFoundError as error:
        pytest.skip(f"{error}: SlotMQ is compared with the recorded answers alone")


@pytest.mark.torture
def test_rabbitmq_says_what_is_recorded(
    oracle_said: tuple[Mapping[str, Transcript], Mapping[str, Transcript | str]],
) -> None:
    """The recording equals the answers of the available RabbitMQ."""
    recorded, said_now = oracle_said
    apart = []
    for name, heard in said_now.items():
        apart.append(f"{name}: {heard}" if isinstance(heard, str) else told(name, recorded[name], heard))
    assert [one for one in apart if one] == []


def test_intended_differences_are_documented() -> None:
    """Each intended difference is in docs/compatibility.md, and occurs in at least one conversation."""
    page = (PROJECT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    used = {difference for _, differences in EXPECTED.values() for difference in differences}
    assert [one for one in INTENDED if one.documented not in page] == []
    assert [one for one in INTENDED if one not in used] == []


def test_every_line_of_the_page_has_all_columns() -> None:
    """Every line has all columns: otherwise the reason would appear in place of a broker's behaviour."""
    columns, wrong = 0, []
    for line in (PROJECT / "docs" / "compatibility.md").read_text(encoding="utf-8").splitlines():
        count = line.replace("\\|", "").count("|")
        columns = (columns or count) if count else 0
        wrong += [line] if count != columns else []
    assert wrong == []


def test_a_difference_would_be_seen(tmp_path: Path) -> None:
    """A transcript that differs in one line, or lacks one, is reported."""
    name = "queue/purge"
    recorded = BY_4_3[name]
    other = [list(lines) for lines in recorded]
    other[-1][-1] += "!"
    assert told(name, recorded, recorded) == ""
    assert "contents" in told(name, recorded, other)
    assert told(name, recorded, [lines[:-1] for lines in recorded])
