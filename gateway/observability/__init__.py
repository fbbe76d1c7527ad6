"""What the gateway tells about itself: metrics, logs, and how far its event loop is behind."""

from gateway.observability.lag import Lag, report_lag
from gateway.observability.logging import bound, configure, get_log
from gateway.observability.metrics import Metrics
from gateway.observability.redaction import Redaction

__all__ = [
    "Lag",
    "Metrics",
    "Redaction",
    "bound",
    "configure",
    "get_log",
    "report_lag",
]
