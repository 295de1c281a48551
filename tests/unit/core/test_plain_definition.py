"""Definitions of policies as the command line takes them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from broker.core.policy.policy_definition import KEYS, check_definition, plain_definition


def test_sizes_and_times_take_units() -> None:
    """The result is RabbitMQ's form."""
    given = {"message-ttl": "7d", "expires": "30m", "max-length-bytes": "10GB", "max-length": 5}
    plain = plain_definition(given, operator=False)
    assert plain == {**given, "message-ttl": 604_800_000, "expires": 1_800_000, "max-length-bytes": 10**10}
    check_definition(plain, operator=False)
    assert plain_definition({"message-ttl": 60000}, operator=True) == {"message-ttl": 60000}


@pytest.mark.parametrize(
    ("definition", "operator", "reason"),
    [
        ({}, False, "a policy needs at least one key, such as max-length"),
        ({"max-lenght": 1}, False, "a policy has no key 'max-lenght'; did you mean max-length?"),
        ({"alternate-exchange": "x"}, True, "an operator policy has no key 'alternate-exchange'; there are message-"),
        ({"max-length": "a"}, False, "'max-length' should be a whole number from 0, not 'a'"),
        ({"max-length": True}, False, "'max-length' should be a whole number from 0, not true"),
        ({"message-ttl": "soon"}, False, "'message-ttl' should be a number of milliseconds, or a time such as 30s or"),
        ({"max-length-bytes": [1]}, True, "'max-length-bytes' should be a number of bytes, or a size such as 512MiB"),
        ({"overflow": "x"}, False, "'overflow' should be drop-head or reject-publish or reject-publish-dlx, not 'x'"),
        (
            {"delayed-retry-min": "soon"},
            False,
            "'delayed-retry-min' should be a number of milliseconds, or a time such",
        ),
        (
            {"delayed-retry-type": "x"},
            True,
            "'delayed-retry-type' should be all or failed or returned or disabled, not",
        ),
        ({"hold-until-header": "eta:x"}, False, "'hold-until-header' should be the name of a header, alone or with a"),
        ({"dead-letter-exchange": 1}, False, "'dead-letter-exchange' should be text, not 1"),
    ],
)
def test_the_reason_is_plain(definition: dict[str, Any], operator: bool, reason: str) -> None:
    """A reason names the key and what its value should be, and no term of Erlang."""
    with pytest.raises(ValueError, match=re.escape(reason)):
        plain_definition(definition, operator=operator)


def test_every_key_says_what_it_takes() -> None:
    """Only keys of RabbitMQ that have no effect here take anything."""
    free = {key for key, meaning in KEYS.items() if meaning == "anything"}
    without = ("ha-", "federation-", "queue-master", "shards", "routing-key", "remote-")
    assert all(key.startswith(without) for key in free)
