"""GET /api/overview: totals of the broker, and its names and versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from broker import __version__
from broker.manage.answers import Response, json_answer
from broker.manage.api.names import (
    COMPATIBLE_VERSION,
    ERLANG_VERSION,
    EXCHANGE_TYPE_ROWS,
    FEATURE_FLAG_ROWS,
    PRODUCT,
)
from broker.manage.api.nodes import CHURN_NAMES, contexts_of, listeners_of
from broker.manage.call import ApiRoute, Call, Needs, visible_sessions, visible_vhosts
from broker.manage.counts import DISK_STATS, LENGTHS, MESSAGE_STATS, counts_of, lengths_of, message_numbers, with_rates
from broker.manage.history import sample_range
from broker.manage.listing import row_answer
from broker.operations.rows import Row

WINDOW_MS: Final = 5000
NO_DISK: Final = (0,) * len(DISK_STATS)


async def overview(call: Call) -> Response:
    """Answer with versions and totals. Without the `monitoring` tag, the totals are those of the user's vhosts."""
    broker = call.broker
    row: Row = {
        "cluster_name": cluster_name_of(call),
        "disable_stats": False,
        "enable_queue_totals": False,
        "erlang_full_version": f"Erlang/OTP {ERLANG_VERSION}",
        "erlang_version": ERLANG_VERSION,
        "exchange_types": EXCHANGE_TYPE_ROWS,
        "is_op_policy_updating_enabled": True,
        "is_tls_enabled": broker.settings().tls.is_on,
        "management_version": COMPATIBLE_VERSION,
        "product_name": PRODUCT,
        "product_version": __version__,
        "rabbitmq_version": COMPATIBLE_VERSION,
        "rates_mode": "basic",
        "release_series_support_status": "supported",
        "sample_retention_policies": {"basic": [600, 3600], "detailed": [600, 3600], "global": [600, 3600]},
        "statistics_db_event_queue": 0,
    }
    row |= await _totals(call)
    if call.may(Needs.MONITORING):
        churn = tuple(broker.statistics.churn())
        row |= {
            "churn_rates": with_rates(CHURN_NAMES, churn, broker.samples.rates.of("churn", churn, len(churn))),
            "contexts": contexts_of(broker),
            "listeners": listeners_of(broker),
            "node": broker.node_name,
        }
    return row_answer(call, row)


async def _totals(call: Call) -> dict[str, Any]:
    """Return the counts of objects and messages that the caller sees, with rates and the requested samples."""
    broker = call.broker
    vhosts, sessions = visible_vhosts(call), visible_sessions(call)
    lengths = await lengths_of(vhosts)
    monitoring = call.may(Needs.MONITORING)
    counts = broker.statistics.totals() if monitoring else counts_of(broker.statistics, vhosts)
    numbers = (*message_numbers(counts), *lengths.numbers)
    history, now_ms = broker.samples.totals, broker.samples.now_ms
    key = ("overview", call.user.name)
    if monitoring:
        rates = history.rates(numbers, now_ms, WINDOW_MS)
    else:
        rates = broker.samples.rates.of(key, numbers, len(MESSAGE_STATS))
    counter_rates, length_rates = (
        (None, None) if rates is None else (rates[: len(MESSAGE_STATS)], rates[len(MESSAGE_STATS) :])
    )
    messages = with_rates(MESSAGE_STATS, numbers[: len(MESSAGE_STATS)], counter_rates)
    queue_totals = with_rates(LENGTHS, lengths.numbers, length_rates)
    if monitoring:
        for kind, names, part in (("lengths", LENGTHS, queue_totals), ("msg_rates", MESSAGE_STATS, messages)):
            wanted = sample_range(call.query, kind)
            if wanted is not None:
                part |= {f"{name}_details": history.details(name, wanted, now_ms) for name in names}
    return {
        "message_stats": messages | with_rates(DISK_STATS, NO_DISK, None),
        "object_totals": {
            "channels": sum([len(session.connection.channels) for session in sessions]),
            "connections": len(sessions),
            "consumers": lengths.consumers,
            "exchanges": sum([len(vhost.exchanges) for vhost in vhosts]),
            "queues": lengths.queues,
        },
        "queue_totals": queue_totals,
    }


def cluster_name_of(call: Call) -> str:
    """Return the name of the cluster if an operator has set it, else that of the node."""
    named = call.broker.administration.global_parameters.get("cluster_name")
    return named if isinstance(named, str) else call.broker.node_name


async def cluster_name(call: Call) -> Response:
    """Answer with the name of the cluster."""
    return json_answer({"name": cluster_name_of(call)})


def always(value: Any) -> Callable[[Call], Awaitable[Response]]:
    """Return a function that answers with a constant."""

    async def respond(_call: Call) -> Response:
        return json_answer(value)

    return respond


NO_OAUTH: Final = {"enable_uaa": False, "oauth_enabled": False, "uaa_client_id": "", "uaa_location": ""}
"""The settings by which a page learns that users log in with a password, and not with OAuth 2."""

ROUTES: Final = (
    ApiRoute("GET", "/api/overview", Needs.MANAGEMENT, overview),
    ApiRoute("GET", "/api/version", Needs.MANAGEMENT, always(COMPATIBLE_VERSION)),
    ApiRoute("GET", "/api/cluster-name", Needs.MANAGEMENT, cluster_name),
    ApiRoute("GET", "/api/extensions", Needs.MANAGEMENT, always([{"javascript": "dispatcher.js"}])),
    ApiRoute("GET", "/api/auth", Needs.NOTHING, always(NO_OAUTH)),
    ApiRoute("GET", "/api/feature-flags", Needs.MANAGEMENT, always(FEATURE_FLAG_ROWS)),
    ApiRoute("GET", "/api/deprecated-features", Needs.MANAGEMENT, always([])),
    ApiRoute("GET", "/api/deprecated-features/used", Needs.MANAGEMENT, always([])),
)
