"""Requests and subscriptions of clients without sessions."""
