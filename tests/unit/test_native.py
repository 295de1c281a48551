"""Code that `make lint` refuses in compiled modules, and in those that use them."""

import pytest

from tools import native

CLASSES = {"Engine"}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("messages[take() :]", [1]),
        ("messages[self.take() : 3]", [1]),
        ("messages[: len(take())]", [1]),
        ("messages[(at := at + 1) :]", [1]),
        ("messages[::step()]", [1]),
        ("messages[start + 1 : min(len(messages), limit)]", []),
        ("super().__init__(name, **more)", [1]),
        ("super().take(*all)", [1]),
        ("other.take(*all)", []),
        ("from abc import ABC", [1]),
        ("from abc import abstractmethod", []),
        ("import weakref", [1]),
        ("from weakref import WeakSet", [1]),
        ("from functools import cached_property, partial", [1]),
        ("from functools import partial", []),
        ("import copy", [1]),
        ("vars(engine)", [1]),
        ("engine.__dict__", [1]),
        ("engine.__class__ = Other", [1]),
        ("name = engine.__class__", []),
        ("Engine.turn = counted", [1]),
        ("Other.turn = counted", []),
        ("def walk(node):\n    walk(node.left)", [2]),
        ("def walk(node):\n    walk(node.left)  # depth: words of the key", []),
        ("def walk(self, node):\n    self.walk(node.left)", [2]),
        ("def walk(self, node):\n    node.walk()", []),
        ("def walk(self):\n    walk(self.left)", []),
        ("class Ring:\n    def __len__(self): ...", [1]),
        ("class Ring(Protocol):\n    def __len__(self): ...", []),
        ("class Ring:\n    def __len__(self): ...\n    def __bool__(self): ...", []),
        ("def go():\n    try: a()\n    except Engine as e: b()\n    except ValueError as e: c()", [4]),
        ("def go():\n    try: a()\n    except Engine as e: b()\n    except ValueError as other: c()", []),
        ("def go():\n    try: a()\n    except OSError as e: b()\n    except ValueError as e: c()", []),
        ("async def go():\n    try: a()\n    except OSError:\n        await b()\n        raise", [5]),
        ("async def go():\n    try: a()\n    except OSError as e:\n        await b()\n        raise e", []),
        ("async def go():\n    try: await a()\n    except OSError:\n        if b: raise\n        await c()", []),
    ],
)
def test_what_native_code_lacks_is_refused(source: str, lines: list[int]) -> None:
    """Each rule finds what it is for, in whatever form, and nothing else."""
    assert [line for line, _ in native.check(source, CLASSES)] == lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("x = 1\nfrom weakref import WeakSet", [2]),
        ("from weakref import WeakSet  # of event loops", []),
        ("Engine.turn = counted", [1]),
        ("class Counted(Engine): ...", [1]),
        ("class Counted(Engine[int]): ...", [1]),
        ("class Counted(Other): ...", []),
        ("from functools import cached_property", []),
    ],
)
def test_what_cannot_be_done_with_native_objects_is_refused(source: str, lines: list[int]) -> None:
    """An interpreted module may do what it likes with its own objects, not with native ones."""
    assert [line for line, _ in native.check_caller(source, CLASSES)] == lines


def test_classes_that_may_have_interpreted_subclasses_are_not_native() -> None:
    """The decorator of mypyc opens a class, and a protocol is not a class to inherit from."""
    sources = ["class A: ...", "@mypyc_attr(allow_interpreted_subclasses=True)\nclass B: ...", "class C(Protocol): ..."]
    assert native.classes_of(sources) == {"A"}
