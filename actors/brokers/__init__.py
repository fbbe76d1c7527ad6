"""Connections of clients without sessions to servers that have them, and their parked calls."""
