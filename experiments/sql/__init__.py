"""This package has the task of SQL queries."""
