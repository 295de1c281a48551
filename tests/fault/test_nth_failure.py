"""The n-th file call fails, for every n: no confirm follows it, and no confirmed message is lost."""

from __future__ import annotations

from itertools import count

import pytest

from broker.store.damage import StoreFailed
from tests.fault.faulty_files import NO_SPACE, FaultyFiles
from tests.fault.store_model import FOLDER, StoreModel


def life(model: StoreModel) -> None:
    """Run everything that calls files: recovery, appending, rolling, paging, checkpoints, compaction, deletion."""
    model.open()
    model.declare()
    model.declare()
    for _ in range(12):
        model.publish()
    model.commit()
    model.checkpoint()
    model.transient()
    model.work(30)
    model.settle_oldest()
    model.checkpoint()
    model.compact()
    model.checkpoint()
    model.delete()
    model.stop()
    model.open()
    model.adopt()
    for _ in range(5):
        model.publish()
    model.commit()


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("accident", ["kill", "power loss"])
@pytest.mark.parametrize(("reason", "partial"), [("Input/output error", False), (NO_SPACE, True)])
def test_nth_call_fails(reason: str, partial: bool, accident: str) -> None:
    """Whichever call fails, the store stops, refuses further work, and a restart has everything that was confirmed.

    A failed read does not stop the store when the data is known from elsewhere. A full disk does not stop it when only
    the zeros ahead of the log have no room.
    """
    for n in count(1):
        files = FaultyFiles(n, reason=reason, partial=partial, folder=FOLDER.parent)
        model = StoreModel(files, seed=4)
        try:
            life(model)
        except StoreFailed as error:
            assert files.failed, f"call {n}: {error} came from nowhere"
            assert reason in error.reason
        else:
            if not files.failed:
                break
            # Data that cannot be read once is found elsewhere: entries in the log, a record by a second read.
            reads = files.failed.startswith(("read ", "open ")) and not files.failed.startswith("open to write")
            zeros = files.failed.startswith("write zeros log/") and reason == NO_SPACE
            assert reads or zeros, f"call {n} ({files.failed}) failed and nobody noticed"
        if not model.opening and files.failed.startswith(("write log/", "sync log/")):
            confirmable = model.store.log.confirmable
            with pytest.raises(StoreFailed):
                model.store.log.take()
            assert model.store.log.confirmable == confirmable
        model.files = files.after_kill() if accident == "kill" else files.after_loss(n)
        model.open()
        model.verify()
    assert n > 150, f"the life made only {n} calls"
