"""The figures that the paper gives in its text, and the shapes that it describes.

Source: Zhao, Sturman, Bhola, "Subscription Propagation in Highly-Available Publish/Subscribe Middleware", section 5.2.
Brokers with six processors of 500 MHz each on a local network; covering was that of identical subscriptions.
"""

from __future__ import annotations

from typing import Final

LOAD_PUBLISHERS: Final = (2_000, 12_000)
LOAD_PB_CPU: Final = {"propagation": (12_000, 0.31), "flooding": (10_000, 0.90)}
"""The publishing brokers' CPU: 31 % at 12,000 publishers with propagation, over 90 % at 10,000 with flooding."""

HOPS: Final = (1, 4, 7)
DELIVERY_MS: Final = (3.0, 6.0, 9.0)
LOCAL_MS: Final = (17.0, 17.0, 17.0)
GLOBAL_MS: Final = (26.5, 36.0, 45.0)

LEAVES_PB_DIFFERENCE: Final = 0.03
"""How much more CPU, in shares of a processor, the publishing broker takes with propagation than with flooding."""

FAILURE_EVENTS_S: Final = (475.0, 505.0, 565.0, 691.0, 731.0)
FAILURE_END_S: Final = 800.0
FAILURE_BEGIN_S: Final = 400.0
FAILURE_RATES: Final = (5_000.0, 2_000.0)
"""Messages per second of one of the first three groups, and of the fourth one."""

FAILURE_IB3_CPU: Final = (0.0, 0.04, 0.08)
"""CPU of ib3 before the crashes, after that of ib1, and after that of ib2."""
