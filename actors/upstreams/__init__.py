"""Connections to servers of either era, and what is known of them."""
