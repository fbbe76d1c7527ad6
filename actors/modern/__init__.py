"""Requests and subscriptions of modern clients."""
