"""An SQL query: every table and column exists, and SQLite accepts the statement."""

import sqlite3
import tempfile

import gcd
import smc

path = tempfile.mkdtemp() + "/concerts.sqlite"
with sqlite3.connect(path) as database:
    database.execute("CREATE TABLE singer (name TEXT, age INTEGER)")
    database.execute("INSERT INTO singer VALUES ('Ann', 31), ('Bob', 19)")

lm = smc.TransformersLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
queries = gcd.sql(path, dialect=gcd.SqlDialect(subquery_depth=0, compound_columns=0))
prompt = """Table singer(name, age)
Question: What are the names of all singers?
SQL:
SELECT singer.name FROM singer
Question: What are the ages of all singers?
SQL:
SELECT singer.age FROM singer
Question: Which singers are older than 30?
SQL:
"""
reply = smc.ask(lm, prompt, queries, max_tokens=20)
print(reply.value)
print(database.execute(reply.value).fetchall())
