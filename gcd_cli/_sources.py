"""Constraints and vocabularies that commands read from files.

Any problem with a file raises `BadInput` before other work is done. The message has the location of
the problem and the remedy.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

import gcd
from gcd._support.optional import missing

_CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json")


class BadInput(click.ClickException):
    """Invalid input to a command; the exit code is 2."""

    exit_code = 2


def read_bytes(path: str) -> bytes:
    """Return the content of a file, or of standard input for `-`."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadInput(
            f"cannot read {path}: {error.strerror}; pass a file, or - for stdin"
        ) from error


def read_json(path: str) -> Any:
    """Parse a JSON file; the error for invalid JSON gives the line and column."""
    try:
        return json.loads(read_bytes(path))
    except json.JSONDecodeError as error:
        raise BadInput(
            f"expected JSON in {path}, got a syntax error at line {error.lineno}, column "
            f"{error.colno}: {error.msg}"
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(
            f"expected JSON in UTF-8 in {path}, but byte {error.start + 1} is not UTF-8"
        ) from error
    except RecursionError as error:
        raise BadInput(f"{path} is nested too deeply; flatten it") from error


_OF_SCHEMAS = ("whitespace", "max_depth", "max_bytes", "formats", "unknown", "unsupported")
_OPTIONS_OF = {
    "schema": _OF_SCHEMAS,
    "tools": _OF_SCHEMAS,
    "grammar": ("max_depth", "max_bytes"),
}


def language(given: str, kind: str, options: Mapping[str, Any] | None = None) -> gcd.Automaton:
    """Compile the constraint that a command received (`_SCHEMA_HELP` describes its forms)."""
    options = options or {}
    usable = _OPTIONS_OF.get(kind, ())
    useless = [f"--{name.replace('_', '-')}" for name in options if name not in usable]
    if useless:
        raise BadInput(
            f"expected {', '.join(useless)} with JSON schemas and tool lists only (--max-depth and "
            f"--max-bytes also with grammars), got --{kind}; omit it"
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if kind == "regex":
            found = gcd.regex(given)
        elif kind == "tools":
            found = gcd.tool_calls(read_json(given), **options)
        elif kind == "grammar":
            file, _, start = given.partition("#")
            found = gcd.grammar(_text(file), _dialect(file), start=start or None, **options)
        elif kind == "sql":
            file, mark, name = given.partition(".json#")
            found = gcd.sql(gcd.sql_schema(f"{file}.json", name) if mark else given)
        else:
            found = gcd.json_schema(read_json(given), **options)
    for warning in caught:
        click.echo(f"Warning: {warning.message}", err=True)
    if found.is_empty:
        raise BadInput("expected a constraint that some string satisfies, got an empty language")
    return found


def request_of(given: str, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a constraint in the form of a request to a server (`gcd_vllm._requests`)."""
    more = {"options": dict(options)} if options else {}
    if kind == "regex":
        return {"regex": given}
    if kind == "grammar" and "#" not in given:
        return {"grammar": _text(given)} | more
    if kind not in ("schema", "tools"):
        raise BadInput(
            "expected a JSON Schema, --regex, --tools, or --grammar without #RULE with --server; "
            "for other constraints call gcd_vllm.sample_from_server"
        )
    return {"json_schema" if kind == "schema" else kind: read_json(given)} | more


def _text(path: str) -> str:
    """Return the UTF-8 text of a file."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"expected UTF-8 text in {path}, but byte {error.start + 1} is not UTF-8"
        ) from error


def _dialect(path: str) -> str:
    """Return a grammar's dialect by its file extension; lark if there is none."""
    suffix = Path(path).suffix[1:] or "lark"
    if suffix not in ("lark", "gbnf", "ebnf"):
        raise BadInput(f"expected a grammar in a .lark, .gbnf or .ebnf file, got {path}")
    return suffix


def vocabulary(given: str) -> gcd.Vocabulary:
    """Read the vocabulary of a model, as wide as the model's logits, by directory or hub name.

    `tokenizer.json` has the tokens. The configurations beside it have the width and the EOS ids.
    Neither the model nor `transformers` is loaded.
    """
    folder = Path(given) if Path(given).is_dir() else _from_hub(given)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise BadInput(
            f"expected tokenizer.json in the model directory, but {file} does not exist; pass a "
            "directory with this file, or a name on the hub"
        )
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise BadInput(str(missing("tokenizers", "cli", "reading a tokenizer"))) from error
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more specific
        raise BadInput(f"expected a tokenizer in {file} ({error}); download it again") from error
    config, generation, names = (_config(folder / name) for name in _CONFIGS)
    end = getattr(names, "eos_token", None)
    end = getattr(end, "content", end)
    named = SimpleNamespace(eos_token_id=None if end is None else tokenizer.token_to_id(end))
    model = SimpleNamespace(config=config, generation_config=generation)
    text = getattr(config, "text_config", config)
    width = getattr(text, "vocab_size", 0)
    if not isinstance(width, int):
        raise BadInput(
            f"expected vocab_size to be a number of tokens in {folder / 'config.json'}, got "
            f"{width!r}"
        )
    size = max(width, tokenizer.get_vocab_size())
    return gcd.Vocabulary.from_tokenizer(tokenizer, size=size, eos_ids=gcd.eos_ids_of(model, named))


def _from_hub(name: str) -> Path:
    """Download the files that `vocabulary` reads, unless they are cached; return their folder."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        needed = missing("huggingface_hub", "cli", f"{name} is not a directory, and the hub")
        raise BadInput(str(needed)) from error
    disable_progress_bars()
    try:
        return Path(snapshot_download(name, allow_patterns=["tokenizer.json", *_CONFIGS]))
    except HFValidationError as error:  # not a valid hub name, so it was meant as a directory
        raise BadInput(
            f"expected a model directory or a name on the hub, but {name} is not a directory, and "
            "not a valid name; pass another one"
        ) from error
    except (OSError, ValueError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(
            f"expected a model directory or a name on the hub, but {name} is neither a directory "
            f"nor a model available on the hub ({cause}); pass another one"
        ) from error


def _config(path: Path) -> SimpleNamespace:
    """Read a model's JSON configuration as an object with attributes; empty without the file."""
    if not path.is_file():
        return SimpleNamespace()
    found = read_json(str(path))
    if not isinstance(found, dict):
        raise BadInput(f"expected a JSON object in {path}; download the file again")
    nested = found.get("text_config"), found.get("eos_token")
    for name, value in zip(("text_config", "eos_token"), nested, strict=True):
        if isinstance(value, dict):
            found[name] = SimpleNamespace(**value)
    return SimpleNamespace(**found)
