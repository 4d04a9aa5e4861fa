"""This module reads what commands are given: constraints and vocabularies, from files.

Whatever is wrong with a file is one `BadInput`, which says where and what to do, before any work.
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
from gcd.support.optional import missing

KINDS = ("schema", "regex", "tools", "sql", "grammar")
_CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json")
_GIVE = "give the directory of a model, with its tokenizer.json, or its name on the hub"


class BadInput(click.ClickException):
    """A command was given something that it cannot work on; the exit code is 2."""

    exit_code = 2


def read_bytes(path: str) -> bytes:
    """Return the content of a file, `-` for standard input."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadInput(
            f"cannot read {path}: {error.strerror}; give a file, or - for stdin"
        ) from error


def read_json(path: str) -> Any:
    """Parse a JSON file; `BadInput` says the line and the column where it is none."""
    try:
        return json.loads(read_bytes(path))
    except json.JSONDecodeError as error:
        raise BadInput(
            f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not JSON: byte {error.start + 1} is not UTF-8") from error
    except RecursionError as error:
        raise BadInput(f"{path} is nested too deeply to be read") from error


_OF_SCHEMAS = ("whitespace", "max_depth", "max_bytes", "formats", "unknown", "unsupported")
_OPTIONS_OF = {
    "schema": _OF_SCHEMAS,
    "tools": _OF_SCHEMAS,
    "grammar": ("max_depth", "max_bytes"),
}


def language(given: str, kind: str, options: Mapping[str, Any] | None = None) -> gcd.Automaton:
    """Compile the constraint that a command was given.

    Args:
        given: a file, or the regular expression itself; a database of Spider's list is
            `tables.json#NAME`, a grammar that begins with another rule than usual `FILE#RULE`.
        kind: one of `KINDS`.
        options: keyword arguments of `gcd.json_schema`, `gcd.tool_calls` or `gcd.grammar`.

    Raises:
        BadInput: if a file cannot be read, or an option says nothing to this kind of language.
        ConstraintError: if the constraint cannot be honoured.
    """
    options = options or {}
    usable = _OPTIONS_OF.get(kind, ())
    useless = [f"--{name.replace('_', '-')}" for name in options if name not in usable]
    if useless:
        raise BadInput(
            f"{', '.join(useless)}: for JSON schemas and tool lists only (--max-depth and "
            f"--max-bytes for grammars, too), this is --{kind}"
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
        raise BadInput("no string satisfies the constraint")
    return found


def request_of(given: str, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a constraint as requests to a server state it (`gcd.requests`).

    Raises:
        BadInput: a server can't be sent constraints of this kind from a command.
    """
    more = {"options": dict(options)} if options else {}
    if kind == "regex":
        return {"regex": given}
    if kind == "grammar" and "#" not in given:
        return {"grammar": _text(given)} | more
    if kind not in ("schema", "tools"):
        raise BadInput(
            "--server takes a schema, --regex, --tools, or --grammar without a rule; for others "
            "call gcd_vllm.sample_from_server"
        )
    return {"json_schema" if kind == "schema" else kind: read_json(given)} | more


def _text(path: str) -> str:
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is no text: byte {error.start + 1} is not UTF-8") from error


def _dialect(path: str) -> str:
    """The dialect of a grammar by the end of its file's name; lark without one."""
    suffix = Path(path).suffix[1:] or "lark"
    if suffix not in ("lark", "gbnf", "ebnf"):
        raise BadInput(f"{path}: a grammar is a file .lark, .gbnf or .ebnf")
    return suffix


def vocabulary(given: str) -> gcd.Vocabulary:
    """Read the vocabulary of a model's directory or hub name, as wide as the model's logits.

    `tokenizer.json` has the tokens; ids that end a text and the width are in the configurations
    beside it. No model and no `transformers` is loaded.

    Raises:
        BadInput: if there is no such model, or no `tokenizer.json` beside it.
    """
    folder = Path(given) if Path(given).is_dir() else _from_hub(given)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise BadInput(f"{file} does not exist; {_GIVE}")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise BadInput(str(missing("tokenizers", "cli", "reading a tokenizer"))) from error
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more special
        raise BadInput(f"{file} is no tokenizer ({error}); copy it again") from error
    config, generation, names = (_config(folder / name) for name in _CONFIGS)
    end = getattr(names, "eos_token", None)
    end = getattr(end, "content", end)
    named = SimpleNamespace(eos_token_id=None if end is None else tokenizer.token_to_id(end))
    model = SimpleNamespace(config=config, generation_config=generation)
    text = getattr(config, "text_config", config)
    width = getattr(text, "vocab_size", 0)
    if not isinstance(width, int):
        raise BadInput(f"{folder / 'config.json'}: vocab_size is {width!r}, not a number of tokens")
    size = max(width, tokenizer.get_vocab_size())
    return gcd.Vocabulary.from_tokenizer(tokenizer, size=size, eos_ids=gcd.eos_ids_of(model, named))


def _from_hub(name: str) -> Path:
    """The folder of the files, out of the hub or its cache, that `vocabulary` reads."""
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
    except HFValidationError as error:  # the path of a directory, then
        raise BadInput(f"{name} is not a directory; {_GIVE}") from error
    except (OSError, ValueError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(
            f"{name} is neither a directory nor a model that the hub gives ({cause}); {_GIVE}"
        ) from error


def _config(path: Path) -> SimpleNamespace:
    """The fields of a configuration as attributes; none if there is no such file."""
    if not path.is_file():
        return SimpleNamespace()
    found = read_json(str(path))
    if not isinstance(found, dict):
        raise BadInput(f"{path} holds no JSON object; copy it again")
    nested = found.get("text_config"), found.get("eos_token")
    for name, value in zip(("text_config", "eos_token"), nested, strict=True):
        if isinstance(value, dict):
            found[name] = SimpleNamespace(**value)
    return SimpleNamespace(**found)
