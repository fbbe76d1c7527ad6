"""What clients see of servers: an endpoint is one of them as it is, or several under one roof."""
