"""Concept sets in all spellings, metrics, and small whole runs of the task."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch

import gcd
from experiments import run as experiment
from experiments.arms import describe_fitted
from experiments.commongen.task import (
    EMBEDDED,
    bleu,
    bleu_counts,
    by_rule,
    corpus_bleu,
    find_covered,
    log_probability,
    metrics_of,
    read_sets,
    rouge_l,
    without_capitals,
)
from experiments.tables import as_table, summarize
from hmm._checkpoint import save
from hmm._model import HMM
from scripts import fit_lookahead
from scripts.fit_lookahead import fit
from smc.testing import ToyLM
from tests.experiments import composing
from tests.experiments.rows import row as any_row
from tests.experiments.rows import rows_of, without_seconds
from tests.experiments.toy_model import write_checkpoint


def test_inflections_follow_the_part_of_speech():
    assert set(by_rule("dog", "N")) == {"dog", "dogs"}
    assert {"stand", "stands", "stood", "standing"} <= set(by_rule("stand", "V"))
    assert set(by_rule("run", "N")) < set(by_rule("run"))
    assert "blorfs" in by_rule("blorf", "N")  # a word that no list has
    with pytest.raises(ValueError, match="'ice cream' isn't a word"):
        by_rule("ice cream")
    # Capitals that say nothing go.
    assert without_capitals(["Dog", "dog", "TV", "Paris", "dog"]) == ("dog", "TV", "Paris")


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
    def row(example, answer, **more):
        texts = [(answer, 0.75), ("nothing alike", 0.25)] if answer else []
        return any_row("lcd", 1, 1.0, dead=answer is None, example=example) | {
            "answer": answer,
            "coverage": float(answer is not None),
            "log_p_per_token": None if answer is None else -2.0,
            "answers": [{"text": text, "probability": p} for text, p in texts],
            **more,
        }

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


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A random model over bytes: what matters here is what the constraint makes of it."""
    return write_checkpoint(tmp_path_factory.mktemp("model"))


def composed(model: Path, *overrides: str, chosen: str = "+task=commongen"):
    small = (
        chosen, f"model.path={model}", "model.device=cpu", "wandb=disabled", "task.particles=[2]",
        "task.methods=[lcd,gcd]", "task.algorithms=[smc]", "task.num_examples=2", "task.budget=32",
    )  # fmt: skip
    return composing.composed(*small, *overrides)


def test_a_run_writes_everything(model, tmp_path):
    config = composed(model, f"run_dir={tmp_path}", chosen="+experiment=commongen")
    assert experiment.run(config) == tmp_path
    rows = rows_of(tmp_path)
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
    summary = json.loads((tmp_path / "summary.json").read_text())
    [own] = [m for m in summary["methods"] if m["method"] == "gcd"]
    assert own["coverage"] == 1
    assert 0 <= own["bleu"] < 0.5
    assert (tmp_path / "table.md").read_text().count("\n| GCD") == 1
    for name in ("accuracy.png", "reads.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("tables_alone")
def test_how_far_the_hmm_is_believed_is_fitted_for_what_prompts_tell(
    model, tmp_path, capsys, monkeypatch
):
    values = (0.0, 1.0)  # of six
    assert set(values) < set(fit_lookahead.VALUES)
    monkeypatch.setattr(fit_lookahead, "VALUES", values)
    hmm = tmp_path / "hmm"
    drawn = HMM.random(4, 257, generator=torch.Generator().manual_seed(0))
    save(drawn, hmm, config={"eos_token_id": [256]})

    def config(told: str, *overrides: str):
        own = (f"hmm.path={hmm}", "task.methods=[pgcd]", f"data.path={copy}", f"task.told={told}")
        return composed(model, *own, "task.num_examples=1", *overrides)

    copy = shutil.copy(EMBEDDED, tmp_path)
    assert describe_fitted(config("all")) == "hmm.lookahead is in_time, none is fitted."
    with pytest.raises(ValueError, match=r"the kind commongen/none, .* fitted for no prompts"):
        describe_fitted(config("none"))
    for records in ("null", EMBEDDED):
        with pytest.raises(ValueError, match="expected other records"):
            fit(config("none", f"data.path={records}"))
    fitting = config("none", f"run_dir={tmp_path / 'fit'}")
    best = fit(fitting)
    assert fit(fitting) == best  # its runs are not known by what is fitted
    said = json.loads((hmm / "config.json").read_text())
    assert said["lookahead"] == {"commongen/none": best}
    means = {
        value: sum(r["log_evidence"] for r in rows_of(tmp_path / "fit" / f"{value:g}"))
        for value in values
    }
    assert means[best] == max(means.values()) > min(means.values())
    assert f"commongen/none: hmm.lookahead={best:g} is kept" in capsys.readouterr().out
    again = experiment.run(config("none", f"run_dir={tmp_path / 'run'}"))
    note = f"hmm.lookahead is {best}, fitted for commongen/none"
    assert note in (again / "table.md").read_text()
    chosen = rows_of(tmp_path / "fit" / f"{best:g}")
    assert without_seconds(rows_of(again)) == without_seconds(chosen)
    with pytest.raises(ValueError, match=r"the kind commongen/some, .* fitted for commongen/none"):
        describe_fitted(config("some"))
    # Neither methods with their own lookahead nor a number that is given needs a fit.
    for other in ("task.methods=[gcd,pgcd_conditional,hmm]", "hmm.lookahead=0.5"):
        assert describe_fitted(config("some", other)) == ""


@pytest.mark.usefixtures("tables_alone")
def test_records_that_cannot_be_run_are_left_out_and_listed(model, tmp_path):
    data, directory = tmp_path / "sets.jsonl", tmp_path / "run"
    sets = ("dog_N#run_V", "", "dog_N#run_V#cat_N", "internationalisation_N#cat_N")
    rows = [{"concept_set": each, "scene": ["A dog ran."]} for each in sets]
    rows.append({"concepts": ["naïveté"], "scene": ["A dog ran."]})
    data.write_text("\n".join(map(json.dumps, rows)))
    experiment.run(
        composed(
            model, f"run_dir={directory}", f"data.path={data}", "task.num_examples=9",
            "task.methods=[gcd]", "task.max_words=2", "task.budget=20",
        )
    )  # fmt: skip
    [row] = rows_of(directory)
    assert row["example"] == "0:1"
    assert row["valid"]
    assert row["complete"]
    assert row["coverage"] == 1
    assert len(row["answer"].split()) == 2
    refused = [json.loads(x) for x in (directory / "refused.jsonl").read_text().splitlines()]
    for line, (record, kind, reason) in zip(
        refused,
        [
            (2, "malformed", "set of concepts is empty"),
            ("3", "refused", "max_words of at least 3 for 3 groups of keywords, got 2"),
            ("4", "refused", "needs at least 26 tokens"),
            ("5", "refused", "got 'naïveté'"),
        ],
        strict=True,
    ):
        assert (line["record"], line["kind"]) == (record, kind)
        assert reason in line["reason"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.budget=5"], "but all 2 were refused; .*the budget is 5"),
        (["task.max_words=1"], "but all 2 were refused; .*max_words .* got 1"),
        (["data.path=nowhere.jsonl"], "expected an existing file, got nowhere.jsonl"),
        (["data.offset=100"], "less than the number of records, 100, got 100"),
    ],
)
def test_bad_settings_are_one_message_and_leave_nothing(model, tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        experiment.run(composed(model, f"run_dir={tmp_path / 'run'}", *overrides))
    assert not (tmp_path / "run").exists()
