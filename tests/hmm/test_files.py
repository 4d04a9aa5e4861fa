"""Damaged files raise a `ValueError` that names them, and readers never see partial files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from hmm._files import read_json, read_tensors, write_json, write_tensors

TENSORS = {"a": torch.arange(300), "b": torch.rand(20, 5)}
SUFFIXES = pytest.mark.parametrize("suffix", [".safetensors", ".bin"])


def written(path: Path) -> Path:
    if path.suffix == ".safetensors":
        write_tensors(TENSORS, path)
    else:
        torch.save(TENSORS, path)
    return path


@SUFFIXES
def test_whole_files_are_read_and_all_others_named(tmp_path, suffix):
    path = written(tmp_path / f"file{suffix}")
    read = read_tensors(path)
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[name], part) for name, part in TENSORS.items())
    whole = path.read_bytes()
    cut_short = [whole[: int(kept * len(whole))] for kept in (0.0, 0.01, 0.3, 0.6, 0.99)]
    for content in [*cut_short, b"abc", b"\x80\x04.", bytes(range(256)) * 9]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"file\{suffix} cannot be read \(.+\); copy it$"):
            read_tensors(path, remedy="copy it")


def test_other_contents_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"gone\.bin does not exist"):
        read_tensors(tmp_path / "gone.bin")
    torch.save([torch.ones(1)], tmp_path / "list.bin")
    with pytest.raises(ValueError, match=r"expected tensors by name in .*, got a list"):
        read_tensors(tmp_path / "list.bin")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": [1, ', "cannot be read"),
        (b"\xff\xfe{}", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"1" * 5000, "cannot be read"),
        (b"null", "got a NoneType"),
    ],
    ids=["cut", "bytes", "deep", "long", "null"],
)
def test_json_that_is_none_is_named(tmp_path, content, message):
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"some\.json,? {message}.*; throw it away$"):
        read_json(path, remedy="throw it away")


def test_an_interruption_leaves_the_previous_file(tmp_path, monkeypatch):
    write_json({"é": 1}, tmp_path / "some.json")
    write_tensors(TENSORS, tmp_path / "some.safetensors")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_json({"é": 2}, tmp_path / "some.json")
    with pytest.raises(KeyboardInterrupt):
        write_tensors({}, tmp_path / "some.safetensors")
    assert read_json(tmp_path / "some.json") == {"é": 1}
    (tmp_path / "marked.json").write_bytes(b"\xef\xbb\xbf{}")
    assert read_json(tmp_path / "marked.json") == {}
    assert read_tensors(tmp_path / "some.safetensors").keys() == TENSORS.keys()


@pytest.mark.parametrize(("folder", "file"), [(0o755, 0o644), (0o750, 0o640), (0o700, 0o600)])
def test_who_may_enter_the_folder_may_read_a_file_of_tensors(tmp_path, folder, file):
    tmp_path.chmod(folder)
    write_tensors(TENSORS, tmp_path / "some.safetensors")
    assert (tmp_path / "some.safetensors").stat().st_mode & 0o777 == file
