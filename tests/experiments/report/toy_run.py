"""Small finished runs of a toy language model: the rows, traces and files that a task leaves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import gcd
from experiments.arms import METHODS, hmm_settings
from experiments.evaluate import Example, RecordHandler, make_rows, trials_of
from experiments.run import register
from experiments.tables import as_markdown, as_table, summarize
from experiments.tasks import ResultStore
from hmm._files import write_json
from smc.testing import ToyLM
from tests.experiments import composing

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
VOCABULARY = gcd.Vocabulary.from_bytes(
    [b"", b"a", b"b", b"</script>", b" http://x.org/<b>", "é".encode()[:1], "é".encode()[1:]],
    eos_ids=[0],
)
register()
LM = ToyLM(VOCABULARY, seed=1, spread=2.0)
LANGUAGES = (r"(a|b){1,6}", r"(a|b)*(é|</script>)", r"éa*b( http://x\.org/<b>)?", r"b{7,30}")
BUDGET = 8


@dataclass(frozen=True)
class Word:
    """A toy record."""

    id: str


@cache
def examples() -> list[Example]:
    """One for each language, all with the same prompt."""
    memory = dict.fromkeys(METHODS, 0)
    return [
        Example(n, Word(f"w{n}"), language, gcd.lift(language, VOCABULARY), (1, 2), BUDGET, memory)
        for n, language in enumerate(map(gcd.regex, LANGUAGES))
    ]


HANDLING = RecordHandler(
    language=lambda record: None,
    prompt=lambda record: "",
    is_correct=lambda record, answer: answer.startswith(b"a"),
    columns=lambda example, posterior: {"gold": "a & <i>"},
)


def write_run(directory: Path, *overrides: str, traced: int = 3) -> tuple[Path, list[dict]]:
    """Samples, and leaves all files but the page; returns the directory and its rows."""
    given = ("task.methods=[lcd,gcd]", "task.algorithms=[smc,discrete]", "task.particles=[1,4]")
    config = composing.composed(
        "+task=xlam", *given, "trace.particles=4", f"trace.examples={traced}", *overrides
    )
    directory.mkdir(exist_ok=True)
    store = ResultStore(directory)
    proposals = {m: METHODS[m].proposal(hmm_settings(config)) for m in config.task.methods}
    with pytest.MonkeyPatch.context() as patch:
        first = frozenset(range(traced))
        patch.setattr("experiments.report.traces.choose_for_tracing", lambda *_: first)
        make_rows(store, examples(), HANDLING, LM, config, proposals)
    rows = store.merge(t.key(e) for t in trials_of(config.task) for e in examples())
    summary = summarize(rows)
    write_json({"methods": summary}, directory / "summary.json")
    settings = {"seed": config.seed, "task": {"methods": list(config.task.methods)}}
    write_json({**settings, "records_sha256": "0"}, directory / "identity.json")
    table = f"## Toys <&>\n\n{as_markdown(as_table(summary))}\n"
    (directory / "table.md").write_text(table, encoding="utf-8")
    return directory, rows
