"""The arguments of a request."""

from collections.abc import Callable
from typing import Any

import pytest

from broker.operations.request import OperationRefused, Request


def test_what_was_left_out_has_its_default() -> None:
    """Every reader except that of objects has a default for a missing argument."""
    request = Request({})
    assert request.text("vhost", "/") == "/"
    assert request.optional("vhost") is None
    assert request.integer("count", 3) == 3
    assert request.flag("if_empty") is False
    assert request.texts("tags") == []
    assert not request.has("tags")


@pytest.mark.parametrize(
    ("read", "value", "said"),
    [
        (lambda request: request.text("a"), None, "'a' should be a string"),
        (lambda request: request.text("a", "x"), 3, "'a' should be a string"),
        (lambda request: request.optional("a"), [], "'a' should be a string"),
        (lambda request: request.integer("a", 1, 0, 5), 6, "'a' should be an integer from 0 to 5"),
        (lambda request: request.integer("a", 1, 0, 5), True, "'a' should be an integer from 0 to 5"),
        (lambda request: request.integer("a", 1, 0, 5), 2.0, "'a' should be an integer from 0 to 5"),
        (lambda request: request.flag("a"), 1, "'a' should be true or false"),
        (lambda request: request.texts("a"), "x", "'a' should be a list of strings"),
        (lambda request: request.texts("a"), ["x", 1], "'a' should be a list of strings"),
        (lambda request: request.table("a"), None, "'a' should be a JSON object"),
        (lambda request: request.table("a"), [], "'a' should be a JSON object"),
    ],
)
def test_wrong_type_is_refused_by_name(read: Callable[[Request], Any], value: Any, said: str) -> None:
    """The error names the wrong argument."""
    with pytest.raises(OperationRefused) as refused:
        read(Request({"a": value}))
    assert str(refused.value) == said
