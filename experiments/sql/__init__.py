"""The query task, `+task=sql`: questions to databases, answered by SQL that SQLite judges."""
