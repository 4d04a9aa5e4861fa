"""Every block of Python runs after README's example, in the order of its page, unless it begins
with what it needs. Every command of `experiments.run` composes and passes its checks.

Blocks run as written, in an empty folder, with two replacements. README's `from_pretrained` finds
no hub here: it loads SmolLM2 from a wheel for README and for HMMs of SmolLM2, and a small model of
`transformers` for all other pages. For the sake of time, pages of `SHORTENED` draw less.
"""

from __future__ import annotations

import importlib
import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

import smc
from experiments.arms import hmm_identity
from experiments.models import SMOLLM2, SMOLLM2_HUB, smollm2_checkpoint
from experiments.run import TASKS, check, register, run
from scripts.packages import EXPORTING

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "models/*/*.md", "data/*/*.md")
    for path in sorted(ROOT.glob(pattern))
}
STORIES = ROOT / "tests" / "models" / "stories260K"
FENCED = re.compile(r"^( *)```(python|text)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PRINTED = {  # what the blocks of a page print with any model
    "docs/labels.md": (
        r".*\n(-\d+\.\d\d  (big |little )?(park|zoo|shop|beach)\.\n){4}"
        r"\d of them are certainly the best; \d+ prefixes were computed\n"
    ),
    "docs/languages.md": (
        r"a part: .* nested uses of start\n\{\"city\":\".*\",\"days\":-?\d+\}\n"
        r"Tom lost his red ball\. [A-Z][a-z ,]+\. So he was happy again\.\n"
    ),
    "docs/library.md": r".*get_weather.*\d+ tokens may come first\n\{\"n\":\n.*",
}


def blocks(page: str) -> list[tuple[str, str]]:
    """The Python of a page, in order, each with the output that the page shows below it."""
    found = [
        (m[2], re.sub(f"^{m[1]}", "", m[3], flags=re.MULTILINE))
        for m in FENCED.finditer(PAGES[page])
    ]
    return [
        (code, below if other == "text" else "")
        for (kind, code), (other, below) in itertools.pairwise([*found, ("", "")])
        if kind == "python" and not code.startswith("# Needs ")
    ]


SHORTENED = {
    "docs/distillation.md": {'"particles": 200': '"particles": 20', "range(30)": "range(3)"},
    "docs/library.md": {"particles=16": "particles=4"},
    "docs/tutorial.md": {
        "times=4000": "times=1000", "times=1000": "times=250", "times=250": "times=60",
    },
    # The model computes forced tokens together if each literal is spelled in one way.
    "docs/valid_is_not_true.md": {
        '"particles": 64': '"particles": 24',
        "lm.vocabulary)": 'lm.vocabulary, literals="canonical")',
    },
}  # fmt: skip


def shortened(page: str, code: str) -> str:
    """Replace what takes long in a page's code, and is replaced once there."""
    changes = SHORTENED.get(page, {})
    pattern = "|".join(map(re.escape, changes)) or "$^"
    return re.sub(pattern, lambda found: changes[found[0]], code)


WITH_BLOCKS = [page for page in PAGES if blocks(page)]
BY_SMOLLM2 = "docs/valid_is_not_true.md"  # loads it by `experiments`, in the checkout
OF_SMOLLM2 = [page for page in WITH_BLOCKS if page.startswith("models/")] + ["docs/experiments.md"]


class Reader:
    """A reader who runs README's example, and then the blocks of pages, in one folder."""

    def __init__(self, model: Path) -> None:
        self.lm = smc.TransformersLM.from_pretrained(str(model))
        if self.lm.tokenizer.chat_template is None:
            self.lm.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        self.names: dict[str, Any] = {"__name__": "reader"}

    def run(
        self, page: str, capsys: pytest.CaptureFixture[str]
    ) -> tuple[list[tuple[str, str]], dict[str, Any]]:
        """Run a page after README; return what blocks printed and what the page shows below each,
        and the names that are defined then.
        """
        given, printed = dict(self.names), []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(smc.TransformersLM, "from_pretrained", {SMOLLM2_HUB: self.lm}.__getitem__)
            for code, shown in blocks(page):
                exec(compile(shortened(page, code), page, "exec", dont_inherit=True), given)
                printed.append((capsys.readouterr().out, shown))
        if page == "README.md":
            self.names = given
        return printed, given


@pytest.fixture(scope="module")
def small() -> Reader:
    pytest.importorskip("transformers")
    return Reader(STORIES)


def is_close(printed: str, shown: str) -> bool:
    """Compare answers up to rounding, which another machine does otherwise: it can turn a draw."""
    first, *answers = printed.splitlines()
    said, *others = shown.splitlines()
    shares = {text: float(share) for share, text in (line.split(" ", 1) for line in others)}
    close = {text for text, share in shares.items() if share > max(shares.values()) - 0.1}
    evidence, claimed = (float(line.rpartition(" ")[2]) for line in (first, said))
    return answers[0].split(" ", 1)[1] in close and 0.6 < evidence / claimed < 1.6


def is_near(printed: str, shown: str) -> bool:
    """Compare numbers up to what fewer draws change, and all other text exactly."""
    found, expected = (re.split(r"(\d+\.\d+)", text) for text in (printed, shown))
    return found[::2] == expected[::2] and [*map(float, found[1::2])] == pytest.approx(
        [*map(float, expected[1::2])], abs=0.05
    )


@pytest.mark.slow("samples from models, some of them real")
@pytest.mark.usefixtures("unchecked_annotations")
@pytest.mark.filterwarnings("ignore::gcd.IgnoredKeywordWarning")
@pytest.mark.parametrize("page", sorted({*WITH_BLOCKS} - {"README.md", *OF_SMOLLM2}))
def test_the_blocks_of_a_page_run(
    page: str,
    small: Reader,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if page == BY_SMOLLM2:
        request.getfixturevalue("real_model")
        (tmp_path / "models").symlink_to(ROOT / "models")
        # README's model has been checked below, and this one differs from it by its weights.
        monkeypatch.setattr("smc._models.transformers_lm.shares_prompts", lambda model: True)
    code = "".join(code for code, _ in blocks(page))
    assert all(text in code for text in SHORTENED.get(page, {}))
    if "lm" not in small.names:
        small.run("README.md", capsys)
    printed, given = small.run(page, capsys)
    given.clear()  # frees its models
    assert re.fullmatch(PRINTED.get(page, ".*"), "".join(out for out, _ in printed), re.DOTALL)
    agree = is_close if page == BY_SMOLLM2 else is_near if page in SHORTENED else str.__eq__
    assert all(agree(out, shown) for out, shown in printed if shown)


@pytest.mark.slow("samples from SmolLM2, as README does")
@pytest.mark.usefixtures("real_model", "unchecked_annotations")
def test_readme_and_what_is_made_for_its_model_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    reader = Reader(smollm2_checkpoint())
    [(line, _)], _ = reader.run("README.md", capsys)
    assert re.match("city='Rome' days=3\ncity='Rome' days=3 .* estimated$", line)
    probability, low, high = map(float, re.findall(r"[01]\.\d+", line))
    assert 0.45 < low < probability < high < 0.95
    (tmp_path / "models").symlink_to(ROOT / "models")
    for page in OF_SMOLLM2:
        _, given = reader.run(page, capsys)
    task = given["TASK"]
    monkeypatch.setitem(TASKS, task.name, task)
    register()
    # Figures and the page are made of the rows.
    monkeypatch.setattr("experiments.figures.plot_all", lambda *_: {})
    monkeypatch.setattr("experiments.results.write_report", lambda directory: None)
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        stated = [f"+task={task.name}", "wandb=disabled", f"model.path={STORIES}"]
        config = compose("config", [*stated, "task.methods=[lcd,gcd]", "task.particles=[1]"])
    run(config)
    assert "Difference to GCD, with 95% intervals:" in capsys.readouterr().out


def test_links_have_targets() -> None:
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize("package", EXPORTING)
def test_the_reference_has_every_public_name_once(package: str) -> None:
    listed = re.findall(
        r"^\.\. (?:auto(?:class|function|exception)|data):: (\w+)",
        PAGES[f"docs/reference/{package}.md"],
        re.MULTILINE,
    )
    assert sorted(listed) == sorted(importlib.import_module(package).__all__)


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
    "FILE.json": "data/convergence/new_stories.json",
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


@pytest.mark.parametrize(("command", "page"), sorted({c: p for p, c in sorted(commands())}.items()))
def test_a_command_composes_and_passes_its_checks(page: str, command: str) -> None:
    if command in NOT_CHECKED:
        pytest.skip(NOT_CHECKED[command])
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config = compose("config", settings_of(shlex.split(command)))
    check(config)
    own = ROOT / "models" / f"{SMOLLM2}-{config.task.name}-hmm"
    given = config.model.path, config.hmm.path, dict(config.hmm.paths)
    if own.is_dir() and given == (SMOLLM2, "auto", {}):
        hmm_identity(config)  # the HMM of the repository is there, and fitted for what is asked
