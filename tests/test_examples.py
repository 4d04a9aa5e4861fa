"""The programs in docs/examples run on one model and print valid answers."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import gcd
import smc
from gcd_vllm._requests import ConstraintRequest

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "examples"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))
ADAPTERS = {  # run by tests_examples, with the packages that they are for
    "decision_server": "starlette", "inspect_provider": "inspect_ai", "lm_eval_model": "lm_eval",
    "outlines_generator": "outlines", "retry_free": "instructor",
}  # fmt: skip


def code_of(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")


def test_there_are_six_short_programs_and_the_page_shows_them() -> None:
    assert len({*EXAMPLES} - {*ADAPTERS}) == 6
    page = (FOLDER.parent / "examples.md").read_text(encoding="utf-8")
    for name in EXAMPLES:
        assert len(code_of(name).splitlines()) <= (60 if name in ADAPTERS else 40)
        assert ast.get_docstring(ast.parse(code_of(name)))
        assert f"examples/{name}.py" in page


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_an_adapter_without_its_package_says_how_to_install_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, ADAPTERS[name], None)
    expected = rf"^expected {ADAPTERS[name]}[\w.]*; run `pip install \S.*`$"
    with pytest.raises(ImportError, match=expected):
        exec(compile(code_of(name), f"{name}.py", "exec", dont_inherit=True), {"__name__": name})
    assert "\nInstall it with `pip install " in code_of(name)


@pytest.mark.slow("samples from SmolLM2 in five programs")
@pytest.mark.usefixtures("real_model", "unchecked_annotations")
def test_the_programs_print_valid_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    from experiments.models import SMOLLM2, SMOLLM2_HUB, resolve

    lm = smc.TransformersLM.from_pretrained(resolve(SMOLLM2))
    monkeypatch.setattr(smc.TransformersLM, "from_pretrained", {SMOLLM2_HUB: lm}.__getitem__)
    # README's example, which `tests/test_pages.py` runs, checks the same model.
    monkeypatch.setattr("smc._models.transformers_lm.shares_prompts", lambda model: True)
    monkeypatch.chdir(tmp_path)

    def printed(name: str) -> list[str]:
        exec(compile(code_of(name), f"{name}.py", "exec", dont_inherit=True), {})
        return capsys.readouterr().out.splitlines()

    *answers, best = printed("json_object")
    assert json.loads(best.removeprefix("best: ")) == {"item": "table", "price": 45}
    assert sum(float(line.split()[0]) for line in answers) == pytest.approx(1, abs=0.05)

    assert printed("choose_label")[-1] == "most probable label: negative"

    call, probability = printed("call_tool")
    assert call == "get_weather {'city': 'Rome', 'days': 3}"
    assert re.fullmatch(r"probability: from 0\.\d+ to [01]\.\d+, [a-z]+", probability)

    query, rows = printed("query_database")
    assert query.startswith("SELECT singer.")
    assert isinstance(ast.literal_eval(rows), list)

    plain, favored = printed("own_proposal")
    assert plain.startswith("GCD ")
    assert favored.startswith("Favor ")
    # Both estimate the same evidence.
    assert float(plain.split()[-1]) == pytest.approx(float(favored.split()[-1]), abs=0.5)
    # Nothing stays in the reader's folder, where a second run would find it.
    assert not [*tmp_path.iterdir()]


def test_the_request_to_vllm_is_one_that_the_plugin_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine is replaced; the constraint is compiled and must fit into `max_tokens`."""
    requests: list[dict[str, Any]] = []
    shortest = '{"name":"","bio":""}'

    class Engine:
        def __init__(self, model: str) -> None:
            pass

        def chat(self, conversations: list[Any], parameters: dict[str, Any]) -> list[Any]:
            requests.append(parameters)
            answer = SimpleNamespace(finish_reason="stop", text=shortest)
            return [SimpleNamespace(outputs=[answer]) for _ in conversations]

    fake: Callable[..., Any] = lambda **given: given  # noqa: E731
    module = ModuleType("vllm")
    module.__dict__.update(LLM=Engine, SamplingParams=fake)
    monkeypatch.setitem(sys.modules, "vllm", module)
    exec(compile(code_of("vllm_request"), "vllm_request.py", "exec", dont_inherit=True), {})
    assert capsys.readouterr().out == "stop {'name': '', 'bio': ''}\n"
    [parameters] = requests
    language = ConstraintRequest.parse(parameters["extra_args"]["gcd"]).language()
    assert isinstance(language, gcd.Automaton)
    assert language.accepts(shortest)
