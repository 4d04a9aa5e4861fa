"""Concept sets in all spellings, metrics, and small whole runs of the task."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch

import gcd
from experiments import run as experiment
from experiments.commongen.task import (
    EMBEDDED,
    ConceptSet,
    bleu,
    bleu_counts,
    build_prompt,
    by_rule,
    corpus_bleu,
    find_covered,
    log_probability,
    metrics_of,
    read_hub_sets,
    read_sets,
    record_of,
    rouge_l,
    without_capitals,
)
from experiments.evaluate import DataError
from experiments.tables import as_table, summarize
from hmm._checkpoint import save
from hmm._model import HMM
from scripts import fit_lookahead
from scripts.fit_lookahead import fit
from smc.testing import ToyLM
from tests.experiments import composing
from tests.experiments.rows import rows_of, without_seconds
from tests.experiments.toy_model import write_checkpoint

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


RECORDS = read_sets(EMBEDDED).records


@pytest.mark.parametrize(
    ("text", "is_covered"),
    [
        ("The cat.", True),
        ("The Cats!", True),
        ("The category.", False),
        ("A concat.", False),
        ("The cat's ball.", True),
        ("The cat-like dog.", True),
        ("A cat'll come.", False),
        ("", False),
    ],
)
def test_coverage_of_traps(text, is_covered):
    assert find_covered(text, [["cat", "cats"]]) == [is_covered]


def test_what_the_constraint_accepts_has_every_concept():
    for record in RECORDS[:10]:
        language = gcd.keywords(record.inflections)
        for text in language.enumerate(50):
            assert all(find_covered(text.decode(), record.inflections)), text
        assert not all(find_covered("Nothing of it.", record.inflections))


def test_bleu_of_a_corpus_is_sacrebleus():
    texts = [record.references[0] for record in RECORDS[:40]]
    references = [record.references[1:] for record in RECORDS[:40]]
    texts[3] = ""
    counts = np.stack([bleu_counts(t, r) for t, r in zip(texts, references, strict=True)])
    most = max(map(len, references))
    streams = [[r[i] if i < len(r) else None for r in references] for i in range(most)]
    theirs = sacrebleu.corpus_bleu(texts, streams).score
    assert 100 * bleu(counts.sum(axis=0)) == pytest.approx(theirs, abs=1e-9)
    interval = corpus_bleu(counts, seed=1)
    assert interval.low < interval.mean < interval.high
    assert interval == corpus_bleu(counts, seed=1)
    whole = corpus_bleu(np.repeat(counts[:1], 5, axis=0))
    assert whole.low == whole.mean == whole.high  # all sets alike


def test_rouge_is_the_best_over_references():
    # "the dog ran" is the longest common subsequence: recall 3/4, precision 3/5.
    assert rouge_l("The big dog then ran.", ["A cat.", "The dog ran home."]) == pytest.approx(
        2 * 0.75 * 0.6 / 1.35
    )
    assert rouge_l("", ["A cat."]) == 0
    assert rouge_l("A cat.", ["A cat.", "Nothing."]) == 1


def test_log_probability_is_the_models_own():
    vocabulary = gcd.Vocabulary.from_bytes([b"", b"a", b"b"], eos_ids=[0])
    lm = ToyLM(vocabulary)
    ids = [1, 2, 2, 0]
    by_hand = 0.0
    for t in range(len(ids)):
        rows, log_p = lm.prefill([[1]])
        if t:
            log_p = rows.extend(torch.tensor([ids[:t]]), torch.tensor([t]))[:, -1]
        by_hand += float(log_p[0, ids[t]])
    assert log_probability(lm, [1], ids) == pytest.approx(by_hand, abs=1e-9)
    total = sum(math.exp(log_probability(lm, [1], [a, b])) for a in range(3) for b in range(3))
    assert total == pytest.approx(1, abs=1e-6)


def test_dead_rows_count_in_every_denominator():
    def row(example, answer, particles=1, **more):
        return {
            "example": example, "method": "lcd", "algorithm": "smc", "particles": particles,
            "dead": answer is None, "answer": answer, "coverage": float(answer is not None),
            "log_p_per_token": None if answer is None else -2.0, "weighted_accuracy": 1.0,
            "majority_correct": answer is not None, "valid": True, "complete": True,
            "share_finished": 1.0, "enumerated": False, "ess": 1.0, "log_evidence": -1.0,
            "read": 3, "forced": 1, "lm_calls": 4, "tokens": 5, "seconds": 0.5,
            "answers": [
                {"text": answer, "probability": 0.75},
                {"text": "nothing alike", "probability": 0.25},
            ] if answer else [],
            **more,
        }  # fmt: skip

    references = {"0": ["The dog ran home today."], "1": ["A cat sat on the mat."]}
    metrics = metrics_of(references)
    rows = [row("0", "The dog ran home today."), row("1", None)]
    [record] = summarize(rows, metrics=metrics)
    assert record["coverage"] == 0.5
    assert record["rouge_l"] == 0.5
    assert record["expected_rouge_l"] == 0.375  # three quarters of one set, nothing of the other
    best = next(metric.of for metric in metrics if metric.name == "best_rouge_l")
    assert best(row("0", "nothing alike", best="The dog ran home today.")) == 1
    assert best(row("1", None)) == 0
    assert record["log_p_per_token"] == -2.0
    # 6 of 13 reference tokens were written, all matched: the brevity penalty alone.
    assert record["bleu"] == pytest.approx(math.exp(1 - 13 / 6))
    [dead] = summarize([row("0", None), row("1", None)], metrics=metrics)
    assert dead["bleu"] == 0
    assert dead["log_p_per_token"] is None
    table = as_table([record, dead], metrics)
    assert [line["log p a token"] for line in table] == ["-2.00 [-2.00, -2.00]", "–"]


ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A random model over bytes: what matters here is what the constraint makes of it."""
    return write_checkpoint(tmp_path_factory.mktemp("model"))


def composed(model: Path, *overrides: str):
    small = (
        "+task=commongen", f"model.path={model}", "model.device=cpu", "wandb=disabled",
        "task.methods=[lcd,gcd]", "task.particles=[2]", "task.num_examples=2", "task.budget=32",
    )  # fmt: skip
    return composing.composed(*small, *overrides)


def test_a_run_writes_everything(model, tmp_path):
    directory = experiment.run(composed(model, "task.algorithms=[smc]", f"run_dir={tmp_path}"))
    rows = rows_of(directory)
    assert len(rows) == 4
    for row in rows:
        if row["method"] == "gcd":
            assert row["valid"]
            assert row["complete"]
            assert row["coverage"] == 1
            assert row["weighted_accuracy"] == pytest.approx(1)
            assert row["log_p_per_token"] < 0
            assert row["answer_tokens"] == len(row["answer"].encode()) + 1  # bytes, and EOS
            assert row["answer"] == row["answers"][0]["text"]
        assert len(row["concepts"]) in (3, 4, 5)
    summary = json.loads((directory / "summary.json").read_text())
    gcd_records = [m for m in summary["methods"] if m["method"] == "gcd"]
    assert [m["coverage"] for m in gcd_records] == [1]
    assert all(0 <= m["bleu"] < 0.5 for m in gcd_records)
    table = (directory / "table.md").read_text()
    assert table.count("\n| GCD") == 1
    for name in ("accuracy.png", "reads.png"):
        assert (directory / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("tables_alone")
def test_how_far_the_hmm_is_believed_is_fitted_for_what_prompts_tell(
    model, tmp_path, capsys, monkeypatch
):
    values = (0.0, 0.25, 1.0)  # of six
    assert set(values) < set(fit_lookahead.VALUES)
    monkeypatch.setattr(fit_lookahead, "VALUES", values)
    hmm = tmp_path / "hmm"
    drawn = HMM.random(4, 257, generator=torch.Generator().manual_seed(0))
    save(drawn, hmm, config={"eos_token_id": [256]})
    own = ROOT / "data" / "commongen" / "dev_100.jsonl"
    records = f"data.path={shutil.copy(own, tmp_path)}"
    common = (f"hmm.path={hmm}", "task.algorithms=[smc]", "task.methods=[pgcd]", records,
              "task.num_examples=1")  # fmt: skip
    untold = (*common, "task.told=none")

    def note_of(*overrides: str) -> str:
        directory = experiment.run(composed(model, *overrides, f"run_dir={tmp_path / 'run'}"))
        return (directory / "table.md").read_text()

    assert "hmm.lookahead is in_time, none is fitted" in note_of(*common)
    with pytest.raises(ValueError, match=r"the kind commongen/none, .* fitted for no prompts"):
        note_of(*untold, "resume=false")
    with pytest.raises(ValueError, match="expected other records"):
        fit(composed(model, *untold, "data.path=null"))
    with pytest.raises(ValueError, match="expected other records"):
        fit(composed(model, *untold, f"data.path={own}"))
    config = composed(model, *untold, f"run_dir={tmp_path / 'fit'}")
    best = fit(config)
    assert fit(config) == best  # its runs are not known by what is fitted, and are not made again
    said = json.loads((hmm / "config.json").read_text())
    assert said["lookahead"] == {"commongen/none": best}
    means = {
        value: sum(r["log_evidence"] for r in rows_of(tmp_path / "fit" / f"{value:g}"))
        for value in values
    }
    assert means[best] == max(means.values()) > min(means.values())
    assert f"commongen/none: hmm.lookahead={best:g} is kept" in capsys.readouterr().out
    again = note_of(*untold, "resume=false")
    assert f"hmm.lookahead is {best}, fitted for commongen/none" in again
    chosen = rows_of(tmp_path / "fit" / f"{best:g}")
    assert without_seconds(rows_of(tmp_path / "run")) == without_seconds(chosen)
    with pytest.raises(ValueError, match=r"the kind commongen/some, .* fitted for commongen/none"):
        note_of(*common, "task.told=some", "resume=false")
    # Methods with their own lookahead don't need a fit, either.
    fixed = ("task.told=some", "task.methods=[gcd,pgcd_conditional,hmm]")
    assert "fitted" not in note_of(*common, *fixed, "resume=false")
    # A number that is given needs no fit.
    assert "fitted" not in note_of(*common, "hmm.lookahead=0.5", "resume=false")


def test_records_that_cannot_be_run_are_left_out_and_listed(model, tmp_path):
    sets = [
        {"concept_set": "dog_N#run_V", "scene": ["A dog ran."]},
        {"concept_set": "", "scene": ["A dog ran."]},
        {"concept_set": "dog_N#run_V#cat_N", "scene": ["A dog ran."]},
        {"concept_set": "internationalisation_N#cat_N", "scene": ["A cat."]},
        {"concepts": ["naïveté"], "scene": ["A cat."]},
    ]
    data = tmp_path / "sets.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in sets), encoding="utf-8")
    directory = tmp_path / "run"
    save(
        HMM.random(4, 257, generator=torch.Generator().manual_seed(0)),
        tmp_path / "hmm",
        config={"eos_token_id": [256]},
    )
    experiment.run(
        composed(model, f"run_dir={directory}", f"data.path={data}", "task.num_examples=9",
                 "task.methods=[gcd,pgcd]", "task.algorithms=[smc]", "task.max_words=2",
                 "task.budget=20", f"hmm.path={tmp_path / 'hmm'}")
    )  # fmt: skip
    rows = rows_of(directory)
    assert [(row["example"], row["method"]) for row in rows] == [("0:1", "gcd"), ("0:1", "pgcd")]
    for row in rows:
        assert row["valid"]
        assert row["complete"]
        assert row["coverage"] == 1
        assert len(row["answer"].split()) == 2
    refused = [json.loads(x) for x in (directory / "refused.jsonl").read_text().splitlines()]
    assert [(r["record"], r["kind"]) for r in refused] == [
        (2, "malformed"), ("3", "refused"), ("4", "refused"), ("5", "refused"),
    ]  # fmt: skip
    for line, reason in zip(
        refused,
        ["set of concepts is empty", "max_words of at least 3 for 3 groups of keywords, got 2",
         "needs at least 26 tokens", "got 'naïveté'"],
        strict=True,
    ):  # fmt: skip
        assert reason in line["reason"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.budget=5"], "but all 2 were refused; .*the budget is 5"),
        (["task.max_words=1"], "but all 2 were refused; .*max_words .* got 1"),
        (["task.told=most"], "expected task.told to be one of all, some, none, got 'most'"),
        (["task.max_words=0"], "task.max_words to be at least 1, got 0"),
        (["task.budget=vast"], "expected task.budget to be .*got 'vast'"),
        (["data.path=nowhere.jsonl"], "expected an existing file, got nowhere.jsonl"),
        (["data.offset=100"], "less than the number of records, 100, got 100"),
    ],
)
def test_bad_settings_are_one_message_and_leave_nothing(model, tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        experiment.run(composed(model, f"run_dir={tmp_path / 'run'}", *overrides))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared models and data are not here")
def test_a_model_of_stories_writes_of_public_sets(tmp_path):
    experiment.run(
        composed(SHARED.parents[1] / "models" / "stories260K", f"run_dir={tmp_path}",
                 f"data.path={SHARED / 'dev.jsonl'}", "data.offset=500", "task.methods=[gcd]",
                 "task.algorithms=[smc]", "task.budget=default", "task.max_words=20")
    )  # fmt: skip
    rows = rows_of(tmp_path)
    assert [row["example"] for row in rows] == ["0:501", "1:502"]
    assert all(row["coverage"] == 1 and row["valid"] and row["complete"] for row in rows)
    assert all(len(row["answer"].split()) <= 20 for row in rows)
