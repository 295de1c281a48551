"""Definitions documents of RabbitMQ 3.6 to 4.x, and documents that are refused."""

from base64 import b64encode
from typing import Any

import pytest

from broker.core.definitions.reading import DEPTH_MAX, BadDefinitions, read_document

HASH = "wY9zCSt1TKcPd7qPzMIHcz+k5UnuN5VXa74fFu3MJs5zA5jN"


def nested(levels: int) -> Any:
    """Return a table within a table within a table."""
    table: Any = {}
    for _ in range(levels):
        table = {"t": table}
    return table


def test_empty_document_says_nothing() -> None:
    """An empty document is valid and has no entries."""
    assert read_document({"rabbit_version": "3.10.8"}) == read_document({"users": [], "queues": None})


@pytest.mark.parametrize("tags", ["administrator,x", "administrator, x", ["administrator", "x"]])
def test_tags_are_text_or_list(tags: Any) -> None:
    """RabbitMQ wrote tags as one text until 3.8 and as a list since."""
    document = read_document({"users": [{"name": "u", "password_hash": HASH, "tags": tags}]})
    assert document.users[0]["tags"] == ["administrator", "x"]


@pytest.mark.parametrize(
    ("version", "algorithm"),
    [
        ("3.5.7", "rabbit_password_hashing_md5"),
        ("3.6.0", "rabbit_password_hashing_sha256"),
        ("3.10.8", "rabbit_password_hashing_sha256"),
        ("4.2.0", "rabbit_password_hashing_sha256"),
        (None, "rabbit_password_hashing_sha256"),
    ],
)
def test_hash_without_algorithm_has_that_of_its_time(version: Any, algorithm: str) -> None:
    """A hash without an algorithm is MD5: before 3.6 no document named one."""
    raw = {"rabbit_version": version, "users": [{"name": "u", "password_hash": HASH, "tags": ""}]}
    assert read_document(raw).users[0]["hashing_algorithm"] == algorithm


def test_argon2_hash_is_read_in_base64_and_as_it_is() -> None:
    """An argon2 hash is read in base64, as the export writes it, and plain, as the broker's own file has it."""
    encoded = "$argon2id$v=19$m=1,t=1,p=1$c2FsdHNhbHQ$aGFzaA"
    for written in (encoded, b64encode(encoded.encode()).decode()):
        user = {"name": "u", "password_hash": written, "hashing_algorithm": "argon2id", "tags": []}
        assert read_document({"users": [user]}).users[0]["password_hash"] == encoded


def test_hash_is_not_in_the_text_of_an_entry() -> None:
    """The text of an entry, as in a log or a traceback, contains neither hash nor password."""
    users = [{"name": "u", "password_hash": HASH, "password": "hunter2", "tags": ""}]
    assert "hunter2" not in repr(read_document({"users": users}))
    assert HASH not in repr(read_document({"users": users}))


@pytest.mark.parametrize("definition", [{"max-length": 5}, [["max-length", 5]]])
def test_operator_policy_is_a_parameter(definition: Any) -> None:
    """An operator policy is a parameter: an object in RabbitMQ's export, pairs from its command line."""
    value = {"pattern": "^q", "apply-to": "queues", "definition": definition, "priority": 3}
    raw = {"parameters": [{"vhost": "v", "component": "operator_policy", "name": "p", "value": value}]}
    document = read_document(raw)
    (policy,) = document.policies
    value |= {"definition": {"max-length": 5}}
    assert policy == {"vhost": "v", "component": "operator_policy", "name": "p", "value": value}
    assert document.parameters == ()


def test_entries_of_one_name_that_differ_are_refused() -> None:
    """Only one of them could be applied; entries that are equal do no harm, and bindings have no names."""
    user = {"name": "u", "password_hash": HASH, "tags": ""}
    policy = {"name": "q", "vhost": "v", "pattern": "", "definition": {"expires": 1}}
    right = {"user": "u", "vhost": "v", "configure": "", "write": "", "read": ""}
    for part, entry, changed, named in (
        ("users", user, {"tags": "administrator"}, "'u'"),
        ("policies", policy, {"pattern": "x"}, "'q', 'v'"),
        ("permissions", right, {"read": ".*"}, "'u', 'v'"),
    ):
        other = "w" if part == "users" else entry["vhost"]
        read_document({part: [entry, dict(entry), {**entry, "name": "w", "user": "w", "vhost": other}]})
        with pytest.raises(BadDefinitions) as refused:
            read_document({part: [entry, {**entry, **changed}]})
        assert str(refused.value) == f"{part}[1]: another entry for {named} has different values"


def test_other_parameters_are_kept() -> None:
    """Parameters of other programs are kept and written by the next export."""
    shovel = {"vhost": "/", "component": "shovel", "name": "s", "value": {"src-uri": "amqp://"}}
    document = read_document({"parameters": [shovel], "global_parameters": [{"name": "cluster_name", "value": "c"}]})
    assert document.parameters[0]["value"] == {"src-uri": "amqp://"}
    assert document.global_parameters[0]["value"] == "c"


def test_facts_of_a_vhost_are_kept() -> None:
    """Description, tags, limits and unknown fields of a vhost are kept."""
    raw = {"vhosts": [{"name": "v", "description": "d", "default_queue_type": "quorum", "limits": []}]}
    assert read_document(raw).vhosts == (raw["vhosts"][0],)


def test_entries_of_a_vhost_file_belong_to_that_vhost() -> None:
    """An entry without a vhost belongs to the document's vhost; an entry that names a vhost belongs to that one."""
    raw = {"queues": [{"name": "q"}, {"name": "r", "vhost": "w"}]}
    assert [queue.vhost for queue in read_document(raw, "v").queues] == ["v", "w"]
    with pytest.raises(BadDefinitions, match=r"^queues\[0\]: vhost is missing$"):
        read_document(raw)


def test_type_of_a_queue_becomes_its_argument() -> None:
    """The queue type that 4.x writes beside the arguments becomes an argument; classic is the default."""
    raw = {"queues": [{"name": "a", "type": "quorum"}, {"name": "b", "type": "classic"}, {"name": "c"}]}
    assert [queue.arguments for queue in read_document(raw, "/").queues] == [{"x-queue-type": "quorum"}, {}, {}]


def test_binding_names_its_kind_of_destination() -> None:
    """The destination of a binding may be an exchange."""
    ends = {"source": "x", "destination": "y", "routing_key": "k", "arguments": {}, "vhost": "/"}
    raw = {"bindings": [ends | {"destination_type": "exchange"}, ends | {"destination_type": "queue"}]}
    assert [binding.to_exchange for binding in read_document(raw).bindings] == [True, False]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ([], "a definitions document is one JSON object"),
        ({"queues": {}}, "queues should be a list"),
        ({"queues": [3]}, "queues[0]: should be an object"),
        ({"queues": [{"name": "a"}, {"name": 3}]}, "queues[1]: name should be a string"),
        ({"queues": [{"name": "n" * 256}]}, "queues[0]: name is longer than 255 bytes"),
        ({"queues": [{"name": "a", "durable": "yes"}]}, "queues[0]: durable should be true or false"),
        ({"queues": [{"name": "a", "arguments": 3}]}, "queues[0]: arguments should be an object"),
        ({"queues": [{"name": "a", "arguments": {"x": 1 << 64}}]},
         "queues[0]: arguments holds a number of more than 64 bits"),
        ({"queues": [{"name": "a", "arguments": nested(DEPTH_MAX + 1)}]},
         "queues[0]: arguments is nested deeper than 16 levels"),
        ({"exchanges": [{"name": "x"}]}, "exchanges[0]: type is missing"),
        ({"bindings": [{"source": "x", "destination": "q", "destination_type": "topic"}]},
         "bindings[0]: destination_type should be queue or exchange"),
        ({"users": [{"name": "u"}]}, "users[0]: password_hash is missing"),
        ({"users": [{"name": "", "password_hash": ""}]}, "users[0]: name is empty"),
        ({"users": [{"name": "u", "password_hash": "", "tags": [1]}]}, "users[0]: tags should be a list of strings"),
        ({"users": [{"name": "u", "password_hash": "???", "hashing_algorithm": "argon2id"}]},
         "users[0]: password_hash is not base64"),
        ({"permissions": [{"user": "u", "configure": "", "write": ""}]}, "permissions[0]: read is missing"),
        ({"policies": [{"name": "p", "pattern": "", "definition": {}, "priority": "1"}]},
         "policies[0]: priority should be a number"),
        ({"vhosts": [{"name": ""}]}, "vhosts[0]: name is empty"),
    ],
)  # fmt: skip
def test_wrong_entry_is_named(raw: Any, said: str) -> None:
    """The first wrong entry is named with its place in the file."""
    with pytest.raises(BadDefinitions) as bad:
        read_document(raw, "/")
    assert str(bad.value) == said
