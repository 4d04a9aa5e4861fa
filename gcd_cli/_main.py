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


def _kinds(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that describe a constraint to a command.

    The command receives the options in `_LANGUAGE_OPTIONS` as a dictionary, `options`.
    """

    @wraps(command)
    def with_options(**given: Any) -> Any:
        chosen = {name: given.pop(name) for name in _LANGUAGE_OPTIONS}
        options = {name: value for name, value in chosen.items() if value is not None}
        return command(options=options, **given)

    decorated: Callable[..., Any] = with_options
    for option in (
        click.option(
            "--unsupported",
            type=click.Choice(["warn", "ignore", "refuse"]),
            help="Handling of keywords that an automaton can't enforce.",
        ),
        click.option(
            "--unknown",
            type=click.Choice(["warn", "ignore", "refuse"]),
            help="Handling of unknown keywords.",
        ),
        click.option(
            "--formats",
            type=click.Choice(["assert", "ignore"]),
            help="Enforce or ignore the keyword format.",
        ),
        click.option("--max-bytes", type=int, help="Maximum length of a text in bytes."),
        click.option("--max-depth", type=int, help="Maximum depth of free values and recursion."),
        click.option(
            "--whitespace",
            type=click.Choice(["compact", "spaced", "flexible"]),
            help='Whitespace in JSON: {"a":1}, {"a": 1}, or any.',
        ),
        click.option("--grammar", "kind", flag_value="grammar", help="SCHEMA is a grammar."),
        click.option("--sql", "kind", flag_value="sql", help="SCHEMA is a database to query."),
        click.option("--tools", "kind", flag_value="tools", help="SCHEMA is a list of tools."),
        click.option("--regex", "kind", flag_value="regex", help="SCHEMA is a regex."),
        click.option(
            "--schema",
            "kind",
            flag_value="schema",
            default="schema",
            help="SCHEMA is a JSON Schema (default).",
        ),
    ):
        decorated = option(decorated)
    return decorated


_tokenizer = click.option(
    "--tokenizer", metavar="MODEL", help="Model directory or hub name that has a tokenizer.json."
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
    click.get_current_context().exit(0 if is_yes else 1)


@main.command(name="compile", epilog=_SCHEMA_HELP)
@click.argument("given", metavar="SCHEMA")
@_kinds
@_tokenizer
@click.option("--draw", metavar="FILE", help="Draw the automaton into FILE (.svg or .dot).")
@_as_json
def compile_(
    given: str,
    kind: str,
    options: dict[str, Any],
    tokenizer: str | None,
    draw: str | None,
    as_json: bool,
) -> None:
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
    language = sources.language(given, kind, options)
    seconds = time.perf_counter() - start
    shortest = language.shortest()
    report: dict[str, Any] = {
        "states": language.num_states,
        "byte_classes": language.delta.shape[1],
        "fewest_bytes": len(shortest),
        "shortest": shortest.decode(errors="backslashreplace"),
        "seconds": seconds,
    }
    lines = [
        ("bytes", f"{language.num_states:,} states, {language.delta.shape[1]} byte classes"),
        ("shortest", f"{len(shortest)} bytes, {report['shortest']}"),
    ]
    lines += explaining.caveat_lines(report, language)
    if isinstance(language, gcd.GrammarLanguage):
        report["extent"] = language.extent
        lines.append(("extent", language.extent))
    drawn: Any = language
    if vocabulary is not None:
        start = time.perf_counter()
        drawn = automaton = gcd.lift(language, vocabulary)
        lifting = time.perf_counter() - start
        fewest = automaton.fewest_tokens
        report["tokens"] = {
            "vocabulary": vocabulary.size,
            "states": automaton.num_states,
            "classes": automaton.num_classes,
            "fewest_tokens": fewest,
            "memory_bytes": automaton.nbytes,
            "seconds": lifting,
        }
        states, classes = f"{automaton.num_states:,} states", f"{automaton.num_classes} classes"
        lines += [
            ("tokens", f"{states}, {classes} of {vocabulary.size:,} tokens"),
            ("fewest", f"{fewest} tokens, EOS included"),
            ("memory", f"{automaton.nbytes / 1e3:,.0f} kB"),
            ("time", f"{seconds:.2f} s to compile, {lifting:.2f} s to lift"),
        ]
    else:
        lines.append(("time", f"{seconds:.2f} s"))
    if draw is not None:
        text = drawing.to_svg(drawn) if draw.endswith(".svg") else drawing.to_dot(drawn)
        try:
            Path(draw).write_text(text, encoding="utf-8")
        except OSError as error:
            raise sources.BadInput(
                f"cannot write {draw}: {error.strerror}; pass another file to --draw"
            ) from error
    _print(report, as_json, lines)


@main.command(epilog=_SCHEMA_HELP)
@click.argument("given", metavar="SCHEMA")
@click.argument("prefix")
@_kinds
@_tokenizer
@click.option("--budget", type=click.IntRange(1), help="Maximum tokens of a text, EOS included.")
@_as_json
def explain(
    given: str,
    prefix: str,
    kind: str,
    options: dict[str, Any],
    tokenizer: str | None,
    budget: int | None,
    as_json: bool,
) -> None:
    """Show which bytes may follow PREFIX, or at which byte PREFIX is refused.

    Exit code 1 if no text of the language begins with PREFIX, or no such text fits into the budget.

    \b
    Examples:
      gcd explain schema.json '{"name": "A'
      gcd explain --regex '(ab)*c' abb
      gcd explain schema.json '{"hour":2' --tokenizer models/mine --budget 12
    """
    from gcd._readable import readable_bytes
    from gcd_cli import _explaining as explaining

    language, automaton = _sources(given, kind, options, tokenizer, budget)
    found = explaining.standing(language, os.fsencode(prefix))  # as typed, UTF-8 or not
    report = found.report()
    begun, completion = found.text[: found.viable], readable_bytes(found.completion, None)
    lines = []
    if found.is_refused:
        lines.append(("refused", found.reason() or ""))
    else:
        ends = "the text may end here" if found.may_end else "the text may not end here"
        lines.append(("viable", f"{readable_bytes(begun)}: {ends}"))
        lines.append(("next", found.expected or "nothing, the text has to end here"))
    lines.append(("to the end", f"at least {len(found.completion)} bytes, {completion}"))
    lines += explaining.caveat_lines(report, language)
    is_yes = not found.is_refused
    if automaton is not None:
        tokens = report["in_tokens"] = explaining.in_tokens(automaton, begun, budget)
        tokens["reason"] = why = explaining.why_not(tokens, budget)
        # The prefix begins texts of the language, but all of them are too long for the budget.
        if is_yes and why is not None:
            lines[0] = ("refused", f"{readable_bytes(begun)}: {why}")
            lines[1:2] = []
        is_yes = is_yes and tokens["fits"]
        if tokens["tokens"] is None:
            lines.append(("tokens", "the vocabulary's tokens cannot spell it"))
        else:
            left = "" if budget is None else f", {tokens['remaining']} of {budget} left"
            few = " ".join(tokens["examples"])
            of_all = f"{tokens['allowed']} of {tokens['vocabulary']} may come next"
            more = tokens["allowed_without_budget"]
            binds = f"; without the budget {more}" if more != tokens["allowed"] else ""
            lines += [
                ("tokens", f"at least {tokens['tokens']} so far{left}"),
                ("", f"{of_all}{f': {few}' if few else ''}{binds}"),
                ("", f"at least {tokens['fewest_tokens']} to the end, EOS included"),
            ]
    _print(report, as_json, lines)
    _answer(is_yes)


@main.command(epilog=_SCHEMA_HELP)
@click.argument("given", metavar="SCHEMA")
@click.argument("file")
@_kinds
@_tokenizer
@click.option("--budget", type=click.IntRange(1), help="Maximum tokens, EOS included.")
@click.option("--strip", is_flag=True, help="Remove whitespace around the text.")
@_as_json
def check(
    given: str,
    file: str,
    kind: str,
    options: dict[str, Any],
    tokenizer: str | None,
    budget: int | None,
    strip: bool,
    as_json: bool,
) -> None:
    """Check whether the text in FILE (- for standard input) satisfies a constraint.

    If not, print the reason and exit with code 1. With --tokenizer and --budget, the text also has
    to fit into the budget.

    \b
    Examples:
      gcd check schema.json answer.json --strip
      echo -n 2026-02-30 | gcd check --regex '[0-9]{4}-[0-9]{2}-[0-9]{2}' -
    """
    from gcd_cli import _explaining as explaining
    from gcd_cli import _sources as sources

    text = sources.read_bytes(file)
    text = explaining.strip(text) if strip else text
    language, automaton = _sources(given, kind, options, tokenizer, budget)
    report, said = explaining.judge(language, automaton, text, budget)
    is_yes = report["reason"] is None
    lines = [("yes" if is_yes else "no", said)]
    lines += explaining.caveat_lines(report, language)
    if not is_yes:

        def accepts(style: str | None, text: bytes) -> bool:
            other = (language, automaton)
            if style is not None:
                styled = {**options, "whitespace": style}
                other = _sources(given, kind, styled, tokenizer, budget)
            return explaining.judge(*other, text, budget)[0]["reason"] is None

        is_json = kind in ("schema", "tools")
        styles = ("flexible", "spaced", "compact") if is_json else ()
        hint = explaining.spacing_hint(text, accepts, styles)
        if hint is None and is_json:
            hint = explaining.order_hint(text, language)
        report["hint"] = hint
        lines += [("", hint)] if hint else []
    _print(report, as_json, lines)
    _answer(is_yes)


@main.command(epilog=_SCHEMA_HELP)
@click.argument("given", metavar="SCHEMA")
@click.option("--model", required=True, metavar="MODEL",
              help="Directory or hub name of a causal model.")  # fmt: skip
@click.option("--budget", required=True, type=click.IntRange(1),
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
    given: str,
    model: str,
    budget: int,
    kind: str,
    options: dict[str, Any],
    prompt: str,
    particles: int,
    proposal: str,
    algorithm: str,
    server: str | None,
    hmm: str | None,
    deadline: float | None,
    certify: float | None,
    max_tokens_read: int,
    seed: int,
    as_json: bool,
) -> None:
    """Sample answers from a language model under a constraint, within a budget.

    Prints every distinct answer with its estimated probability, the standard error (with --certify
    the largest possible error), and a guaranteed interval. For JSON answers, prints the same for
    the values of each field. Also prints how reliable the estimates are. Exit code 1 if no answer
    was found, 2 if no text that satisfies the constraint fits the budget.

    \b
    Examples:
      gcd sample schema.json --model models/mine --budget 60 --prompt 'Answer: '
      gcd sample --regex '(yes|no), .{1,40}' --model models/mine --budget 20
      gcd sample schema.json --model models/mine --budget 200 --deadline 5
      gcd sample schema.json --model models/mine --budget 60 --certify 0.95
      gcd sample schema.json --model models/mine --budget 60 --server http://localhost:8000
    """
    if (proposal == "pgcd") != (hmm is not None):
        raise click.UsageError(
            "expected --proposal pgcd and --hmm DIR together, got only one of them; add the other"
        )
    import gcd

    if server is not None:
        if proposal not in ("gcd", "lcd") or algorithm == "discrete":
            raise click.UsageError(
                "expected --proposal gcd or lcd, and --algorithm auto or smc, with --server; got "
                f"--proposal {proposal} and --algorithm {algorithm}"
            )
        if any(option is not None for option in (deadline, certify)):
            raise click.UsageError("expected --server without --deadline and --certify; omit them")
    language, automaton = _sources(given, kind, options, model, budget)
    gcd.Matcher(automaton, budget=budget)  # refuses a budget that no text fits
    from gcd_cli import _sources as sources
    from gcd_cli._sampling import draw, draw_from_server, lines_of

    if server is not None:
        found = draw_from_server(
            server, sources.request_of(given, kind, options), automaton.vocabulary, prompt=prompt,
            budget=budget, particles=particles, proposal=proposal, seed=seed,
        )  # fmt: skip
    else:
        found = draw(
            model, language, automaton, prompt=prompt, budget=budget, particles=particles,
            proposal=proposal, algorithm=algorithm, seed=seed, hmm=hmm, deadline=deadline,
            certify=certify, max_tokens_read=max_tokens_read,
        )  # fmt: skip
    _print(found, as_json, lines_of(found, budget))
    _answer(bool(found["answers"]))


def _sources(
    given: str,
    kind: str,
    options: dict[str, Any],
    tokenizer: str | None,
    budget: int | None,
) -> tuple[Any, Any]:
    """Compile a constraint; return its language, and its token automaton if there is a tokenizer.

    Quick checks come first, because compiling may take seconds. A budget that is too small for any
    text isn't an error here; the command later reports that no text fits.
    """
    import gcd
    from gcd_cli import _sources as sources

    if budget is not None and tokenizer is None:
        raise sources.BadInput(
            "expected --tokenizer MODEL with --budget, got none; add it, because a budget is a "
            "number of the tokenizer's tokens"
        )
    vocabulary = None if tokenizer is None else sources.vocabulary(tokenizer)
    language = sources.language(given, kind, options)
    if vocabulary is None:
        return language, None
    automaton = gcd.lift(language, vocabulary)
    with suppress(gcd.InfeasibleBudgetError):
        if budget is not None:
            # Raises an error if the budget allows texts for which the constraint isn't exact.
            gcd.Matcher(automaton, budget=budget)
    return language, automaton
