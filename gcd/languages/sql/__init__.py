"""This package turns database schemas into languages of SQL queries."""
