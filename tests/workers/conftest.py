"""Programs that end with their test, and a Redis of its own."""

from tests.support.processes import programs, redis_url

__all__ = ["programs", "redis_url"]
