"""Several gateways on one port: a supervisor that holds the listening sockets, and workers that inherit them."""
