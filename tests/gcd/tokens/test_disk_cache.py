"""Cached files of a vocabulary: read back exactly or rejected, never trusted."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcd._automata.automaton import Automaton
from gcd._languages.text.regex import regex
from gcd._tokens import disk_cache as vocabulary_cache
from gcd._tokens.lifting import lift
from gcd._tokens.trie import Trie
from gcd._tokens.vocabulary import Vocabulary

_TOKENS = [b"", b"a", b"ab", b"b", b'b"', b'"', b"ab", b'a",', b"abab", b"a" * 9, b"{", b"}"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a separate folder, which also caches small vocabularies."""
    monkeypatch.setenv("GCD_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(vocabulary_cache, "FEWEST_IDS", 1)
    return tmp_path / "kept"


def _vocabulary() -> Vocabulary:
    return Vocabulary.from_bytes([*_TOKENS, b""], [len(_TOKENS)])


def _language() -> Automaton:
    return regex(r"\{[ -!#-z]{0,9}\"[ -!#-z]{0,200}\}")


def _same(a: Trie, b: Trie) -> bool:
    mine, theirs = a.arrays(), b.arrays()
    equal = all(np.array_equal(mine[name], theirs[name]) for name in mine)
    return equal and (a.num_entries, a.max_depth) == (b.num_entries, b.max_depth)


def test_a_second_vocabulary_reads_files_of_the_first(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _vocabulary()
    lifted = lift(_language(), first)
    files = sorted(path.name for path in cache.iterdir())
    assert len(files) == 1
    assert files[0].startswith(first.fingerprint.hex())

    def never(*_: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(Trie, "build", never)
    again = lift(_language(), _vocabulary())
    assert _same(first.trie, again.vocabulary.trie)
    assert np.array_equal(again.delta, lifted.delta)
    assert np.array_equal(again.class_of, lifted.class_of)


@pytest.mark.parametrize("damage", ["cut", "empty", "byte", "other", "of another"])
def test_a_damaged_file_is_ignored_and_written_anew(cache: Path, damage: str) -> None:
    truth = lift(_language(), _vocabulary())
    files = sorted(cache.iterdir())
    contents = [path.read_bytes() for path in files]
    another = Vocabulary.from_bytes([*_TOKENS, b"one more", b""], [len(_TOKENS) + 1])
    assert another.trie.num_entries
    (other,) = (path.read_bytes() for path in cache.iterdir() if path not in files)
    for path, content in zip(files, contents, strict=True):
        middle = len(content) // 2
        path.write_bytes(
            {
                "cut": content[:middle],
                "empty": b"",
                "byte": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
                "other": b"PK\3\4 not ours",
                "of another": other,
            }[damage]
        )
    vocabulary = _vocabulary()
    again = lift(_language(), vocabulary)
    assert _same(vocabulary.trie, truth.vocabulary.trie)
    assert np.array_equal(again.delta, truth.delta)
    assert [path.read_bytes() for path in files] == contents


def test_a_sound_file_about_other_tokens_is_not_believed(cache: Path) -> None:
    vocabulary = _vocabulary()
    others = Trie.build([b"x", b"y"])
    vocabulary_cache.store(f"{vocabulary.fingerprint.hex()}-trie", others.arrays())
    assert _same(vocabulary.trie, Trie.build(vocabulary.token_bytes))
    assert _same(_vocabulary().trie, Trie.build(vocabulary.token_bytes))


def test_nothing_is_kept_if_the_variable_is_empty(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCD_CACHE_DIR", "")
    assert vocabulary_cache.folder() is None
    lift(_language(), _vocabulary())
    assert not cache.exists()


def test_a_folder_that_cannot_be_made_does_not_matter(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("GCD_CACHE_DIR", str(blocked / "below"))
    assert lift(_language(), _vocabulary()).num_states > 200


def test_a_folder_that_cannot_be_written_is_read(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lift(_language(), _vocabulary())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    for name in ("utime", "replace"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(Trie, "build", refuse)
    assert lift(_language(), _vocabulary()).num_states > 200
    monkeypatch.undo()
    monkeypatch.setenv("GCD_CACHE_DIR", str(cache))
    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr(vocabulary_cache, "FEWEST_IDS", 1)
    other = Vocabulary.from_bytes([b"a", b"b", b""], [2])
    assert other.trie.num_entries == 2
    assert not [path for path in cache.iterdir() if path.suffix == ".part"]


def test_the_files_unused_for_longest_go(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary_cache.store("a", {"x": np.zeros(100)})
    size = next(cache.iterdir()).stat().st_size
    monkeypatch.setattr(vocabulary_cache, "_MOST_BYTES", 2 * size)
    vocabulary_cache.store("b", {"x": np.zeros(100)})
    for age, path in enumerate(sorted(cache.iterdir())):
        os.utime(path, (1000 + age, 1000 + age))
    assert vocabulary_cache.load("a") is not None  # most recently used
    vocabulary_cache.store("c", {"x": np.zeros(100)})
    assert vocabulary_cache.load("b") is None
    assert vocabulary_cache.load("a") is not None
    assert vocabulary_cache.load("c") is not None


def test_small_vocabularies_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCD_CACHE_DIR", str(tmp_path / "kept"))
    lift(_language(), _vocabulary())
    assert not (tmp_path / "kept").exists()


def test_the_folder_is_the_user_s_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GCD_CACHE_DIR", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert vocabulary_cache.folder() == Path("/somewhere/gcd")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert vocabulary_cache.folder() == Path.home() / ".cache" / "gcd"
    monkeypatch.setattr("sys.platform", "darwin")
    assert vocabulary_cache.folder() == Path.home() / "Library" / "Caches" / "gcd"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    assert vocabulary_cache.folder() == Path.home() / "AppData" / "Local" / "gcd" / "Cache"
    monkeypatch.setenv("LOCALAPPDATA", "/elsewhere")
    assert vocabulary_cache.folder() == Path("/elsewhere/gcd/Cache")


# -- validation -----------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=3), max_size=8), st.data())
def test_a_tree_with_any_number_changed_is_refused(
    tokens: list[bytes], data: st.DataObject
) -> None:
    arrays = Trie.build(tokens).arrays()
    intact = Trie.from_arrays(arrays, tokens)
    assert intact is not None
    assert _same(intact, Trie.build(tokens))
    full = [name for name in arrays if arrays[name].size]
    if not full:
        return
    name = data.draw(st.sampled_from(full))
    changed = arrays[name].copy()
    index = data.draw(st.integers(0, changed.size - 1))
    value = data.draw(st.integers(-3, 30).filter(lambda v: v != changed[index]))
    changed[index] = value % 256 if name == "byte" else value
    if changed[index] != arrays[name][index]:
        assert Trie.from_arrays({**arrays, name: changed}, tokens) is None
    assert Trie.from_arrays({**arrays, name: changed[:-1]}, tokens) is None
    assert Trie.from_arrays({**arrays, name: changed.astype(np.int16)}, tokens) is None
