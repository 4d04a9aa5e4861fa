"""Subcommands of `gcd`: their arguments, output and exit codes.

Exit codes: 0 for success, 1 if a text doesn't satisfy the constraint or no answer was found, 2 for
invalid input. Each subcommand imports the libraries that it needs, so that `gcd --help` is fast.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import click

_SCHEMA_HELP = """SCHEMA is a file with a JSON Schema (- for standard input). With --regex it is the
regular expression itself, with --tools a file with a list of tools, with --sql a SQLite database or
an entry of Spider's list (tables.json#NAME), with --grammar a .lark, .gbnf or .ebnf file, or
FILE#RULE."""

_Source = tuple[str, str, dict[str, Any]]  # the arguments of `_sources.language`


class _Commands(click.Group):
    """Command group that reports a subcommand's `ValueError` as invalid input."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ValueError as error:
            from gcd_cli._sources import BadInput

            raise BadInput(str(error)) from error


_LANGUAGE_OPTIONS = (
    "whitespace", "max_depth", "max_bytes", "formats", "unknown", "unsupported",
)  # fmt: skip

_handling = click.Choice(["warn", "ignore", "refuse"])


def _kinds(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add SCHEMA and the options that describe a constraint; the command gets them as a source."""

    @wraps(command)
    def with_source(given: str, kind: str, **more: Any) -> Any:
        chosen = {name: more.pop(name) for name in _LANGUAGE_OPTIONS}
        options = {name: value for name, value in chosen.items() if value is not None}
        return command((given, kind, options), **more)

    decorated: Callable[..., Any] = with_source
    for option in (
        click.option("--unsupported", type=_handling,
                     help="Handling of keywords that an automaton can't enforce."),
        click.option("--unknown", type=_handling, help="Handling of unknown keywords."),
        click.option("--formats", type=click.Choice(["assert", "ignore"]),
                     help="Enforce or ignore the keyword format."),
        click.option("--max-bytes", type=int, help="Maximum length of a text in bytes."),
        click.option("--max-depth", type=int, help="Maximum depth of free values and recursion."),
        click.option("--whitespace", type=click.Choice(["compact", "spaced", "flexible"]),
                     help='Whitespace in JSON: {"a":1}, {"a": 1}, or any.'),
        click.option("--grammar", "kind", flag_value="grammar", help="SCHEMA is a grammar."),
        click.option("--sql", "kind", flag_value="sql", help="SCHEMA is a database to query."),
        click.option("--tools", "kind", flag_value="tools", help="SCHEMA is a list of tools."),
        click.option("--regex", "kind", flag_value="regex", help="SCHEMA is a regex."),
        click.option("--schema", "kind", flag_value="schema", default="schema",
                     help="SCHEMA is a JSON Schema (default)."),
        click.argument("given", metavar="SCHEMA"),
    ):  # fmt: skip
        decorated = option(decorated)
    return decorated


_tokenizer = click.option(
    "--tokenizer", metavar="MODEL", help="Model directory or hub name that has a tokenizer.json."
)
_budget = click.option(
    "--max-tokens",
    "--budget",
    "budget",
    type=click.IntRange(1),
    help="Maximum tokens of a text, EOS included (--budget until 0.4).",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 constraint not satisfied or no answer, 2 invalid input.",
)
@click.version_option(package_name="globally-constrained-decoding")
def main() -> None:
    """Constrain the output of language models, within a token budget."""


def _print(report: dict[str, Any], as_json: bool, lines: list[tuple[str, str]]) -> None:
    """Print `report` as JSON, or print `lines`, pairs of a name and a description."""
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
        return
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        click.echo(f"{name:<{width}}  {value}")


def _answer(is_yes: bool) -> None:
    """Exit with code 0 for yes, 1 for no."""
    click.get_current_context().exit(0 if is_yes else 1)


@main.command(name="compile", epilog=_SCHEMA_HELP)
@_kinds
@_tokenizer
@click.option("--draw", metavar="FILE", help="Draw the automaton into FILE (.svg or .dot).")
@_as_json
def compile_(source: _Source, tokenizer: str | None, draw: str | None, as_json: bool) -> None:
    """Compile a constraint: states, classes, fewest tokens, memory, time.

    \b
    Examples:
      gcd compile schema.json --tokenizer models/mine
      gcd compile --regex '[0-9]{4}-[0-9]{2}' --draw date.svg
      gcd compile --tools tools.json --tokenizer models/mine --json
      gcd compile --grammar arithmetic.lark --max-depth 8
    """
    import gcd
    from gcd_cli import _drawing as drawing
    from gcd_cli import _explaining as explaining
    from gcd_cli import _sources as sources

    if draw is not None and Path(draw).suffix not in (".svg", ".dot"):
        raise sources.BadInput(f"expected a .svg or .dot file for --draw, got {draw}")
    vocabulary = None if tokenizer is None else sources.vocabulary(tokenizer)
    start = time.perf_counter()
    language = sources.language(*source)
    compiled = time.perf_counter()
    automaton = None if vocabulary is None else gcd.lift(language, vocabulary)
    lifting = time.perf_counter() - compiled
    report, lines = explaining.describe(language, automaton, compiled - start, lifting)
    if draw is not None:
        drawn = language if automaton is None else automaton
        text = drawing.to_svg(drawn) if draw.endswith(".svg") else drawing.to_dot(drawn)
        try:
            Path(draw).write_text(text, encoding="utf-8")
        except OSError as error:
            raise sources.BadInput(
                f"cannot write {draw}: {error.strerror}; pass another file to --draw"
            ) from error
    _print(report, as_json, lines)


@main.command(epilog=_SCHEMA_HELP)
@_kinds
@click.argument("prefix")
@_tokenizer
@_budget
@_as_json
def explain(
    source: _Source, prefix: str, tokenizer: str | None, budget: int | None, as_json: bool
) -> None:
    """Show which bytes may follow PREFIX, or at which byte PREFIX is refused.

    Exit code 1 if no text of the language begins with PREFIX, or no such text fits into the budget.

    \b
    Examples:
      gcd explain schema.json '{"name": "A'
      gcd explain --regex '(ab)*c' abb
      gcd explain schema.json '{"hour":2' --tokenizer models/mine --max-tokens 12
    """
    from gcd_cli._explaining import standing

    language, automaton = _compile(source, tokenizer, budget)
    found = standing(language, os.fsencode(prefix), automaton, budget)  # as typed, UTF-8 or not
    _print(found.report(), as_json, found.prefix_lines())
    _answer(found.is_viable)


@main.command(epilog=_SCHEMA_HELP)
@_kinds
@click.argument("file")
@_tokenizer
@_budget
@click.option("--strip", is_flag=True, help="Remove whitespace around the text.")
@_as_json
def check(
    source: _Source, file: str, tokenizer: str | None, budget: int | None, strip: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Check whether the text in FILE (- for standard input) satisfies a constraint.

    If not, print the reason and exit with code 1. With --tokenizer and --max-tokens, the text also
    has to fit into the budget.

    \b
    Examples:
      gcd check schema.json answer.json --strip
      echo -n 2026-02-30 | gcd check --regex '[0-9]{4}-[0-9]{2}-[0-9]{2}' -
    """
    from codecs import BOM_UTF8

    from gcd_cli._explaining import standing
    from gcd_cli._sources import read_bytes

    text = read_bytes(file)
    text = text.removeprefix(BOM_UTF8).strip() if strip else text
    language, automaton = _compile(source, tokenizer, budget)
    found = standing(language, text, automaton, budget)
    _print(found.report(), as_json, found.text_lines())
    _answer(found.reason() is None)


@main.command(epilog=_SCHEMA_HELP)
@click.option("--model", required=True, metavar="MODEL",
              help="Directory or hub name of a causal model.")  # fmt: skip
@click.option("--max-tokens", "--budget", "budget", required=True, type=click.IntRange(1),
              help="Maximum tokens of an answer, EOS included.")  # fmt: skip
@_kinds
@click.option("--prompt", default="", help="Text before the answer.")
@click.option("--particles", type=click.IntRange(1), default=16, show_default=True,
              help="Number of particles or, with the filter, of prefixes.")  # fmt: skip
@click.option("--proposal", type=click.Choice(["lm", "lcd", "gcd", "greedy_close", "pgcd"]),
              default="gcd", show_default=True, help="Method that proposes tokens.")  # fmt: skip
@click.option("--algorithm", type=click.Choice(["auto", "smc", "discrete"]), default="auto",
              show_default=True, help="Sampling algorithm.")  # fmt: skip
@click.option("--server", metavar="URL",
              help="Sample from a vLLM server; MODEL only provides the vocabulary.")  # fmt: skip
@click.option("--hmm", metavar="DIR", help="For pgcd: directory of an HMM of the model's answers.")
@click.option("--deadline", type=click.FloatRange(0), metavar="SECONDS",
              help="Time limit for sampling, without loading; answers then end.")  # fmt: skip
@click.option("--certify", type=click.FloatRange(0, 1, min_open=True), metavar="SHARE",
              help="Compute more until this share of the posterior is found.")  # fmt: skip
@click.option("--max-tokens-read", type=click.IntRange(1), default=1000, show_default=True,
              metavar="TOKENS", help="Most further tokens for --certify to compute.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of random numbers.")
@_as_json
def sample(
    source: _Source, model: str, budget: int, server: str | None, hmm: str | None,
    as_json: bool, **settings: Any,
) -> None:  # fmt: skip
    """Sample answers from a language model under a constraint, within a budget.

    Prints every distinct answer with its estimated probability, the standard error (with --certify
    the largest possible error), and a guaranteed interval. For JSON answers, prints the same for
    the values of each field. Also prints how reliable the estimates are. Exit code 1 if no answer
    was found, 2 if no text that satisfies the constraint fits the budget.

    \b
    Examples:
      gcd sample schema.json --model models/mine --max-tokens 60 --prompt 'Answer: '
      gcd sample --regex '(yes|no), .{1,40}' --model models/mine --max-tokens 20
      gcd sample schema.json --model models/mine --max-tokens 200 --deadline 5
      gcd sample schema.json --model models/mine --max-tokens 60 --certify 0.95
      gcd sample schema.json --model models/mine --max-tokens 60 --server http://localhost:8000
    """
    _check_sampling(server, hmm, **settings)
    import gcd

    language, automaton = _compile(source, model, budget)
    gcd.Matcher(automaton, budget=budget)  # refuses a budget that no text fits
    from gcd_cli import _sampling as sampling
    from gcd_cli._sources import request_of

    if server is None:
        posterior = sampling.draw(
            model, language, automaton, hmm=hmm, max_tokens=budget, **settings
        )
    else:
        for option in ("algorithm", "deadline", "certify", "max_tokens_read"):
            del settings[option]
        request = request_of(*source)
        posterior = sampling.draw_from_server(
            server, request, automaton.vocabulary, max_tokens=budget, **settings
        )
    found = sampling.report(posterior)
    _print(found, as_json, sampling.lines_of(found, budget))
    _answer(bool(found["answers"]))


def _check_sampling(
    server: str | None, hmm: str | None, *, proposal: str, algorithm: str, **more: Any
) -> None:
    """Raise an error if options of `gcd sample` contradict each other."""
    if (proposal == "pgcd") != (hmm is not None):
        raise click.UsageError(
            "expected --proposal pgcd and --hmm DIR together, got only one of them; add the other"
        )
    if server is None:
        return
    if proposal not in ("gcd", "lcd") or algorithm == "discrete":
        raise click.UsageError(
            "expected --proposal gcd or lcd, and --algorithm auto or smc, with --server; got "
            f"--proposal {proposal} and --algorithm {algorithm}"
        )
    if more["deadline"] is not None or more["certify"] is not None:
        raise click.UsageError("expected --server without --deadline and --certify; omit them")


def _compile(source: _Source, tokenizer: str | None, budget: int | None) -> tuple[Any, Any]:
    """Compile a constraint; return its language, and its token automaton if there is a tokenizer.

    Quick checks come first, because compiling may take seconds. A budget that is too small for any
    text isn't an error here; the command later reports that no text fits.
    """
    import gcd
    from gcd_cli import _sources as sources

    if budget is not None and tokenizer is None:
        raise sources.BadInput(
            "expected --tokenizer MODEL with --max-tokens, got none; add it, because a budget is a "
            "number of the tokenizer's tokens"
        )
    vocabulary = None if tokenizer is None else sources.vocabulary(tokenizer)
    language = sources.language(*source)
    if vocabulary is None:
        return language, None
    automaton = gcd.lift(language, vocabulary)
    with suppress(gcd.InfeasibleBudgetError):
        if budget is not None:
            # Raises an error if the budget allows texts for which the constraint isn't exact.
            gcd.Matcher(automaton, budget=budget)
    return language, automaton
