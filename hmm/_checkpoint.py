"""Saving and loading of models in two file layouts.

**This project's layout** has the files `hmm.safetensors` and `config.json`. The arrays are

    initial (H)
    transition (H, H)
    emission (V, H)

All arrays are probabilities, in the dtype in which they were saved. Half-precision
types make small files. bfloat16 has the range of float32 and a relative error of 0.4% per entry.
float16 has an error of 0.05%, but its smallest positive value is 6e-8. Saving in float16 is refused
if a smaller positive entry would become zero. Rounded probabilities are normalized again in float32
when they are loaded.

Files of earlier versions may have emission_rows (R, H) and row_of (V) instead of emission, where
emission[v] = emission_rows[row_of[v]].

**Ctrl-G's layout** (arXiv 2406.13892) is used for published HMMs of public language models.
`model.safetensors` (or `pytorch_model.bin`) has the arrays

    alpha_exp (H, H)               transition probabilities
    beta (H, V)                    logarithms of emission probabilities, a row per hidden state
    gamma (H) or (1, H)            logarithms of initial probabilities, up to a constant

and `config.json` has `hidden_states`, `vocab_size` and `eos_token_id`.

**Vocabulary.** An HMM belongs to one tokenizer. The files include `eos_token_id` and, in this
project's layout, `vocabulary_digest`, a digest of the bytes of all tokens. If a vocabulary is
passed to `load`, an HMM of another vocabulary is refused, even if it has the same number of tokens.

**Training** can be interrupted and resumed. `save_step` stores the expected counts of EM with the
model, so resumed training gives identical results. If saving is interrupted, the previous
checkpoint is preserved (`hmm._files`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gcd import Vocabulary
from hmm._em import Statistics, Step
from hmm._files import check_tensors, read_json, read_tensors, write_json, write_tensors
from hmm._model import HMM
from hmm._transition import Dense

WEIGHTS, CONFIG, STEP = "hmm.safetensors", "config.json", "step.safetensors"
ENDS, DIGEST = "eos_token_id", "vocabulary_digest"
_SHARED = ("emission_rows", "row_of")
_CTRLG = ("alpha_exp", "beta", "gamma")
_HALF = (torch.float16, torch.bfloat16)
_RESERVED = ("format", "hidden_states", "vocab_size", "transition")


class Checkpoint(NamedTuple):
    """A loaded model with its configuration.

    Attributes:
        hmm: the model; its probabilities have been checked.
        config: the content of `config.json`.
    """

    hmm: HMM
    config: dict[str, Any]


def save(
    hmm: HMM,
    directory: str | Path,
    *,
    vocabulary: Vocabulary | None = None,
    config: dict[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a model to a directory, in this project's layout.

    Args:
        hmm: the model. It is checked before any file is written.
        directory: the directory, which is created if it is missing. Files of an existing model are
            replaced.
        vocabulary: the model's vocabulary; None if only the number of tokens is known.
        config: other values to store as JSON, such as training settings.
        dtype: type in which the arrays are stored; by default each array's own type.

    Raises:
        ValueError: the model is invalid, its number of tokens differs from the vocabulary's,
            `dtype` would turn positive entries into zero, or `config` has a key that this function
            sets.
    """
    hmm.check()
    if vocabulary is not None and vocabulary.size != hmm.num_tokens:
        raise ValueError(
            f"expected a vocabulary of {hmm.num_tokens} tokens, as in the HMM, got one of "
            f"{vocabulary.size} tokens"
        )
    named = {} if vocabulary is None else _names_of(vocabulary)
    taken = [key for key in (*_RESERVED, *named) if key in (config or {})]
    if taken:
        raise ValueError(
            f"expected a config without the keys {taken}, whose values are taken from the model; "
            "remove these keys"
        )
    stored = {name: part.to(dtype) for name, part in _parts(hmm).items()}
    for name, part in stored.items():
        lost = int(((part == 0) & (_parts(hmm)[name] > 0)).sum())
        if lost:
            raise ValueError(
                f"expected probabilities that {dtype} can represent, but {lost} positive entries "
                f"of {name} would become zero; save in bfloat16, or train with larger pseudo-counts"
            )
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    values = ("hmm-1", hmm.num_states, hmm.num_tokens, "dense")
    described = dict(zip(_RESERVED, values, strict=True)) | named | (config or {})
    write_tensors(stored, directory / WEIGHTS)
    write_json(described, directory / CONFIG)


def load(
    directory: str | Path,
    *,
    num_tokens: int | None = None,
    vocabulary: Vocabulary | None = None,
    device: torch.device | str = "cpu",
    emission_dtype: torch.dtype | None = None,
) -> Checkpoint:
    """Load a model in its saved dtype, or in float32 if it was saved in half precision.

    Args:
        directory: directory with a model in one of the two layouts, which `config.json` identifies.
        num_tokens: required number of tokens; None accepts any number.
        vocabulary: required vocabulary; None accepts any. The number of tokens, the EOS ids and the
            bytes of each token are compared, if the files contain them.
        device: device of the loaded model.
        emission_dtype: type of the emissions; bfloat16 halves the memory of a large model.

    Raises:
        ValueError: the vocabulary differs; files are missing, damaged or in an unknown format;
            shapes disagree with the configuration; or values are not probabilities.
    """
    directory = Path(directory)
    config = _config(directory)
    ours = "format" in config
    hmm, is_half = (_read_ours if ours else _read_ctrlg)(directory, config, device)
    _same_sizes(hmm, config, num_tokens, directory)
    if vocabulary is not None:
        _same_tokens(hmm, config, vocabulary, directory)
    # Rounded logarithms have errors of a few percent, so the check has the tolerance of bfloat16.
    (hmm if ours or not is_half else hmm.to(dtype=torch.bfloat16)).check()
    if is_half:
        hmm = hmm.normalized()
    return Checkpoint(hmm.to(dtype=hmm.dtype, emission_dtype=emission_dtype), config)


def _read_ours(
    directory: Path, config: dict[str, Any], device: torch.device | str
) -> tuple[HMM, bool]:
    """Read a model in this project's layout without checks.

    Returns:
        The model, and whether an array was stored in half precision.
    """
    if config["format"] != "hmm-1":
        raise ValueError(
            f"expected the format 'hmm-1' in {directory / CONFIG}, got {config['format']!r}; if a "
            "later version of this package saved the model, update the package"
        )
    parts = read_tensors(directory / WEIGHTS, device)
    is_half = any(part.dtype in _HALF for part in parts.values())
    return _assemble(parts, directory / WEIGHTS), is_half


def _read_ctrlg(
    directory: Path, config: dict[str, Any], device: torch.device | str
) -> tuple[HMM, bool]:
    """Read a model in Ctrl-G's layout without checks.

    Returns:
        The model, and whether an array was stored in half precision.
    """
    path = _ctrlg_weights(directory)
    state = read_tensors(path, device)
    missing = set(_CTRLG) - state.keys()
    if missing:
        raise ValueError(
            f"expected the arrays {list(_CTRLG)} in {path}, got {sorted(state)}; download it again"
        )
    is_half = any(state[name].dtype in _HALF for name in _CTRLG)
    alpha, beta, gamma = (_widen(state[name]) if is_half else state[name] for name in _CTRLG)
    # Ctrl-G applies a softmax to gamma, so gamma may be shifted by any constant.
    initial = gamma.reshape(-1).softmax(dim=0)
    return HMM(initial, Dense(alpha), beta.exp().T.contiguous()), is_half


def check_files(directory: str | Path) -> None:
    """Raise an error if a model's files, in either layout, are missing or truncated.

    It doesn't read the arrays. A job can check a model early with it, and load the model later.
    """
    directory = Path(directory)
    ours = "format" in _config(directory)
    check_tensors(directory / WEIGHTS if ours else _ctrlg_weights(directory))


def _ctrlg_weights(directory: Path) -> Path:
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (directory / name).is_file():
            return directory / name
    raise ValueError(
        f"expected model.safetensors or pytorch_model.bin in {directory}, got neither; pass the "
        "directory of a model"
    )


def save_step(step: Step, directory: str | Path) -> None:
    """Save the model and the expected counts of EM, so that training can continue later."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": part for name, part in _parts(step.hmm).items()}
    tensors["step"] = torch.tensor(step.step, device="cpu")
    tensors["log_likelihood"] = torch.tensor(step.log_likelihood, dtype=torch.float64, device="cpu")
    if step.statistics is not None:
        for name, value in step.statistics._asdict().items():
            arrays = value if isinstance(value, tuple) else (value,)
            tensors |= {f"statistics.{name}.{i}": array for i, array in enumerate(arrays)}
    # A single file contains the whole state, so that an interruption can't mix two steps. The model
    # is also stored separately, for `load`.
    write_tensors(tensors, directory / STEP)
    save(step.hmm, directory)


def load_step(directory: str | Path, *, device: torch.device | str = "cpu") -> Step | None:
    """Load what `save_step` saved, to continue training; return None if there is no such file."""
    path = Path(directory) / STEP
    if not path.is_file():
        return None
    tensors = read_tensors(path, device, remedy="remove it to restart training")
    missing = {"step", "log_likelihood"} - tensors.keys()
    if missing:
        raise ValueError(
            f"expected a state of training in {path}, but {sorted(missing)} are missing; remove "
            "the file to restart training"
        )
    hmm = _assemble(
        {n.removeprefix("model."): part for n, part in tensors.items() if n.startswith("model.")},
        path,
    )
    statistics = None
    if "statistics.initial.0" in tensors:
        values = {
            name: tuple(
                tensors[key] for key in sorted(tensors) if key.startswith(f"statistics.{name}.")
            )
            for name in Statistics._fields
        }
        statistics = Statistics(
            **{n: value if n == "transition" else value[0] for n, value in values.items()}  # type: ignore[arg-type]
        )
    return Step(hmm, statistics, int(tensors["step"]), float(tensors["log_likelihood"]))


def _parts(hmm: HMM) -> dict[str, Tensor]:
    matrix = hmm.transition.matrix
    return {"initial": hmm.initial, "transition": matrix, "emission": hmm.emission}


def _assemble(parts: dict[str, Tensor], path: Path) -> HMM:
    if parts.keys() == {"initial", "transition", *_SHARED}:  # the form of earlier versions
        rows, row_of = parts["emission_rows"], parts["row_of"].long()
        if rows.dim() != 2 or not 0 <= int(row_of.min()) <= int(row_of.max()) < len(rows):
            raise ValueError(
                f"expected row_of in {path} to have row numbers of emission_rows, got others; copy "
                "the file again"
            )
        parts = {**parts, "emission": rows[row_of]}
    elif parts.keys() != {"initial", "transition", "emission"}:
        raise ValueError(
            "expected the arrays initial, transition and emission (or emission_rows and row_of) in "
            f"{path}, got {sorted(parts)}; copy the file again"
        )
    return HMM(parts["initial"], Dense(parts["transition"]), parts["emission"])


def _names_of(vocabulary: Vocabulary) -> dict[str, Any]:
    return {ENDS: list(vocabulary.eos_ids), DIGEST: vocabulary.fingerprint.hex()}


def _same_tokens(hmm: HMM, config: dict[str, Any], vocabulary: Vocabulary, directory: Path) -> None:
    """Raise an error if a vocabulary isn't the one that the HMM's `config` describes."""
    _same_number(hmm, vocabulary.size, directory)
    ends = config.get(ENDS)
    # Ctrl-G's layout has a single EOS id, and ours a list. An empty list means unknown.
    same = ends in vocabulary.eos_ids if isinstance(ends, int) else ends == [*vocabulary.eos_ids]
    if ends is not None and ends != [] and not same:
        raise ValueError(
            f"expected an HMM with the language model's EOS tokens {list(vocabulary.eos_ids)}, got "
            f"{ENDS}={ends} in {directory}; distill an HMM from this language model"
        )
    if config.get(DIGEST) not in (None, vocabulary.fingerprint.hex()):
        raise ValueError(
            f"expected an HMM for the language model's tokenizer ({DIGEST} "
            f"{vocabulary.fingerprint.hex()}), got an HMM for another tokenizer with the same "
            f"number of tokens ({DIGEST} {config[DIGEST]}) in {directory}; distill an HMM from "
            "this language model"
        )


def _same_sizes(hmm: HMM, config: dict[str, Any], num_tokens: int | None, directory: Path) -> None:
    for key, size in (("hidden_states", hmm.num_states), ("vocab_size", hmm.num_tokens)):
        if config.get(key) != size:
            raise ValueError(
                f"expected {key}={size} in {directory / CONFIG}, as in the arrays, got "
                f"{config.get(key)!r}; copy all files of the model again"
            )
    if num_tokens is not None:
        _same_number(hmm, num_tokens, directory)


def _same_number(hmm: HMM, num_tokens: int, directory: Path) -> None:
    if num_tokens != hmm.num_tokens:
        raise ValueError(
            f"expected an HMM over {num_tokens} tokens, as in the language model, got one over "
            f"{hmm.num_tokens} tokens in {directory}; distill an HMM from this language model"
        )


def _widen(part: Tensor) -> Tensor:
    return part.to(torch.promote_types(part.dtype, torch.float32))


def _config(directory: Path) -> dict[str, Any]:
    if not (directory / CONFIG).is_file():
        raise ValueError(
            f"expected a model in {directory}, but {CONFIG} doesn't exist there; pass the "
            "directory of a model"
        )
    return read_json(directory / CONFIG)
