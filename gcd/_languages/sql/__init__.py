"""Compiler from database schemas to languages of SQL queries."""
