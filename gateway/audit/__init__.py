"""The audit trail: who did what and was he allowed to, one JSON line each, in a chain that shows what was changed."""
