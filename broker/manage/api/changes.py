"""The routes that change the broker, and those of definitions and health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.manage.api.binding_changes import binding_change_routes
from broker.manage.api.connection_changes import connection_change_routes
from broker.manage.api.definitions import definition_routes
from broker.manage.api.exchange_changes import exchange_change_routes
from broker.manage.api.health import health_routes
from broker.manage.api.limits import limit_routes
from broker.manage.api.login_attempts import login_attempt_routes
from broker.manage.api.no_ops import no_op_routes
from broker.manage.api.parameters import parameter_routes
from broker.manage.api.permissions import permission_routes
from broker.manage.api.policies import policy_routes
from broker.manage.api.queue_changes import queue_change_routes
from broker.manage.api.queue_messages import queue_message_routes
from broker.manage.api.route_test import route_test_routes
from broker.manage.api.unacked import unacked_routes
from broker.manage.api.users import user_routes
from broker.manage.api.vhost_changes import vhost_change_routes

if TYPE_CHECKING:
    from broker.manage.api_route import ApiRoute

__all__ = ["change_routes"]


def change_routes() -> list[ApiRoute]:
    """Return the routes, noun by noun."""
    return [
        *binding_change_routes(),
        *connection_change_routes(),
        *definition_routes(),
        *exchange_change_routes(),
        *health_routes(),
        *limit_routes(),
        *login_attempt_routes(),
        *no_op_routes(),
        *parameter_routes(),
        *permission_routes(),
        *policy_routes(),
        *queue_change_routes(),
        *queue_message_routes(),
        *route_test_routes(),
        *unacked_routes(),
        *user_routes(),
        *vhost_change_routes(),
    ]
