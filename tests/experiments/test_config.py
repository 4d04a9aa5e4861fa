"""Every configuration composes, what no run could honor is refused; budgets by name."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

import gcd
import smc
from experiments import run as experiment
from experiments.config import budget_of, multiple_in, part_of
from experiments.run import TASKS
from experiments.tasks import fingerprint, results_config
from tests.experiments import composing
from tests.experiments.composing import composed

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
GROUPS = [
    f"{path.parent.name}={path.stem}"
    for path in sorted(CONFIGS.glob("*/*.yaml"))
    if path.parent.name != "experiment"  # they choose their task themselves
]


@pytest.mark.parametrize("override", [*(f"+task={name}" for name in TASKS), *GROUPS])
def test_every_task_and_every_group_option_composes(override):
    chosen = (override,) if override.startswith("+task=") else ("+task=xlam", override)
    config = composed(*chosen, *["model.path=somewhere"] * ("+task" not in override))
    experiment.check(config)
    assert f"+task={config.task.name}" == chosen[0]
    assert OmegaConf.to_container(config, resolve=True, throw_on_missing=True)


def test_the_paper_resamples_every_step():
    config = composed("+task=xlam", "smc=paper")
    assert config.smc.resampling == "multinomial"
    assert config.smc.ess_threshold == 1.0
    assert config.smc.strata == "none"


STORIES = f"model.path={ROOT / 'tests' / 'models' / 'stories260K'}"
BASE = {  # what the settings below are added to
    "convergence": ("+task=convergence", STORIES, "model.device=cpu"),
    "xlam": ("+task=xlam", "task.algorithms=[smc,discrete]"),
    "vllm": ("+task=xlam", "task.methods=[gcd]", "model.engine=vllm"),
}
UNREAD = "would be ignored: no algorithm of this run"
REFUSED = {
    "xlam": [
        ("task.methods=[gcd,magic]", "expected task.methods to be .*got 'magic'"),
        ("task.styles=[json,xml]", "expected task.styles to be .*got 'xml'"),
        ("task.styles=[]", "at least one value in task.styles"),
        ("model.prompt=song", "expected model.prompt to be .*got 'song'"),
        ("task.styles=[hermes] task.budget=gold:2", "without gold in the style hermes"),
        ("task.budget=huge", "expected task.budget to be .*got 'huge'"),
        ("task.budget=gold:0.5", "such as gold:1.25 or fewest:1.25, got 'gold:0.5'"),
        ("task.budget=silver:2", "such as gold:1.25 or fewest:1.25, got 'silver:2'"),
        ("task.budget=[gold:1,gold:1.0]", "to be one or several different budgets"),
        ("task.budget=[gold:2.0,fewest:2.0]", "multiples of either gold or fewest"),
        ("model.device_map=balanced", "expected model.device_map to be .*got 'balanced'"),
        ("task.budget=[tight,0]", "task.budget to be at least 1, got 0"),
        ("task.budget=1.5", "whole number or a name, got 1.5"),
        ("task.particles=[0]", "task.particles to be at least 1, got 0"),
        ("task.particles=[4,4]", "different values in task.particles"),
        ("task.methods=[]", "at least one"),
        ("hmm.lookahead=psychic", "hmm.lookahead to be one of cond.* got 'psychic'"),
        ("hmm.exact_top_k=-1", "hmm.exact_top_k to be at least 0"),
        ("hmm.defense=1.5", "expected hmm.defense to be from 0 to 1"),
        ("task.num_examples=0", "got 0"),
        ("data.offset=-1", "got -1"),
        ("wandb.mode=never", "expected wandb.mode to be .*got 'never'"),
        ("model.dtype=int8", "expected model.dtype to be .*got 'int8'"),
        ("smc.max_rows=0", "got 0"),
        ("smc.resampling=best", r"smc\.\*, for smc: expected resampling .* got 'best'"),
        ("smc.temperature=inf", "smc.temperature"),
        ("smc.temperature=1e-9", r"smc.temperature to be in \[1e-06, infinity.*got 1e-09"),
        ("smc.ess_threshold=-1", "expected ess_threshold to be at least 0, got -1.0"),
        ("smc.strata=tokens", "strata to be one of none, state, got 'tokens'"),
        ("discrete.floor=1", r"discrete\.\*, for discrete: expected floor to be in .*got 1.0"),
        ("task.algorithms=[smc,magic]", "task.algorithms to be .*smc, smc_paper.*got 'magic'"),
        ("task.algorithms=[smc,smc]", "expected different values in task.algorithms"),
        ("task.repeats=0", "task.repeats to be at least 1, got 0"),
        ("seed=-1", "seed to be at least 0, got -1"),
        ("seed=9223372036854775808", r"seed to be in \[0, .*got 9223372036854775808"),
        ("data.path=a.jsonl data.hub=b", "got both"),
        ("task.methods=[gcd:H64]", "expected gcd in task.methods, got gcd:H64"),
        ("task.methods=[gcd,pgcd:H9]", "expected the HMM 'H9' of pgcd:H9"),
        ("task.methods=[pgcd] +hmm.paths.H64=DIR", "hmm.paths=.* would be ignored"),
        ("task.methods=[pgcd:H_4] +hmm.paths.H_4=DIR", "1 to 12 letters and digits"),
        (
            "task.methods=[pgcd:H64] +hmm.paths.H64=DIR hmm.path=DIR",
            "hmm.path=DIR would be ignored",
        ),
        ("task.methods=[gcd] +hmm.paths.H64=DIR", "hmm.paths=.* would be ignored"),
        ("task.formats=none", "task.formats"),
        ("task.max_bytes=0", "task.max_bytes"),
        ("task.methods=[gcd] task.reference=lcd", "expected task.reference to be one of task.meth"),
        ("task.algorithms=[discrete] smc.resampling=multinomial", UNREAD),
        ("task.algorithms=[discrete] smc=paper", UNREAD),
        ("task.algorithms=[smc_paper,smc_none] smc.ess_threshold=0.25", UNREAD),
        ("task.algorithms=[smc] discrete.floor=0.125", UNREAD),
    ],
    "vllm": [
        ("task.methods=[gcd,lm,greedy_close]", "doesn't have the method lm, the method greedy"),
        ("task.algorithms=[smc,discrete]", "doesn't have the algorithm discrete: leave it out"),
        ("smc.execution=static", r"smc\.execution=static"),
        ("model.device=cuda:1", r"model\.device=cuda:1 \(see model\.engine_args\)"),
        ("model.dtype=float64", r"model\.dtype=float64"),
        ("model.engine=transformers model.chunk=4", r"model\.chunk=4 would be ignored"),
        ("model.engine=llama", r"expected model\.engine to be .*, got 'llama'"),
    ],
    "commongen": [
        ("task.budget=vast", "expected task.budget to be .*got 'vast'"),
        ("task.told=most", "expected task.told to be one of all, some, none, got 'most'"),
        ("task.max_words=0", "task.max_words to be at least 1, got 0"),
    ],
    "json_schema": [
        ("task.formats=none", "task.formats"),
        ("task.max_bytes=0", "task.max_bytes"),
    ],
    "convergence": [
        ("task.methods=[gcd,greedy_close]", "that .task=convergence can run .*got greedy_close"),
        ("task.methods=[gcd,hmm]", "that .task=convergence can run .*got hmm"),
        ("task.methods=[lm,gcd]", r"=\[smc\] with lm in .*got discrete, where all forbidden"),
        ("task.problems=/nowhere/p.json", "expected an existing file"),
        ("model.path=tests/models", "built-in problems are written in the tokens of smollm2 and"),
        ("task.runs=0", "task.runs to be at least 1"),
        ("task.max_prefixes=300000", r"task.max_prefixes to be in 1\.\.200000"),
        ("task.hmm_states=1", "at least 2"),
        ("task.hmm=/nowhere/hmm", "expected an HMM.*scripts.distill_hmm"),
        ("data.path=x.jsonl", "reads no records"),
        ("hmm.path=x", "takes its HMM from task.hmm"),
        ("hmm.exact_top_k=3", "pgcd_tied"),
    ],
    "latency": [
        ("task.kinds=[gcd]", "expected lm in task.kinds"),
        ("task.kinds=[lm,fast]", "expected task.kinds to be .*got 'fast'"),
        ("task.hidden=[0]", "task.hidden to be at least 1"),
        ("task.lookahead=joint", "expected task.lookahead to be .*got 'joint'"),
        ("data.offset=3", "data.offset=3 would be ignored"),
        ("model=llama3_1_8b_shape", "8 billion weights"),
        ("discrete.floor=0.25", r"this run \(smc\) reads it; leave it out$"),
    ],
    "sql": [
        ("task.tables=0", "task.tables to be at least 1"),
        ("task.subquery_depth=-1", "task.subquery_depth to be at least 0"),
        ("task.budget=huge", "expected task.budget to be .*, got 'huge'"),
        ("data.hub=some/set", "expected data.path for this task, got data.hub=some/set"),
    ],
}


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [(task, *row) for task, rows in REFUSED.items() for row in rows],
)
def test_what_no_run_could_honor_is_refused(task, settings, message):
    with pytest.raises(ValueError, match=message):
        experiment.check(composed(*BASE.get(task, (f"+task={task}",)), *shlex.split(settings)))


@pytest.mark.parametrize(
    ("task", "override", "reader"),
    [
        ("xlam", "hmm.defense=0.5", "pgcd"),
        ("xlam", "hmm.path=DIR", "pgcd"),
        ("xlam", "hmm.max_table_mib=9", "pgcd"),
        ("xlam", "hmm.exact_top_k=8", "pgcd"),
        ("convergence", "hmm.defense=0.5", "pgcd"),
        ("convergence", "hmm.path=DIR", None),
        ("latency", "hmm.defense=0.5", None),
    ],
)
def test_unused_settings_of_an_hmm_are_refused(task, override, reader):
    """No method of the run has an HMM, or its only one fixes this setting."""
    other = "pgcd_tied" if "exact_top_k" in override else "lcd"
    methods = [] if task == "latency" else [f"task.methods=[gcd,{other}]"]
    with pytest.raises(ValueError, match=f"{override} would be ignored"):
        experiment.check(composed(f"+task={task}", *methods, override))
    if reader:
        experiment.check(composed(f"+task={task}", f"task.methods=[gcd,{reader}]", override))


def test_a_model_over_all_devices_is_for_one_process(monkeypatch):
    settings = ("+task=xlam", "model.device_map=auto")
    experiment.check(composed(*settings))
    with pytest.raises(ValueError, match=r"model\.device=cpu would be ignored: model\.device_map"):
        experiment.check(composed(*settings, "model.device=cpu"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="without torchrun"):
        experiment.check(composed(*settings))


def test_an_unknown_task_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"expected a task, got none; add one of \+task=xlam"):
        experiment.check(composed())
    for overrides in (["+task=xlam", "task.name=mystery"], ["+task.name=xlam"]):
        with pytest.raises(ValueError, match=r"expected one of \+task=xlam.*got the unknown task"):
            experiment.run(composed(*overrides))
    with pytest.raises(ConfigCompositionException):
        composed("+task=mystery")


@pytest.mark.parametrize("override", ["smc.particle=3", "task.styles=xml", "seed=x"])
def test_misspelled_keys_and_wrong_types_do_not_compose(override):
    with pytest.raises(ConfigCompositionException):
        composed("+task=xlam", override)


def test_values_set_in_a_copy_are_those_of_the_command():
    overrides = (
        "+task=xlam", "task.methods=[lcd, gcd]", "+hmm.paths.H64=a b", "run_dir='a=b'", "seed=3",
        "smc.temperature=0.5", "task.budget=tight",
    )  # fmt: skip
    found, expected = composed(*overrides), composing.anew(*overrides)
    assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(expected)
    assert composed(*overrides[:2]).seed == 0


@pytest.mark.parametrize(
    ("methods", "override", "same"),
    [
        *(("gcd", each, True) for each in ("smc.max_rows=7", "run_dir=x", "model.device=cpu")),
        *(("gcd", each, True) for each in ("wandb.mode=disabled", "hmm.defense=0.5")),
        *(("gcd", each, False) for each in ("seed=1", "task.budget=90", "data.offset=3")),
        *(("gcd", each, False) for each in ("smc.temperature=0.5", "model.engine=vllm")),
        ("gcd", "discrete.floor=0.125", True),  # which no algorithm of the run reads
        ("gcd", "task.algorithms=[smc,discrete]", False),
        ("pgcd", "hmm.defense=0.5", False),
    ],
)
def test_the_fingerprint_covers_all_that_determines_results(methods, override, same):
    config = composed("+task=xlam", f"task.methods=[{methods}]", "task.algorithms=[smc]")
    other = composed("+task=xlam", f"task.methods=[{methods}]", "task.algorithms=[smc]", override)
    one, two = results_config(config), results_config(other)
    assert (fingerprint(one) == fingerprint(two)) == same
    if override == "model.engine=vllm":  # runs on transformers keep their directories
        assert two["model"] == one["model"] | {"engine": "vllm", "chunk": 16}


def test_the_fingerprint_has_all_options_of_the_algorithms_of_the_run():
    none = results_config(composed("+task=xlam", "task.algorithms=[smc_none]"))
    assert "discrete" not in none
    assert set(none["smc"]) == {"temperature", "execution"}
    both = ("+task=xlam", "task.algorithms=[smc,discrete]")
    found = results_config(composed(*both))
    assert set(found["discrete"]) == {option.name for option in fields(smc.Discrete)}
    assert found != results_config(composed(*both, "discrete.floor=0.125"))


VOCABULARY = gcd.Vocabulary.from_bytes([bytes([b]) for b in range(256)] + [b""], [256])


def test_budgets_are_numbers_names_or_multiples():
    """Names grow with the shortest answer; multiples are of its tokens or of the right answer's."""
    short = gcd.lift(gcd.literal("abc"), VOCABULARY)  # 3 bytes and EOS
    long = gcd.lift(gcd.literal("abcdefgh"), VOCABULARY)
    assert [budget_of(name, short) for name in (7, "tight", "default", "loose")] == [7, 20, 40, 112]
    assert [budget_of(name, long) for name in ("tight", "default", "loose")] == [25, 50, 132]
    words = gcd.lift(gcd.choice(["a", "abc", "abcab"]), VOCABULARY)
    gold = list(b"abc")
    assert budget_of("fewest:1.5", words) == 3  # "a" and EOS
    assert budget_of("gold:1", words, gold) == len(gold) + 1
    assert budget_of("gold:1.25", words, gold) == -(-5 * (len(gold) + 1) // 4)
    with pytest.raises(
        gcd.ConstraintError, match="gold answer that satisfies the record's constraint"
    ):
        budget_of("gold:1", words, list(b"ab"))
    with pytest.raises(ValueError, match="gold:2, got one without; give fewest:2"):
        budget_of("gold:2", words)


@pytest.mark.parametrize("style", ["json", "", "a, b"])
def test_a_part_of_a_run_shows_its_style_and_multiple(style: str):
    assert multiple_in(part_of(style, "gold:1.25")) == (style, 1.25)
    assert multiple_in(part_of(style, "tight")) is None
    assert multiple_in(style) is None
