"""The query task, `+task=sql`: questions to databases, answered by SQL queries that SQLite judges."""
