"""OAuth: the gateway as a client of authorization servers."""
