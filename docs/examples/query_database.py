"""An SQL query: every table and column exists, and SQLite accepts the statement."""

import sqlite3

from transformers import AutoModelForCausalLM, AutoTokenizer

import gcd
import smc

with sqlite3.connect("concerts.sqlite") as database:
    database.execute("CREATE TABLE singer (name TEXT, age INTEGER)")
    database.execute("INSERT INTO singer VALUES ('Ann', 31), ('Bob', 19)")

path = "HuggingFaceTB/SmolLM2-135M-Instruct"
lm = smc.TransformersLM(
    AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
)
queries = gcd.sql("concerts.sqlite", dialect=gcd.SqlDialect(subquery_depth=0, compound_columns=0))
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
reply = smc.ask(lm, prompt, queries, budget=20, particles=2)
print(reply.value)
print(sqlite3.connect("concerts.sqlite").execute(reply.value).fetchall())
