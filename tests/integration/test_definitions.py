"""Definitions: imported at the start and by command, as a whole or not at all, and exported."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from structlog.testing import capture_logs

from broker.administration import definitions_import, topology_entry
from broker.amqp.errors import ChannelError
from broker.cli.control_client import Unanswered, ask
from broker.core.definitions.reading import BadDefinitions
from broker.core.postponed import Postponed
from broker.core.topology.changes import Journal
from broker.core.topology.queues import Queues
from broker.core.vhost import Vhost
from broker.server import BrokerServer
from broker.settings import Settings
from broker.store.damage import StoreFailed
from tests.gated_files import IO_ERROR, NO_SPACE, GatedFiles
from tests.in_process import WITHOUT_HTTP, client_of, running_broker, told

DEEP: Any = json.loads("[" * 100 + "]" * 100)
HASH_OF_MP = "gKBxV5GElWEw0BmG5F7hNKURQurqs5OMjbOO2AZ4ttIz3wCa"  # "mp", hashed by RabbitMQ 3.10.8

# As RabbitMQ 3.10.8 exports it: no `internal`, operator policies among the parameters, and lists of pairs as their
# definitions.
EXPORTED: dict[str, Any] = {
    "rabbit_version": "3.10.8",
    "rabbitmq_version": "3.10.8",
    "users": [
        {"name": "mu", "password_hash": HASH_OF_MP, "hashing_algorithm": "rabbit_password_hashing_sha256",
         "tags": ["management"], "limits": {}},
    ],
    "vhosts": [{"name": "m", "limits": [], "component": "k", "metadata": {"description": "of the test", "tags": []}}],
    "permissions": [{"user": "mu", "vhost": "m", "configure": "^m", "write": ".*", "read": ".*"}],
    "topic_permissions": [{"user": "mu", "vhost": "m", "exchange": "mx", "write": "^a", "read": ".*"}],
    "parameters": [
        {"component": "operator_policy", "name": "op", "vhost": "m",
         "value": {"apply-to": "all", "definition": [["max-length", 5]], "pattern": "^m", "priority": 0}},
        {"component": "shovel", "name": "s", "vhost": "m", "value": {"src-uri": "amqp://"}},
    ],
    "global_parameters": [{"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-1"}],
    "policies": [
        {"vhost": "m", "name": "pp", "pattern": "^m", "apply-to": "queues", "definition": {"message-ttl": 60000},
         "priority": 2},
    ],
    "queues": [
        {"name": "mq", "vhost": "m", "durable": True, "auto_delete": False, "type": "classic",
         "arguments": {"x-dead-letter-exchange": "mx", "x-message-ttl": 100000}},
        {"name": "mqq", "vhost": "m", "durable": True, "auto_delete": False, "type": "quorum",
         "arguments": {"x-queue-type": "quorum"}},
    ],
    "exchanges": [
        {"name": "mx", "vhost": "m", "type": "topic", "durable": True, "auto_delete": False,
         "arguments": {"alternate-exchange": "mf"}},
        {"name": "mf", "vhost": "m", "type": "fanout", "durable": True, "auto_delete": False, "arguments": {}},
    ],
    "bindings": [
        {"source": "mx", "vhost": "m", "destination": "mq", "destination_type": "queue", "routing_key": "a.#",
         "arguments": {}},
        {"source": "mx", "vhost": "m", "destination": "mf", "destination_type": "exchange", "routing_key": "b",
         "arguments": {"q": 1}},
        {"source": "amq.headers", "vhost": "m", "destination": "mq", "destination_type": "queue", "routing_key": "",
         "arguments": {"x-match": "all", "n": 1}},
    ],
}  # fmt: skip


async def take(broker: BrokerServer, definitions: Any, **arguments: Any) -> Any:
    """Import a document."""
    return await told(broker, "import_definitions", definitions=definitions, **arguments)


def changed(part: str, number: int, **fields: Any) -> dict[str, Any]:
    """Return the document with other fields in one entry."""
    document: dict[str, Any] = json.loads(json.dumps(EXPORTED))
    document[part][number] |= fields
    return document


def sorted_rows(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document whose lists are sorted."""
    return {
        part: sorted(rows, key=lambda row: json.dumps(row, sort_keys=True)) if isinstance(rows, list) else rows
        for part, rows in document.items()
    }


async def check_taken(broker: BrokerServer) -> None:
    """Assert that everything in the document exists and works."""
    queues = {row["name"]: row for row in await told(broker, "list_queues", vhost="m")}
    assert queues["mq"]["arguments"] == {"x-dead-letter-exchange": "mx", "x-message-ttl": 100000}
    assert (queues["mq"]["policy"], queues["mq"]["operator_policy"]) == ("pp", "op")
    assert queues["mqq"]["arguments"] == {"x-queue-type": "quorum"}
    bindings = [row for row in await told(broker, "list_bindings", vhost="m") if row["source"]]
    found = [(b["source"], b["destination_type"], b["destination"], b["routing_key"], b["arguments"]) for b in bindings]
    assert sorted(found, key=str) == [
        ("amq.headers", "queue", "mq", "", {"n": 1, "x-match": "all"}),
        ("mx", "exchange", "mf", "b", {"q": 1}),
        ("mx", "queue", "mq", "a.#", {}),
    ]
    user = {"name": "mu", "tags": ["management"], "of_settings": False, "limits": {}}
    assert user in await told(broker, "list_users")
    connection = await aio_pika.connect(
        host="127.0.0.1", port=broker.listener.port, login="mu", password="mp", virtualhost="m"
    )
    channel = await connection.channel()
    await (await channel.get_exchange("mx")).publish(aio_pika.Message(b"1"), "a.b")
    assert (await (await channel.get_queue("mq")).get(no_ack=True)).body == b"1"
    await connection.close()


async def test_rabbitmqs_export_is_taken_and_outlives_a_restart(tmp_path: Path) -> None:
    """Users log in with RabbitMQ's hash; rights, policies, queues and bindings of both kinds exist."""
    async with running_broker(tmp_path) as broker:
        answer = await take(broker, EXPORTED)
        assert answer["skipped"] == []
        assert answer["imported"]["bindings"] == 3
        await check_taken(broker)
    async with running_broker(tmp_path) as broker:
        await check_taken(broker)
        assert ("m", "shovel", "s") in broker.administration.parameters
        facts = broker.administration.vhost_facts["m"]
        assert (facts["metadata"]["description"], facts["component"]) == ("of the test", "k")


async def test_an_import_says_what_came_of_each_entry(tmp_path: Path) -> None:
    """An import lists what was created, changed or already there, and names entries that are kept without effect."""
    document = changed("users", 0)
    document["exchanges"].append({**document["exchanges"][0], "name": "amq.direct", "type": "direct"})
    document["permissions"].append({**document["permissions"][0], "user": "root"})
    document["policies"].append(
        {"vhost": "m", "name": "ha", "pattern": "x", "definition": {"ha-mode": "all", "expires": 5}}
    )
    document["streams_of_tomorrow"] = [{"name": "s"}]
    ours: Any = {"default_user": "", "users": {"root": "secret"}}
    with capture_logs() as events:
        async with running_broker(tmp_path, auth=ours) as broker:
            answer = await take(broker, document)
            assert answer["made"] == {
                "users": 1, "vhosts": 1, "permissions": 1, "topic_permissions": 1, "policies": 3, "parameters": 1,
                "global_parameters": 1, "exchanges": 2, "queues": 2, "bindings": 3,
            }  # fmt: skip
            assert (answer["changed"], answer["present"]) == ({}, {"exchanges": 1})
            assert answer["without_effect"] == [
                "permission of a user of the settings: root, m",
                "parameter shovel 's' in vhost 'm'",
                "global parameter 'internal_cluster_id'",
                "ha-mode of policy 'ha' in vhost 'm'",
                "the list 'streams_of_tomorrow', which is not known here and is not kept",
            ]
            document["policies"][0]["priority"] = 9
            answer = await take(broker, document)
            assert answer["made"] == {}
            assert answer["changed"] == {"policies": 1}
            assert answer["present"] == {
                "users": 1, "vhosts": 1, "permissions": 1, "topic_permissions": 1, "policies": 2, "parameters": 1,
                "global_parameters": 1, "exchanges": 3, "queues": 2, "bindings": 3,
            }  # fmt: skip
    said = [event for event in events if event["event"] == "definitions.imported"]
    assert [event["made"].get("queues") for event in said] == [2, None]
    assert said[1]["changed"] == {"policies": 1}
    assert said[0]["without_effect"] == answer["without_effect"]


async def test_second_import_changes_nothing(tmp_path: Path) -> None:
    """A second import of the same document finds that everything exists."""
    async with running_broker(tmp_path) as broker:
        await take(broker, EXPORTED)
        before = await told(broker, "export_definitions")
        again = await take(broker, EXPORTED)
        assert (again["made"], again["changed"]) == ({}, {})
        assert sorted_rows(await told(broker, "export_definitions")) == sorted_rows(before)


async def test_export_makes_the_same_broker_elsewhere(tmp_path: Path) -> None:
    """The export of one broker equals the export of another that imported it, including a password hash of ours."""
    async with running_broker(tmp_path / "a") as broker:
        await take(broker, EXPORTED)
        await told(broker, "add_user", name="ours", password="secret", tags=["monitoring"])
        await told(broker, "set_permission", user="ours", vhost="/", configure="", write="", read="")
        exported = await told(broker, "export_definitions")
    async with running_broker(tmp_path / "b") as broker:
        await take(broker, exported)
        assert sorted_rows(await told(broker, "export_definitions")) == sorted_rows(exported)
        connection = await aio_pika.connect(f"amqp://ours:secret@127.0.0.1:{broker.listener.port}/")
        await connection.close()


async def test_export_of_one_vhost_goes_into_another(tmp_path: Path) -> None:
    """Entries of one vhost's export name no vhost, so they belong to the vhost of the import."""
    async with running_broker(tmp_path) as broker:
        await take(broker, EXPORTED)
        of_one = await told(broker, "export_definitions", vhost="m")
        assert not [row for rows in of_one.values() if isinstance(rows, list) for row in rows if "vhost" in row]
        await told(broker, "add_vhost", name="n")
        await take(broker, of_one, vhost="n")
        assert await told(broker, "export_definitions", vhost="n") == of_one


async def test_transient_and_owned_are_not_exported(tmp_path: Path) -> None:
    """Transient objects, exclusive queues and objects that the broker made for itself are not exported."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("transient")
        await channel.declare_queue("owned", exclusive=True)
        durable = await channel.declare_queue("durable", durable=True)
        exchange = await channel.declare_exchange("transient-x")
        await durable.bind(exchange, "k")
        exported = await told(broker, "export_definitions")
        assert [row["name"] for row in exported["queues"]] == ["durable"]
        assert exported["exchanges"] == exported["bindings"] == []


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (changed("permissions", 0, user="nobody"), "permissions[0]: User 'nobody' does not exist"),
        (changed("permissions", 0, read="("), "permissions[0]: regular expression '(' is invalid"),
        (changed("topic_permissions", 0, write="["), "topic_permissions[0]: regular expression '[' is invalid"),
        (changed("permissions", 0, vhost="other"), "permissions[0]: Virtual host 'other' does not exist"),
        (changed("users", 0, password_hash="AAAA"), "users[0]: "),
        (changed("users", 0, hashing_algorithm="rot13"), "users[0]: "),
        (changed("policies", 0, pattern="("), "policies[0] 'pp': pattern should be regular expression"),
        (changed("policies", 0, definition={"max-length": "x"}), "policies[0] 'pp': "),
        (changed("exchanges", 1, type="bogus"), "exchanges[1]: PRECONDITION_FAILED - unknown exchange type 'bogus'"),
        (changed("queues", 1, arguments={"x-message-ttl": "x"}), "queues[1]: PRECONDITION_FAILED - invalid arg"),
        (changed("queues", 1, arguments={"x-queue-type": "stream"}), "queues[1]: PRECONDITION_FAILED - invalid arg"),
        (changed("queues", 1, name="mq"), "queues[1]: PRECONDITION_FAILED - inequivalent arg"),
        (changed("bindings", 0, routing_key="#.a.#.b.#"), "bindings[0]: PRECONDITION_FAILED"),
        (changed("bindings", 2, arguments={"x-match": "bogus"}), "bindings[2]: PRECONDITION_FAILED"),
    ],
)
async def test_one_bad_entry_refuses_the_whole_document(tmp_path: Path, document: Any, said: str) -> None:
    """A bad entry is named with the text that a client would get, and the broker is unchanged."""
    async with running_broker(tmp_path) as broker:
        before = await told(broker, "export_definitions")
        with pytest.raises(Unanswered) as refused:
            await take(broker, document)
        assert str(refused.value).startswith(said)
        assert await told(broker, "export_definitions") == before
        assert list(broker.engines) == ["/"]
        assert [path.name for path in (tmp_path / "vhosts").iterdir()] == ["%2F"]


@pytest.mark.parametrize("part", ["permissions", "topic_permissions"])
async def test_a_bad_right_of_a_user_of_the_settings_is_refused(tmp_path: Path, part: str) -> None:
    """Such a right would have no effect, but a document with an expression that cannot be read is a mistake."""
    document = changed(part, 0, user="root", read="(")
    async with running_broker(tmp_path, auth={"users": {"root": "secret"}}) as broker:
        with pytest.raises(Unanswered) as refused:
            await take(broker, document)
        assert str(refused.value).startswith(f"{part}[0]: regular expression '(' is invalid")


async def test_what_is_there_and_differs_refuses_the_document(tmp_path: Path) -> None:
    """An existing queue is not changed by an import, not even a transient one."""
    document = {"queues": [{"name": "q", "vhost": "/", "arguments": {"x-max-priority": 5}}]}
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("q")
        with pytest.raises(
            Unanswered, match=r"queues\[0\]: PRECONDITION_FAILED - inequivalent arg 'durable' for queue"
        ):
            await take(broker, document)


PLACES = {("parameters", 0): "operator policy 'op': ", ("parameters", 1): "parameters: shovel 's': "}


async def test_bad_entry_at_any_place_changes_nothing(tmp_path: Path) -> None:
    """Whichever entry is invalid is named, and the broker is unchanged."""
    bad: dict[str, dict[str, Any]] = {
        "users": {"password_hash": "?"}, "vhosts": {"name": ""}, "permissions": {"read": "("},
        "topic_permissions": {"read": "("}, "parameters": {"vhost": "gone"}, "global_parameters": {"value": DEEP},
        "policies": {"definition": {}}, "queues": {"arguments": {"x-max-length": -1}}, "exchanges": {"type": "odd"},
        "bindings": {"source": "mx", "arguments": {"x-match": "some"}, "destination": "x" * 256},
    }  # fmt: skip
    async with running_broker(tmp_path) as broker:
        before = await told(broker, "export_definitions")
        for part, fields in bad.items():
            for number in range(len(EXPORTED[part])):
                place = PLACES.get((part, number), f"{part}[{number}]")
                with pytest.raises(Unanswered, match=f"^{re.escape(place)}"):
                    await take(broker, changed(part, number, **fields))
                assert await told(broker, "export_definitions") == before
        await take(broker, EXPORTED)


async def test_refusal_at_any_step_in_earnest_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal during the import undoes earlier declares, including a new vhost, and a restart finds none of them."""
    calls = 0
    refused_at = 0

    def counted(declare: Any) -> Any:
        def or_refuse(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == refused_at:
                raise ChannelError(406, "no more")
            return declare(*arguments)

        return or_refuse

    monkeypatch.setattr(definitions_import, "declare", counted(topology_entry.declare))
    topology: dict[str, Any] = {part: EXPORTED[part] for part in ("exchanges", "queues", "bindings")}
    steps = sum(map(len, topology.values()))
    elsewhere = {part: [row | {"vhost": "/"} for row in rows] for part, rows in topology.items()}
    document = EXPORTED | {part: topology[part] + elsewhere[part] for part in topology}
    async with running_broker(tmp_path) as broker:
        before = await told(broker, "export_definitions")
        for step in range(1, 2 * steps + 1):
            calls, refused_at = 0, 2 * steps + step  # the first half of the calls is the rehearsal
            with pytest.raises(Unanswered, match="no more"):
                await take(broker, document)
            assert await told(broker, "export_definitions") == before
    async with running_broker(tmp_path) as broker:
        assert await told(broker, "export_definitions") == before
        refused_at = 0
        await take(broker, document)
        assert len(broker.vhosts["/"].queues) == len(EXPORTED["queues"])


class SlowJournal(Journal):
    """A journal whose changes of queues are made a step of the loop later, as in a cluster."""

    def __init__(self, queues: Queues, record: Journal) -> None:
        super().__init__()
        self.queues = queues
        self.record = record
        self.applying = False
        self.waiting = self.most = 0

    def decide(self, change: Any, **how: Any) -> None:
        """Let a change pass that is being applied, and postpone every other one."""
        if not self.applying:
            raise Later(self, change)
        self.record.decide(change, **how)

    def retire(self, change: Any, *, durable: bool) -> bool:
        """Keep queues that no one uses."""
        return False

    def apply(self, change: Any, then: Callable[[], None]) -> None:
        """Apply a change and tell that it is applied."""
        self.waiting -= 1
        self.applying = True
        if change["change"] == "queue_deleted":
            self.queues.delete(change["name"], None)
        else:
            self.queues.declare(change["name"], durable=True)
        self.applying = False
        then()


class Later(Postponed):
    """Waits for a slow journal."""

    def __init__(self, journal: SlowJournal, change: Any) -> None:
        super().__init__()
        self._journal = journal
        self._change = change

    def begin(self, then: Callable[[], None]) -> None:
        """Apply the change soon."""
        self._journal.waiting += 1
        self._journal.most = max(self._journal.most, self._journal.waiting)
        asyncio.get_running_loop().call_soon(self._journal.apply, self._change, then)


async def test_entries_that_others_have_to_decide_are_proposed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import waits for the decisions about many queues at once, counts each entry once, and can be undone."""
    queues = [{"name": f"q{number}", "vhost": "m"} for number in range(50)]
    async with running_broker(tmp_path) as broker:
        await told(broker, "add_vhost", name="m")
        of_vhost = broker.vhosts["m"].queues
        journal = of_vhost._parts.journal = SlowJournal(of_vhost, of_vhost._parts.journal)
        answer = await take(broker, {"queues": queues})
        assert (answer["made"], answer["present"]) == ({"queues": 50}, {})
        assert journal.most == 50
        before = await told(broker, "export_definitions")
        refused = {"queues": [{"name": "x", "vhost": "m"}, {"name": "odd", "vhost": "m"}]}
        declare = topology_entry.declare

        def refuse(vhost: Vhost, entry: Any) -> bool:
            if vhost is broker.vhosts["m"] and entry.name == "odd":
                raise ChannelError(406, "no more")
            return declare(vhost, entry)

        monkeypatch.setattr(definitions_import, "declare", refuse)
        with pytest.raises(Unanswered, match="no more"):
            await take(broker, refused)
        assert await told(broker, "export_definitions") == before


async def test_what_is_refused_can_be_passed_over(tmp_path: Path) -> None:
    """With the option to skip, all other entries are imported; without it, the first refusal and the count are told."""
    queues = [{"name": name, "vhost": "m", "arguments": {"x-queue-type": "stream"}} for name in ("s1", "s2")]
    exchange = {"name": "odd", "vhost": "m", "type": "odd"}
    document = changed("bindings", 0, destination="s1") | {"exchanges": [exchange, *EXPORTED["exchanges"]]}
    document["queues"] = [queues[0], *EXPORTED["queues"], queues[1]]
    async with running_broker(tmp_path) as broker:
        with pytest.raises(Unanswered, match=r"^exchanges\[0\]: .*'odd'.*\(and 2 more entries are refused\)$"):
            await take(broker, document)
        assert list(broker.vhosts) == ["/"]
        answer = await take(broker, document, skip_refused=True)
        assert [reason.partition(":")[0] for reason in answer["skipped"]] == [
            "exchanges[0]", "queues[0]", "queues[3]", "bindings[0]",
        ]  # fmt: skip
        assert (answer["imported"]["exchanges"], answer["imported"]["queues"]) == (2, 2)
        assert sorted(broker.vhosts["m"].queues) == ["mq", "mqq"]
        assert broker.administration.importing is None
        assert len([row for row in await told(broker, "list_bindings", vhost="m") if row["source"]]) == 2


async def test_binding_without_an_end_is_passed_over(tmp_path: Path) -> None:
    """RabbitMQ 3.x omits internal exchanges and keeps their bindings: the rest is imported, and the user is told."""
    document = changed("bindings", 1, destination="hidden")
    async with running_broker(tmp_path) as broker:
        answer = await take(broker, document)
        assert answer["skipped"] == ["bindings[1]: NOT_FOUND - no exchange 'hidden' in vhost 'm'"]
        assert len([row for row in await told(broker, "list_bindings", vhost="m") if row["source"]]) == 2


async def test_what_comes_in_between_undoes_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a client declares a conflicting queue after the check, the import so far is undone."""
    queues = [{"name": f"q{number}", "vhost": "/"} for number in range(300)]
    document = EXPORTED | {"queues": [*EXPORTED["queues"], *queues]}
    async with running_broker(tmp_path) as broker:
        vhost = broker.vhosts["/"]
        before = await told(broker, "export_definitions")

        def meddle(progress: Any) -> None:
            if progress["step"] == "importing" and progress["done"] == 0:
                vhost.queues.declare("q299", durable=False)

        def take_it() -> None:
            folder = broker.settings.server.data_dir
            ask(folder, "import_definitions", definitions=document)

        heard = broker.entrance.control._verbs["import_definitions"]

        def listening(request: Any) -> Any:
            request.asker.write_progress = meddle
            return heard(request)

        monkeypatch.setitem(broker.entrance.control._verbs, "import_definitions", listening)
        with pytest.raises(Unanswered, match=r"inequivalent arg 'durable' for queue 'q299'"):
            await asyncio.to_thread(take_it)
        assert list(vhost.queues) == ["q299"]
        assert await told(broker, "export_definitions") == before


async def test_progress_of_a_long_document_is_told(tmp_path: Path) -> None:
    """Both steps report their progress up to their end."""
    document = {"queues": [{"name": f"q{number}", "vhost": "/"} for number in range(250)]}
    heard: list[Any] = []
    async with running_broker(tmp_path) as broker:
        await take(broker, document, on_progress=heard.append)
    assert [(one["step"], one["done"], one["total"]) for one in heard] == [
        (step, done, 250) for step in ("checking", "importing") for done in (0, 50, 100, 150, 200, 250)
    ]


async def test_named_file_is_taken_at_each_start(tmp_path: Path) -> None:
    """The file is imported before any client can connect; objects that it lacks stay."""
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(EXPORTED))
    server = {"load_definitions": str(file)}
    async with running_broker(tmp_path / "d", server=server) as broker:
        await check_taken(broker)
        await told(broker, "delete_queue", queue="mqq", vhost="m")
        await told(broker, "add_user", name="other", password="p")
        names = [row["name"] for row in await told(broker, "list_users")]
        assert names == ["mu", "other"], "a document with users leaves no place for the default one"
    async with running_broker(tmp_path / "d", server=server) as broker:
        await check_taken(broker)
        assert [row["name"] for row in await told(broker, "list_users")] == ["mu", "other"]


async def test_document_without_users_leaves_the_default_one(tmp_path: Path) -> None:
    """A document without users leaves the default user, because otherwise no user could log in."""
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"queues": [{"name": "q", "vhost": "/"}]}))
    async with running_broker(tmp_path / "d", server={"load_definitions": str(file)}) as broker, client_of(broker) as c:
        await c.get_queue("q")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, ": cannot be read: No such file or directory"),
        ("{", ": not valid JSON: "),
        (json.dumps(changed("permissions", 0, user="nobody")), ": permissions[0]: User 'nobody' does not exist"),
        (json.dumps({"queues": [{}]}), ": queues[0]: vhost is missing"),
    ],
)
async def test_broker_does_not_start_with_a_bad_file(tmp_path: Path, content: str | None, said: str) -> None:
    """The reason names the file; the folder and the port are free again."""
    file = tmp_path / "definitions.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BadDefinitions) as refused:
        async with running_broker(tmp_path / "d", server={"load_definitions": str(file)}):
            pass
    assert str(refused.value).startswith(f"{file}{said}")
    async with running_broker(tmp_path / "d") as broker:
        assert list(broker.vhosts) == ["/"]


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("add_vhost", {"name": "v\ud800"}),
        ("add_vhost", {"name": "v", "description": "\udfff"}),
        ("add_user", {"name": "u\ud800", "password": "p"}),
        ("add_user", {"name": "u", "password": "p", "tags": ["\ud800"]}),
        ("set_policy", {"name": "p", "pattern": "", "definition": {"ha-params": float("nan")}}),
        ("set_policy", {"name": "p", "pattern": "", "definition": {"ha-params": DEEP}}),
        ("set_policy", {"name": "p\ud800", "pattern": "", "definition": {"max-length": 1}}),
        ("set_permission", {"user": "guest", "configure": "\ud800", "write": "", "read": ""}),
        ("import_definitions", {"definitions": {"vhosts": [{"name": "v", "metadata": {"a": DEEP}}]}}),
        ("import_definitions", {"definitions": {"global_parameters": [{"name": "g", "value": float("inf")}]}}),
        (
            "import_definitions",
            {"definitions": {"parameters": [{"vhost": "/", "component": "c", "name": "n", "value": DEEP}]}},
        ),
    ],
)
async def test_what_could_not_be_written_down_is_refused(tmp_path: Path, verb: str, arguments: dict[str, Any]) -> None:
    """A change that does not fit into the definitions file is refused."""
    async with running_broker(tmp_path) as broker:
        before = broker.administration.document()
        request = json.dumps({"verb": verb, **arguments}).encode() + b"\n"
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "control.sock"))
        writer.write(request)
        answer = json.loads(await reader.readline())
        writer.close()
        await writer.wait_closed()
        assert answer["ok"] is False
        assert not answer["error"].startswith("internal error")
        assert broker.failure is None
        assert broker.administration.document() == before


async def test_change_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """The broker keeps the old state and serves on; so does a restart."""
    files = GatedFiles("rename", lambda path: path.name == "definitions")
    async with running_broker(tmp_path, files) as broker:
        await told(broker, "add_user", name="before", password="p")
        files.fails = NO_SPACE
        with pytest.raises(Unanswered, match="nothing was changed: "):
            await told(broker, "add_user", name="after", password="p")
        assert [row["name"] for row in await told(broker, "list_users")] == ["before", "guest"]
        files.fails = ""
    async with running_broker(tmp_path) as after:
        assert [row["name"] for row in await told(after, "list_users")] == ["before", "guest"]


async def test_change_that_may_be_written_ends_the_broker(tmp_path: Path) -> None:
    """When the folder cannot be synced, nobody knows whether a crash undoes the change: the client gets no success."""
    files = GatedFiles("sync_folder", lambda path: path == tmp_path)
    broker = BrokerServer(Settings(server={"port": 0, "data_dir": tmp_path}, **WITHOUT_HTTP), files)
    await broker.start()
    files.fails = IO_ERROR
    with pytest.raises(Unanswered):
        await told(broker, "add_user", name="after", password="p")
    assert isinstance(await broker.wait_failed(), StoreFailed)
    with pytest.raises(StoreFailed):
        await broker.stop()


async def test_delayed_exchange_moves_without_its_queue(tmp_path: Path) -> None:
    """The internal queue of a delayed exchange is not exported, and is created with the exchange."""
    exchange = {"name": "x", "vhost": "/", "type": "x-delayed-message", "arguments": {"x-delayed-type": "topic"}}
    async with running_broker(tmp_path) as broker:
        for _time in range(2):
            await take(broker, {"exchanges": [exchange]})
            exported = await told(broker, "export_definitions")
            assert exported["queues"] == []
            (row,) = exported["exchanges"]
            assert row == exchange | {"durable": True, "auto_delete": False, "internal": False}
            assert [row["name"] for row in await told(broker, "list_queues")] == ["amq.delayed.x"]
