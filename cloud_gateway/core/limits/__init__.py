"""Fair turns, quotas and admission of connections: who is served next, and how much."""
