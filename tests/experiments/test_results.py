"""Rows survive interruptions, whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re

import pytest

from experiments.tasks import ResultStore, key_of


def row(example: str, particles: int = 1, text: str = "x") -> dict:
    names = {"example": example, "method": "gcd", "algorithm": "smc"}
    return {**names, "particles": particles, "text": text}


def test_rows_are_read_back(tmp_path):
    store = ResultStore(tmp_path)
    rows = [row("a"), row("b", text="line\u2028separator, newline \n, é")]
    store.append(rows)
    again = ResultStore(tmp_path)
    assert len(again) == 2
    assert again.rows([key_of(r) for r in rows]) == rows
    assert key_of(row("a")) in again
    assert key_of(row("a", 4)) not in again


def test_algorithms_and_repetitions_are_separate_rows(tmp_path):
    others = [{**row("a"), "algorithm": "discrete"}, {**row("a"), "repeat": 1}]
    store = ResultStore(tmp_path)
    store.append([row("a"), *others])
    keys = [key_of(each) for each in (row("a"), *others)]
    assert ResultStore(tmp_path).rows(keys) == [row("a"), *others]
    assert key_of({**row("a"), "repeat": 0}) == keys[0]  # the first repetition is the row itself


def test_a_row_cut_short_is_made_again(tmp_path):
    store = ResultStore(tmp_path)
    store.append([row("a"), row("b")])
    content = store.path.read_bytes()
    for cut in range(content.index(b"\n") + 1, len(content)):
        store.path.write_bytes(content[:cut])
        resumed = ResultStore(tmp_path)
        assert (key_of(row("b")) in resumed) == (cut == len(content))
        resumed.append([row("b")])
        lines = store.path.read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["example"] for line in lines] == ["a", "b"]


def test_rows_are_merged_in_the_order_of_the_keys(tmp_path):
    store = ResultStore(tmp_path)
    store.append(map(row, "bdca"))
    keys = [key_of(row(name)) for name in "abcd"]
    assert [r["example"] for r in store.merge(keys)] == list("abcd")
    assert [p.name for p in tmp_path.iterdir()] == ["results.jsonl"]
    assert ResultStore(tmp_path).rows(keys) == list(map(row, "abcd"))


def test_nothing_is_merged_without_all_rows(tmp_path):
    first = ResultStore(tmp_path)
    first.append([row("a"), row("b", 4)])
    before = first.path.read_bytes()
    keys = [key_of(row("a")), key_of(row("c", 16)), key_of(row("b", 4))]
    with pytest.raises(KeyError, match="example='c', method='gcd'"):
        first.merge(keys)
    assert first.path.read_bytes() == before
    assert len(first.merge([keys[0], keys[2]])) == 2


@pytest.mark.parametrize("spoilt", ["{spoilt", "3", "null", "", '{"example": "a"}'])
def test_a_row_spoilt_by_hand_is_named(spoilt, tmp_path):
    store = ResultStore(tmp_path)
    store.append([row("a"), row("b")])
    lines = store.path.read_text().splitlines()
    store.path.write_text("\n".join([lines[0], spoilt, lines[1]]) + "\n")
    with pytest.raises(ValueError, match=r"line 2 of .*results\.jsonl .* remove that line"):
        ResultStore(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_row_that_does_not_fit_on_the_disk_is_not_stored(code, tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(code, os.strerror(code))

    store = ResultStore(tmp_path)
    store.append([row("a")])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=re.escape(os.strerror(code))) as caught:
        store.append([row("b")])
    assert (str(store.path) in str(caught.value)) == (code != errno.EIO)
    assert (len(store), key_of(row("b")) in store) == (1, False)
