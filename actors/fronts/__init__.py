"""The face that servers have for clients: one server as it is, or several under one roof."""
