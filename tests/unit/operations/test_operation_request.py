"""The arguments of a request."""

from collections.abc import Callable
from dataclasses import MISSING, field, fields
from typing import Annotated, Any

import pytest

from broker.operations.request import OperationRefused, Range, Request, parameters, read
from broker.operations.table import OPERATIONS


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


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_reads_its_parameters(name: str) -> None:
    """A request without what is needed names it; one with it is read with the defaults of the rest."""
    kind = OPERATIONS[name].parameters
    needed: dict[str, Any] = {
        field.name: {} if "dict" in str(field.type) else "text"
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    }
    asked = read(kind, Request(needed))
    assert {name: getattr(asked, name) for name in needed} == needed
    for one in needed:
        with pytest.raises(OperationRefused, match=f"'{one}' should be a"):
            read(kind, Request({name: value for name, value in needed.items() if name != one}))


def test_parameters_are_read_by_their_types() -> None:
    """Texts, flags, lists, tables and integers of a range, each with or without a default."""

    @parameters
    class Everything:
        text: str = "t"
        optional: str | None = None
        flag: bool = False
        texts: list[str] = field(default_factory=list)
        some: list[str] | None = None
        table: dict[str, Any] = field(default_factory=dict)
        count: Annotated[int, Range(1, 5)] = 2
        limit: Annotated[int | None, Range(1)] = None

    assert read(Everything, Request({})) == Everything()
    given: dict[str, Any] = {
        "text": "x",
        "optional": "y",
        "flag": True,
        "texts": ["a"],
        "some": [],
        "table": {"b": 1},
        "count": 5,
    }
    assert read(Everything, Request({**given, "limit": 1})) == Everything(**given, limit=1)
    wrongs: list[dict[str, Any]] = [{"count": 6}, {"limit": 0}, {"some": "a"}, {"flag": "true"}, {"table": []}]
    for wrong in wrongs:
        with pytest.raises(OperationRefused):
            read(Everything, Request(wrong))
