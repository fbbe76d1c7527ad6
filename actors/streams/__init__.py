"""Streams of events towards clients: the log behind them, and the connections that carry them."""
