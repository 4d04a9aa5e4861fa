"""The examples of the README and of the library's page run, but for the hub that a name needs."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.packages import EXPORTING

ROOT = Path(__file__).resolve().parent.parent


def blocks(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def a_small_model() -> dict[str, Any]:
    """A model that costs nothing to run, and what the pages call it."""
    transformers = pytest.importorskip("transformers")
    import smc

    path = ROOT / "tests" / "models" / "stories260K"
    names = ["input_ids", "attention_mask"]
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, model_input_names=names)
    return {"model": model, "lm": smc.TransformersLM(model, tokenizer)}


@pytest.mark.slow("samples from SmolLM2, as the page does")
@pytest.mark.usefixtures("real_model", "unchecked_annotations")
def test_the_example_runs_with_another_model_outside_the_checkout(monkeypatch, capsys, tmp_path):
    from experiments.harness import smollm2

    [code] = blocks("README.md")
    assert "smc.ask" in code
    assert "experiments" not in code
    code, count = re.subn(r'"HuggingFaceTB/[\w-]+"', "model_directory", code)
    assert count == 1
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"model_directory": smollm2.checkpoint()})
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("city='Rome' days=3 ")
    assert line.endswith(" estimated")
    probability, low, high = map(float, re.findall(r"[01]\.\d+", line))
    assert 0.55 < low < probability < high < 0.95


@pytest.mark.slow("runs a page of examples, one with beams")
@pytest.mark.usefixtures("unchecked_annotations")
def test_the_page_of_the_library_runs_without_the_checkout(monkeypatch, capsys, tmp_path):
    """One after the other, on the small model: nothing on the page depends on a model's answer."""
    code = "\n".join(blocks("docs/library.md"))
    assert "gcd.Matcher" in code
    assert "experiments" not in code
    code = code.replace("particles=16", "particles=4")  # for the sake of time
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "library.md", "exec"), a_small_model())
    printed = capsys.readouterr().out
    assert "get_weather" in printed
    assert "tokens may come first" in printed
    assert '\n{"n":\n' in printed


def printed_and_shown(name: str, capsys, **particles: int) -> Iterator[tuple[str, str]]:
    """Run a page's blocks of Python; yields what each prints, and what the page shows below it.

    Args:
        particles: the number of particles instead of that on the page, for the sake of time.
    """
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    given: dict = {}
    printed = ""
    for kind, block in re.findall(r"```(python|text)\n(.*?)```", page, flags=re.DOTALL):
        if kind == "text":
            yield printed, block
            printed = ""
        else:
            assert not printed, "what a block prints stands below it"
            for option, count in particles.items():
                block = re.sub(rf'"{option}": \d+', f'"{option}": {count}', block)
            exec(compile(block, name, "exec"), given)
            printed = capsys.readouterr().out
    assert not printed


@pytest.mark.slow("computes a page of exact and estimated numbers")
@pytest.mark.usefixtures("unchecked_annotations")
def test_every_number_of_the_tutorial_is_computed_by_its_code(capsys):
    pairs = list(printed_and_shown("tutorial.md", capsys))
    assert len(pairs) > 5
    for printed, shown in pairs:
        assert printed == shown


@pytest.mark.slow("samples from SmolLM2 what the page shows")
@pytest.mark.usefixtures("real_model", "unchecked_annotations")
def test_a_valid_but_false_answer_is_shown_as_on_the_page(capsys):
    """Up to rounding, which another machine does otherwise: it can turn a draw of a particle."""
    pairs = list(printed_and_shown("valid_is_not_true.md", capsys, particles=24))
    assert len(pairs) == 6
    for printed, shown in pairs:
        first, best, *_ = printed.splitlines()
        said, *answers = shown.splitlines()
        shares = {text: float(share) for share, text in (line.split(" ", 1) for line in answers)}
        close = {text for text, share in shares.items() if share > max(shares.values()) - 0.1}
        assert best.split(" ", 1)[1] in close
        evidence, claimed = (float(line.rpartition(" ")[2]) for line in (first, said))
        assert 0.6 < evidence / claimed < 1.6


def test_the_example_of_transformers_runs_on_any_model(capsys):
    import gcd
    import smc

    given = a_small_model()
    ball = gcd.regex(r" The ball (was|is) [a-z ]{3,30}\.")
    given |= {"smc": smc, "constraint": gcd.lift(ball, given["lm"].vocabulary)}
    given["prompt"] = "Tom had a ball."
    (code,) = [block for block in blocks("docs/library.md") if "custom_generate" in block]
    assert "BudgetLogitsProcessor" in code
    exec(compile(code, "library.md", "exec"), given)
    for line in capsys.readouterr().out.splitlines():
        assert re.fullmatch(r".*The ball (was|is) [a-z ]{3,30}\..*", line), line


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks/README.md"],
    ids=lambda page: page.name,
)
def test_links_of_a_page_have_targets(page: Path):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("package", EXPORTING)
def test_the_reference_has_every_public_name_once(package: str):
    page = (ROOT / "docs" / "reference" / f"{package}.md").read_text(encoding="utf-8")
    listed = re.findall(
        r"^\.\. (?:auto(?:class|function|exception)|data):: (\w+)", page, re.MULTILINE
    )
    assert sorted(listed) == sorted(importlib.import_module(package).__all__)
