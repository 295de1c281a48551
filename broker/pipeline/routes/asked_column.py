"""The rows of a lake whose properties decide their route."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.pipeline.routes.matcher import compiled
from broker.pipeline.routes.route_count import Topologies

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["ASKED", "asked_column"]

ASKED: Final = "asked"  # the properties of a row whose route depends on them
CC_NAME: Final = '"CC"'  # how a headers column contains it


def asked_column(topologies: Topologies) -> Column:
    """Return the properties of rows whose route depends on them: by a headers exchange, or by further keys in CC."""
    from pyspark.sql import functions as F  # noqa: N812

    asked = F.coalesce(F.instr(F.col("headers"), CC_NAME) > 0, F.lit(False))
    for vhost, exchange in sorted(
        {place for name, topology in topologies for place in compiled(name, topology).dynamic}
    ):
        asked = asked | ((F.col("vhost") == vhost) & (F.col("exchange") == exchange))
    return F.when(asked, F.col("properties_raw"))
