"""Programs that end with their test or file, and a Redis of its own."""

from tests.support.processes import programs, redis_url, shared_programs

__all__ = ["programs", "redis_url", "shared_programs"]
