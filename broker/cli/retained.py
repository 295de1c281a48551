"""`slotmq retained`: list, show or delete the retained messages of MQTT topics."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from broker.cli.control_client import ask_for, request
from broker.cli.messages import GET_MAX, body_lines, message_count
from broker.cli.parser import add_command, add_group, add_value, finish
from broker.cli.table import cell, print_count, print_json, print_rows, warn

COLUMNS: Final = ("topic", "bytes", "age_ms", "expires_in_ms")


def add_retained(commands: Any) -> None:
    """Add the commands."""
    verbs = add_group(commands, "retained", "list, show or delete the retained messages of MQTT topics")
    list_topics = request("list_retained", _print_topics)
    delete = request("delete_retained", print_count("deleted"))
    for verb, summary, run in (
        ("list", f"list the topics that a filter matches; columns: {', '.join(COLUMNS)}", list_topics),
        ("get", "show the messages of the topics that a filter matches", _get),
        ("delete", "delete the messages of the topics that a filter matches", delete),
    ):
        command = add_command(verbs, verb, summary)
        meaning = "a topic, or a filter such as 'home/+/config' or 'home/#'"
        default = {"nargs": "?", "default": "#"} if verb == "list" else {}
        add_value(command, "filter", "FILTER", meaning, **default)
        if verb != "delete":
            limit = {"list": 1000, "get": 100}[verb]
            text = f"at most N topics, up to {GET_MAX} (default {limit})"
            add_value(command, "--limit", "N", text, type=message_count, default=limit)
        finish(command, run, json=True, vhost=True)


def _print_topics(answer: Mapping[str, Any]) -> None:
    print_rows(answer["rows"], COLUMNS, as_json=False)
    _warn_if_truncated(answer)


def _get(arguments: argparse.Namespace) -> None:
    answer = ask_for(arguments, "list_retained", "filter", "vhost", "limit", body_bytes=32 << 20)
    if arguments.json:
        print_json(answer)
        return
    for row in answer["rows"]:
        fields = {**row["properties"], "age_ms": row["age_ms"]}
        print("\n".join([cell(row["topic"]), *[f"  {name}: {cell(value)}" for name, value in fields.items()]]))
        print("\n".join(body_lines(row)))
    if not answer["rows"]:
        warn(f"nothing is retained for '{arguments.filter}'")
    _warn_if_truncated(answer)


def _warn_if_truncated(answer: Any) -> None:
    if answer["truncated"]:
        warn(f"{len(answer['rows'])} of more topics are shown (--limit); the vhost retains {answer['messages']}")
