"""The source metrics count what they claim to count."""

from pathlib import Path
from typing import Any

from tools.house.paths import ROOT
from tools.house.sources import foreign_writes
from tools.house.tracer import Step, Tracer, files, functions, reentries


def write(root: Path, **modules: str) -> None:
    """Write modules of broker/core."""
    folder = root / "broker" / "core"
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)


def test_a_foreign_write_has_another_owner(tmp_path: Path) -> None:
    """Every kind of assignment to another object's field is found; own fields and those of new objects are not."""
    write(
        tmp_path,
        queue="""
class Queue:
    def __init__(self, other):
        self.length = other.length = 0
        self.slot.first += 1
        self.first, other.last = 1, 2

    @classmethod
    def make(cls):
        queue = cls(None)
        queue.length = 1
        def inside(consumer):
            consumer.room = 1
        return queue
""",
    )
    targets = [write.split()[-1] for write in foreign_writes(tmp_path)]
    assert targets == ["other.length", "self.slot.first", "other.last", "consumer.room"]


def test_a_write_through_a_setter_is_a_call(tmp_path: Path) -> None:
    """A property is a method of its owner, unless another class has a plain field of that name."""
    source = """
class Exchange:
    @property
    def alternate(self): ...
    @alternate.setter
    def alternate(self, name): ...
    @property
    def visited(self): ...
    @visited.setter
    def visited(self, count): ...

    @property
    def limit(self): ...
    @limit.setter
    def limit(self, count): ...

class Trie:
    limit: int

    def __init__(self):
        self.visited = 0

def reset(exchange):
    exchange.alternate = None
    exchange.visited = exchange.limit = 0
"""
    write(tmp_path, exchange=source)
    assert [write.split()[-1] for write in foreign_writes(tmp_path)] == ["exchange.visited", "exchange.limit"]


def test_an_object_of_another_library_is_set_up_from_outside(tmp_path: Path) -> None:
    """An object that a module's call has just made is left out, but no object of the broker."""
    source = """
import ssl
from broker.core.queue import Queue

def build():
    context = ssl.SSLContext()
    context.options = 1
    queue = Queue()
    queue.length = 1

def load():
    import ctypes
    library = ctypes.PyDLL(None)
    library.malloc.argtypes = ()
"""
    write(tmp_path, tls=source)
    assert [write.split()[-1] for write in foreign_writes(tmp_path)] == ["queue.length"]


def test_a_marked_write_is_left_out(tmp_path: Path) -> None:
    """A write with a reason on its line is not counted."""
    source = "def deliver(slot):\n    slot.length = 1  # hot: set directly\n    slot.first = 2\n"
    write(tmp_path, flusher=source)
    assert [write.split()[-1] for write in foreign_writes(tmp_path)] == ["slot.first"]


def test_objects_write_their_own_fields() -> None:
    """No more assignments without a mark write another object's field than did: pamqp's and uvicorn's objects have two.

    Lower the number when one goes; a line that must stay because a call would cost too much has a mark.
    """
    assert len(foreign_writes(ROOT)) <= 5


def test_a_path_has_the_calls_of_its_functions(tmp_path: Path) -> None:
    """The tracer records functions of the broker in order; resumed generators and lambdas are not calls."""
    write(
        tmp_path,
        numbers="def count():\n    for number in range(3):\n        yield number\n\ndef twice(n):\n    return 2 * n",
        total="def add():\n    return sum(map(lambda n: twice(n), count()))",
    )
    steps = traced(tmp_path)
    names = [(Path(step.file).stem, step.function, step.outermost) for step in steps]
    assert names == [("total", "add", True), ("numbers", "count", False), *[("numbers", "twice", False)] * 3]
    assert [step.function for step in functions(steps)] == ["add", "count", "twice"]
    assert reentries(steps) == 0
    assert files(steps) == ["broker/core/total.py", "broker/core/numbers.py"]


def test_a_file_entered_again_is_a_reentry() -> None:
    """Each return to a file counts as a re-entry, and calls within a file do not."""
    steps = [Step(file, "f", outermost=False) for file in "aabacba"]
    assert reentries(steps) == 3


def traced(root: Path) -> list[Step]:
    """Return the calls of `add`."""
    space: dict[str, Any] = {}
    for name in ("numbers", "total"):
        path = root / "broker" / "core" / f"{name}.py"
        exec(compile(path.read_text(), str(path), "exec"), space)
    with Tracer(root) as tracer:
        space["add"]()
    return tracer.steps
