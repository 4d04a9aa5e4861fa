"""Concept sets in all their spellings, and what becomes of bad ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.commongen.task import (
    EMBEDDED,
    ConceptSet,
    build_prompt,
    by_rule,
    read_hub_sets,
    read_sets,
    record_of,
    without_capitals,
)
from experiments.evaluate import DataError

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "commongen"
GOOD = {"concept_set": "dog_N#run_V", "scene": ["The dog ran.", " Dogs run. "]}


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_row_becomes_a_record():
    record = record_of({**GOOD, "inflections": [["dog", "Dogs", "dogs", "Dog"], ["ran"]]}, "7")
    assert record == ConceptSet(
        "7", ("dog", "run"), ("The dog ran.", "Dogs run."), (("dog", "dogs"), ("ran",))
    )
    alike = record_of({"concepts": ["dog", "run"], "target": "The dog ran.", "id": 3}, "7")
    assert (alike.id, alike.concepts, alike.references) == ("3", ("dog", "run"), ("The dog ran.",))


def test_inflections_follow_the_part_of_speech():
    assert set(by_rule("dog", "N")) == {"dog", "dogs"}
    assert {"stand", "stands", "stood", "standing"} <= set(by_rule("stand", "V"))
    assert set(by_rule("run", "N")) < set(by_rule("run"))
    assert "blorfs" in by_rule("blorf", "N")  # a word that no list has
    with pytest.raises(ValueError, match="'ice cream' isn't a word"):
        by_rule("ice cream")


def test_capitals_that_say_nothing_go():
    assert without_capitals(["Dog", "dog", "TV", "Paris", "dog"]) == ("dog", "TV", "Paris")


def test_inflections_can_be_given(tmp_path):
    own = {**GOOD, "inflections": [["hound"], ["ran"]]}
    data = lines(tmp_path / "sets.jsonl", own, GOOD)
    assert read_sets(data).records[0].inflections == (("hound",), ("ran",))
    assert "dogs" in read_sets(data).records[1].inflections[0]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([1], "expected a record to be a JSON object, got list"),
        ({"scene": ["A."]}, "in concept_set or concepts, got None"),
        ({**GOOD, "concept_set": ""}, "the set of concepts is empty"),
        ({**GOOD, "concept_set": 3}, "in concept_set or concepts, got 3"),
        ({"concepts": [], "scene": ["A."]}, "the set of concepts is empty"),
        ({"concept_set": "dog_N"}, "expected sentences in scene or target"),
        ({"concept_set": "dog_N", "target": ""}, "at least one reference sentence"),
        ({**GOOD, "inflections": [["dog"], []]}, "the concept 'run' has no inflections"),
        ({**GOOD, "inflections": [["dog"]]}, "inflections for each of 2 concepts"),
        ({**GOOD, "inflections": [["dog"], "ran"]}, "inflections of 'run' to be words, got 'ran'"),
        ({**GOOD, "concept_set": "dog_N#?_V"}, "isn't a word, so it has no inflections"),
    ],
)
def test_a_bad_record_is_passed_over_and_explained(tmp_path, row, reason):
    result = read_sets(lines(tmp_path / "sets.jsonl", GOOD, row))
    assert len(result.records) == 1
    [skipped] = result.skipped
    assert skipped.position == 2
    with pytest.raises(ValueError, match=reason):
        record_of(row, "2")


def test_a_file_with_nothing_good_is_refused(tmp_path):
    with pytest.raises(
        DataError, match=r"records with concept_set.* 1 malformed .*; the first \(1\)"
    ):
        read_sets(lines(tmp_path / "sets.jsonl", {}))
    with pytest.raises(DataError, match=r"expected an existing file, got .*nowhere"):
        read_sets(tmp_path / "nowhere.jsonl")


def test_the_hub_has_a_sentence_a_row(monkeypatch):
    import datasets

    rows = [
        {"concept_set_idx": i, "concepts": concepts, "target": target}
        for i, concepts, target in [
            (0, ["dog", "run"], "A dog ran."), (0, ["dog", "run"], "Dogs run."),
            (1, ["cat", "sit"], "A cat sat."), (1, ["cat", "sit"], ""),
        ]
    ]  # fmt: skip
    table = datasets.Dataset.from_list(rows)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: table)
    result = read_hub_sets("allenai/common_gen", "validation")
    assert [r.references for r in result.records] == [("A dog ran.", "Dogs run."), ("A cat sat.",)]
    assert len(result.skipped) == 1

    def fail(name: str, split: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=r"common_gen.*no route.*or give a file"):
        read_hub_sets("allenai/common_gen", "validation")


def test_the_sets_of_the_repository_read_whole():
    result = read_sets(EMBEDDED)
    assert (len(result.records), len(result.skipped)) == (100, 0)
    assert {len(r.concepts) for r in result.records} <= {3, 4, 5}
    assert all(len(r.concepts) == len(r.inflections) for r in result.records)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data are not here")
def test_the_public_file_reads_whole():
    result = read_sets(SHARED / "dev.jsonl")
    assert (len(result.records), len(result.skipped)) == (993, 0)
    ours = read_sets(EMBEDDED).records
    assert [r.references for r in result.records[:100]] == [r.references for r in ours]


class Templated:
    chat_template = "yes"

    def apply_chat_template(self, turns, *, tokenize, add_generation_prompt):
        return "|".join(turn["content"] for turn in turns)


def test_prompts():
    record = record_of(GOOD, "1")
    assert build_prompt(record, kind="compact") == "Concepts: dog, run\nSentence:\n"
    assert build_prompt(record) == build_prompt(record, kind="compact")
    assert build_prompt(record, tokenizer=Templated()).endswith("|Words: dog, run")
    with pytest.raises(ValueError, match="with a chat template"):
        build_prompt(record, kind="chat")


def test_prompts_need_not_tell_what_is_demanded():
    record = record_of({**GOOD, "concept_set": "dog_N#run_V#park_N"}, "1")
    some = build_prompt(record, told="some", kind="compact")
    concepts = some.removeprefix("Concepts: ").partition("\n")[0].split(", ")
    assert len(concepts) == 2
    assert [c for c in record.concepts if c in concepts] == concepts
    assert some == build_prompt(record, told="some", kind="compact"), "the same one is left out"
    others = {
        build_prompt(replace(record, id=str(i)), told="some", kind="compact") for i in range(9)
    }
    assert len(others) == 3, "of another set it is another one"
    assert build_prompt(record, told="none", kind="compact") == "Concepts:\nSentence:\n"
    asked = build_prompt(record, told="none", tokenizer=Templated())
    assert "Reply with the sentence only" in asked
    assert "Words" not in asked
    assert not any(concept in asked for concept in record.concepts)
    with pytest.raises(ValueError, match="told to be one of all, some, none, got 'most'"):
        build_prompt(record, told="most", kind="compact")
