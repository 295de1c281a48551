"""The faults of a run. A function returns when its fault is over, with a description."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tests.cluster.checker.history import Rewind
from tests.cluster.checker.run import Fault, Run
from tests.cluster.checker.system import LEASE_MS
from tests.cluster.proxy import Point, Then
from tests.deadline import DEADLINE_S, wait_until

LEASE_S: Final = LEASE_MS / 1000
TRAP_S: Final = 2.0
"""How long a trap waits for its call; some calls are rare."""


def kill_node(run: Run) -> str:
    """Kill a node with -9, and start it again: at once, or after its lease."""
    name = run.random.choice(list(run.system.nodes))
    pause_s = run.random.choice((0.0, LEASE_S, 3 * LEASE_S))
    run.system.kill(name)
    time.sleep(pause_s)
    run.system.start()
    return f"{name} killed for {pause_s:g} s"


def cut_clients(run: Run) -> str:
    """Close the sockets of random clients."""
    members = [member for member in run.members if run.random.random() < 0.4]
    for member in members:
        member.cut()
    return f"{len(members)} clients cut"


def kill_all(run: Run) -> str:
    """Kill every node with -9, and start them again."""
    for name in run.system.nodes:
        run.system.kill(name)
    run.system.start()
    return "all nodes killed"


def freeze_node(run: Run) -> str:
    """Stop a node with SIGSTOP for longer than its lease, so that the others take over, and let it continue."""
    name = run.random.choice(list(run.system.nodes))
    pause_s = run.random.uniform(2, 4) * LEASE_S
    _freeze(run, name, pause_s)
    return f"{name} frozen for {pause_s:.2f} s"


def freeze_node_shortly(run: Run) -> str:
    """Stop a node with SIGSTOP for less than its lease, or about as long."""
    name = run.random.choice(list(run.system.nodes))
    pause_s = run.random.uniform(0.1, 1.2) * LEASE_S
    _freeze(run, name, pause_s)
    return f"{name} frozen for {pause_s:.2f} s"


def _freeze(run: Run, name: str, pause_s: float) -> None:
    run.system.freeze(name)
    time.sleep(pause_s)  # the duration of the fault, not a wait for an event
    run.system.thaw(name)


def restart_postgres(run: Run) -> str:
    """Stop or kill PostgreSQL, and start it again after a while."""
    postgres = run.system.database
    kills = run.random.random() < 0.5
    pause_s = run.random.choice((0.0, 0.0, LEASE_S, 3 * LEASE_S))
    postgres.kill() if kills else postgres.stop()
    time.sleep(pause_s)
    postgres.start()
    return f"PostgreSQL {'killed' if kills else 'stopped'} for {pause_s:g} s"


def crash_backend(run: Run) -> str:
    """Kill one backend of PostgreSQL with -9, after which the server ends all sessions and recovers."""
    pid = _backend(run)
    if pid:
        run.system.database.kill_backend(pid)
    return f"backend {pid} killed"


def end_backend(run: Run) -> str:
    """End one session by pg_terminate_backend, as an administrator does."""
    pid = _backend(run)
    run.system.sql(f"SELECT pg_terminate_backend({pid})")
    return f"backend {pid} terminated"


def cancel_call(run: Run) -> str:
    """Cancel whatever one session executes."""
    pid = _backend(run)
    run.system.sql(f"SELECT pg_cancel_backend({pid})")
    return f"backend {pid} cancelled"


def _backend(run: Run) -> int:
    mine = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
    pids = run.system.sql(f"SELECT pid FROM pg_stat_activity WHERE {mine}").split()
    return int(run.random.choice(pids)) if pids else 0


def cut_database(run: Run) -> str:
    """End all connections of a node to PostgreSQL."""
    name = run.random.choice(list(run.system.proxies))
    run.system.proxies[name].cut()
    return f"{name} cut from PostgreSQL"


def hold_database(run: Run) -> str:
    """Lose every packet between a node and PostgreSQL for a while, longer than the lease or not."""
    name = run.random.choice(list(run.system.proxies))
    pause_s = run.random.choice((0.5, 1.0, 3.0)) * LEASE_S
    run.system.proxies[name].hold()
    time.sleep(pause_s)
    run.system.proxies[name].release()
    return f"{name} without PostgreSQL for {pause_s:g} s"


CALLS: Final = {
    "commit": r"\bcommit\(",
    "lease": r"\blease\(",
    "give_back": r"\bgive_back\(",
    "chunk": r"\bFROM chunk_",
    "held": r"\bheld\(",
    "beat": r"\bbeat\(",
    "count_out": r"\bcount_out\(",
    "join": r"\bjoin\(",
    "notify": r"\bpg_notify\(",
}
"""The calls at which faults happen, by their SQL."""


def fault_at_call(run: Run) -> str:
    """Inject a random fault at a random point of a random call of a node."""
    name = run.random.choice(list(run.system.proxies))
    call, point = run.random.choice(list(CALLS)), run.random.choice(list(Point))
    return at_call(run, name, call, point, run.random.choice(list(AT_CALL)))


def at_call(run: Run, name: str, call: str, point: Point, outcome: str) -> str:
    """Inject the fault `outcome` at a point of a node's next call of this name."""
    proxy = run.system.proxies[name]
    action, then = AT_CALL[outcome]
    trap = proxy.trap(CALLS[call], point, then, lambda: action(run, name))
    sprung = trap.sprung.wait(TRAP_S)
    if not sprung:
        proxy.disarm(trap)
    if trap.sprung.is_set():
        trap.done.wait(DEADLINE_S)
    if name in run.system.frozen:
        time.sleep(run.random.uniform(0.5, 3) * LEASE_S)
        run.system.thaw(name)
    run.system.start()
    return f"{name}: {outcome} at {point.name} of {call}{'' if trap.sprung.is_set() else ' (not called)'}"


def dies_at_call(run: Run, call: str, point: Point) -> str:
    """Add a node, and kill it for good at a point of a call, while clients reconnect."""
    system = run.system
    name = f"mortal-{len(run.reports)}"
    system.add(name)
    system.start()
    trap = system.proxies[name].trap(CALLS[call], point, Then.CUT, lambda: system.lose(name))

    def is_called() -> bool:
        cut_clients(run)
        return trap.sprung.wait(TRAP_S / 4)

    wait_until(is_called, f"{name} calls {call}")
    trap.done.wait(DEADLINE_S)
    system.await_(lambda: system.sql(f"SELECT 1 FROM member WHERE node = '{name}'") == "", f"{name} is counted out")
    return f"{name} killed for good at {point.name} of {call}"


def _nothing(run: Run, name: str) -> None: ...


def _late(run: Run, name: str) -> None:
    time.sleep(2 * LEASE_S)


AT_CALL: Final[dict[str, tuple[Callable[[Run, str], None], Then]]] = {
    "connection cut": (_nothing, Then.CUT),
    "answer late": (_late, Then.FORWARD),
    "node killed": (lambda run, name: run.system.kill(name), Then.CUT),
    "node frozen": (lambda run, name: run.system.freeze(name), Then.FORWARD),
}

CLUSTER: Final[tuple[Fault, ...]] = (
    kill_node,
    kill_node,
    kill_all,
    freeze_node,
    freeze_node,
    freeze_node_shortly,
    cut_clients,
    restart_postgres,
    crash_backend,
    end_backend,
    cancel_call,
    cut_database,
    hold_database,
    *(fault_at_call,) * 8,
)


def restore_dump(run: Run) -> str:
    """Restore a recent dump while the nodes run and stay connected."""
    system = run.system
    began_at = time.monotonic()
    system.dump()
    copied_at = time.monotonic()
    run.await_progress()
    newest = int(system.sql("SELECT max(epoch) FROM member"))
    restoring_at = time.monotonic()
    system.restore_dump()

    def all_joined_again() -> bool:
        joined = system.sql(f"SELECT count(*) FILTER (WHERE epoch > {newest}), count(*) FROM member")
        return joined == f"{len(system.nodes)}|{len(system.nodes)}"

    system.await_(all_joined_again, f"all nodes join again, {run!r}")
    system.rewinds.append(Rewind(began_at, copied_at, restoring_at, time.monotonic()))
    return f"dump restored after {restoring_at - copied_at:.1f} s"


def restore_backup(run: Run) -> str:
    """Make a backup while the nodes run, and restore it after all of them were killed."""
    system = run.system
    began_at = time.monotonic()
    system.cluster("backup")
    copied_at = time.monotonic()
    run.await_progress()
    restoring_at = time.monotonic()
    for name in system.nodes:
        system.kill(name)
    system.cluster("restore")
    system.start()
    system.rewinds.append(Rewind(began_at, copied_at, restoring_at, time.monotonic()))
    return f"backup restored after {restoring_at - copied_at:.1f} s"


def promote_standby(run: Run) -> str:
    """Kill the primary, promote its synchronous standby, and start a new standby."""
    run.system.promote()
    return "standby promoted"


def random_fault(run: Run) -> str:
    """Inject a random fault of a cluster."""
    return run.random.choice(CLUSTER)(run)
