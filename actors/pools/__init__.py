"""Connections of modern clients to servers that have them, and their suspended calls."""
