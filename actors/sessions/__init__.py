"""A session of a client: its actor, its record, its life in memory and out of it."""
