"""Every block of Python on the pages runs, or is named here with the reason why not; every command
of `experiments.run` composes and passes its checks.
"""

from __future__ import annotations

import ast
import re
import shlex
import sqlite3
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

import gcd
import smc
from experiments.harness import smollm2
from experiments.harness.methods import hmm_identity
from experiments.run import check, run
from experiments.tasks import TASKS, register
from hmm import HMM

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for pattern in ("README.md", "docs/**/*.md", "benchmarks/*.md", "models/*/README.md")
    for path in sorted(ROOT.glob(pattern))
}
ELSEWHERE = {  # where they run, and what they print is compared with the page
    "README.md": "tests/test_readme.py",
    "docs/grammars.md": "tests/gcd/languages/grammar/test_dialects.py",
    "docs/infill.md": "tests/smc/test_infilling.py",
    "docs/library.md": "tests/test_readme.py",
    "docs/search.md": "tests/smc/test_searching.py",
    "docs/tutorial.md": "tests/test_readme.py",
    "docs/valid_is_not_true.md": "tests/test_readme.py",
}
NOT_RUN = {
    "docs/serving.md": "mlx-lm, in an environment of its own (`make mlx`)",
    "docs/vllm.md": "a server of vLLM (`make vllm`)",
    "docs/scaling.md": "an engine of vLLM (`make vllm`)",
    "docs/vllm_posteriors.md": "an engine of vLLM (`make vllm`)",
}
STORIES = ROOT / "tests" / "models" / "stories260K"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4}.*\n?|^\n(?= {4}))+", re.MULTILINE)


def is_ours(code: str) -> bool:
    """Recognize Python that uses the library; other indented text is output or commands."""
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return bool(re.search(r"^(import|from) |\b(gcd|smc|hmm)\.\w+\(", code, re.MULTILINE))


def blocks(text: str) -> list[str]:
    """The Python of a page, fenced or indented, in order."""
    found = [(m.start(), m[3]) for m in FENCED.finditer(text) if m[2] == "python"]
    rest = FENCED.sub(lambda m: re.sub(r"[^\n]", " ", m[0]).replace(" " * 4, "xxxx"), text)
    found += [
        (m.start(), code)
        for m in INDENTED.finditer(rest)
        for code in [textwrap.dedent(m[0])]
        if is_ours(code)
    ]
    return [textwrap.dedent(code) for _, code in sorted(found)]


def stories() -> dict[str, Any]:
    """A small model of `transformers`, and what pages call the things around it."""
    transformers = pytest.importorskip("transformers")
    names = ["input_ids", "attention_mask"]
    model = transformers.AutoModelForCausalLM.from_pretrained(STORIES)
    tokenizer = transformers.AutoTokenizer.from_pretrained(STORIES, model_input_names=names)
    lm = smc.TransformersLM(model, tokenizer)
    given = {"lm": lm, "model": model, "path": STORIES, "vocabulary": lm.vocabulary}
    ids = tokenizer('Hm.</think>{"n":1}', add_special_tokens=False)["input_ids"]
    ahead = HMM.random(4, lm.vocabulary.size)
    return {**given, "schema": SCHEMA, "ids": ids, "ahead": ahead}


def smollm() -> dict[str, Any]:
    """The vocabulary that the models in `models/` are for."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2.checkpoint())

    class Model:
        vocabulary = gcd.Vocabulary.from_tokenizer(tokenizer)

    return {"lm": Model, "DIR": "models/smollm2-xlam-hmm"}


def concerts() -> dict[str, Any]:
    with sqlite3.connect("concerts.sqlite") as database:
        database.execute("CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT, age INTEGER)")
    return {}


NEEDS: dict[str, Callable[[], dict[str, Any]]] = {
    "docs/deadlines.md": stories,
    "docs/distillation.md": stories,
    "docs/experiments.md": smollm,
    "docs/labels.md": stories,
    "docs/reliability.md": stories,
    "docs/segments.md": stories,
    "docs/sql.md": concerts,
    "docs/transformers.md": stories,
}


@pytest.mark.slow
@pytest.mark.usefixtures("real_model", "unchecked_annotations")
@pytest.mark.filterwarnings("ignore::gcd.IgnoredKeywordWarning")
@pytest.mark.parametrize("page", [p for p, t in PAGES.items() if blocks(t)])
def test_the_blocks_of_a_page_run(
    page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if page in NOT_RUN:
        pytest.skip(NOT_RUN[page])
    if page in ELSEWHERE:
        name = (ROOT / ELSEWHERE[page]).read_text(encoding="utf-8")
        assert Path(page).name in name
        return
    needs = NEEDS.get(page, smollm if page.startswith("models/") else dict)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").symlink_to(ROOT / "models")
    given = needs()
    for code in blocks(PAGES[page]):
        # It would set aside most of the machine's memory.
        code = code.replace("_async_batching=False,", "_async_batching=False, num_blocks=64,")
        exec(compile(code, page, "exec", dont_inherit=True), given)
    if task := given.get("TASK"):
        monkeypatch.setitem(TASKS, task.name, task)
        register()
        with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
            stated = [f"+task={task.name}", "wandb=disabled", f"model.path={STORIES}"]
            config = compose("config", [*stated, "task.methods=[lcd,gcd]", "task.particles=[1]"])
        run(config)
        assert "GCD finished every request" in capsys.readouterr().out


def commands() -> set[tuple[str, str]]:
    """The arguments of every `python -m experiments.run` on the pages."""
    found = set()
    for page, text in PAGES.items():
        text = text.replace("\\\n", " ")
        shown = re.findall(r"^ {4}(.*)$", text, re.MULTILINE) + re.findall(r"`([^`\n]+)`", text)
        for line in shown:
            if match := re.match(r"(?:\w+=\S+ )*python -m experiments\.run (.*)", line):
                found.add((page, shlex.join(shlex.split(match[1], comments=True))))
    return found


FILES = {  # what a page leaves to its reader: something of that kind
    "DIR": "tests/models/stories260K",
    "FILE.json": "docs/convergence_new_stories.json",
    "dev.inflections.jsonl": "tests/experiments/requests.jsonl",
}
NOT_CHECKED = {
    "+experiment=table2_latency": "needs a CUDA device",
    "+experiment=table2_latency task.compile=true 'task.kinds=[lm,gcd,pgcd]'": "the same",
    "+task=NAME key=value ...": "says what a command looks like",
}


def settings_of(arguments: list[str]) -> list[str]:
    """The settings of the first run that a command makes, without those of Hydra itself."""
    if "--cfg" in arguments:
        arguments = arguments[: arguments.index("--cfg")]
    given = OverridesParser.create().parse_overrides([a for a in arguments if a != "--multirun"])
    found = []
    for each in given:
        value = next(each.sweep_string_iterator()) if each.is_sweep_override() else None
        key, _, whole = str(each.input_line).partition("=")
        text = value or whole
        if not key.startswith("hydra"):
            found.append(f"{key}={FILES.get(text, text)}")
    return found


@pytest.mark.parametrize(("page", "command"), sorted(commands()))
def test_a_command_composes_and_passes_its_checks(page: str, command: str) -> None:
    if command in NOT_CHECKED:
        pytest.skip(NOT_CHECKED[command])
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config = compose("config", settings_of(shlex.split(command)))
    check(config)
    own = ROOT / "models" / f"{smollm2.NAME}-{config.task.name}-hmm"
    given = config.model.path, config.hmm.path, dict(config.hmm.paths)
    if own.is_dir() and given == (smollm2.NAME, "auto", {}):
        hmm_identity(config)  # the HMM of the repository is there, and fitted for what is asked
