"""The choice of reads that are acknowledged at once."""

from __future__ import annotations

from broker.net.transport import DELAYED_MS, PROMPT_ACKS, WAITS, PromptAck

LATER_MS = DELAYED_MS + 6


def pairs(prompt_ack: PromptAck, began_ms: int, waits_ms: list[int]) -> int:
    """Publish, wait and get, once for each wait, and return how many reads were acknowledged at once."""
    now_ms, prompt = began_ms, 0
    for wait_ms in waits_ms:
        prompt += prompt_ack.after_read(now_ms, answered=False, amid_message=False)
        now_ms += wait_ms
        prompt += prompt_ack.after_read(now_ms, answered=True, amid_message=False)
    return prompt


def test_a_client_that_waited_gets_prompt_acknowledgements() -> None:
    """After a wait a thousand reads are acknowledged; then the client has to be seen waiting again."""
    prompt_ack = PromptAck()
    assert pairs(prompt_ack, 1000, [LATER_MS] * WAITS) == 0
    assert pairs(prompt_ack, 2000, [0] * (PROMPT_ACKS + 50)) == PROMPT_ACKS
    assert pairs(prompt_ack, 3000, [LATER_MS] * WAITS) == 0
    assert pairs(prompt_ack, 4000, [0]) == 1


def test_a_read_that_ends_amid_a_message_is_acknowledged() -> None:
    """No wait is needed for that, and a pause after it says nothing about acknowledgements."""
    prompt_ack = PromptAck()
    for now_ms in range(1000, 3000, LATER_MS):
        assert prompt_ack.after_read(now_ms, answered=False, amid_message=True)
        assert not prompt_ack.after_read(now_ms, answered=True, amid_message=True)
    assert pairs(prompt_ack, 4000, [0] * 20) == 0


def test_other_pauses_cause_few_system_calls() -> None:
    """A pause after an answer and a very long one are not waits for us; single pauses soon are none."""
    prompt_ack = PromptAck()
    for now_ms in range(1000, 3000, LATER_MS):
        assert not prompt_ack.after_read(now_ms, answered=True, amid_message=False)
    assert pairs(prompt_ack, 90_000, [5000] * 20) == 0
    assert pairs(prompt_ack, 900_000, [0] * 100) == 0
    assert pairs(prompt_ack, 4000, [LATER_MS, 0, LATER_MS, 1, LATER_MS, DELAYED_MS - 1] * 20) < 5


def test_a_client_that_waits_for_something_else_costs_few_system_calls() -> None:
    """At most one in forty reads of a client that publishes every 44 ms is acknowledged at once."""
    prompt_ack = PromptAck()
    reads = 10_000
    prompt = sum(
        prompt_ack.after_read(1000 + LATER_MS * read, answered=False, amid_message=False) for read in range(reads)
    )
    assert 0 < prompt < reads // 40
