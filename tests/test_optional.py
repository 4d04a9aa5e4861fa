"""Missing optional dependencies: the core works, and each call names the extra it needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scripts.packages import LIBRARY

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
SCRIPT = """
import json, pathlib, sys, tempfile
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in HIDDEN else super().find_spec(name, path, target)

HIDDEN = set(sys.argv[1].split(","))
sys.meta_path = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]

import gcd, gcd_cli, hmm, smc, torch
for package in sys.argv[2].split(","):
    __import__(package)

folder = pathlib.Path(tempfile.mkdtemp())
(folder / "tokenizer.json").write_text("{}")

def command(*arguments):
    sys.argv = ["gcd", *arguments]
    gcd_cli.run()

def with_click(call):
    HIDDEN.discard("click")
    try:
        call()
    finally:
        HIDDEN.add("click")

def tokenizer():
    from gcd_cli._sources import vocabulary
    vocabulary(str(folder))

def hub():
    from gcd_cli._sources import vocabulary
    vocabulary("some/model")

def draw():
    from gcd_cli import _drawing
    _drawing.to_dot(gcd.regex("a"))

def sample():
    from gcd_cli import _sampling
    _sampling.draw("some/model", None, lifted, prompt="", budget=4, particles=1, proposal="gcd",
                  algorithm="smc", hmm=None, max_tokens_read=1, seed=0, deadline=None)

vocabulary = gcd.Vocabulary.from_bytes([bytes([b]) for b in range(256)] + [b""], eos_ids=256)
lifted = gcd.lift(gcd.regex("a*"), vocabulary)
assert gcd.Matcher(lifted, budget=4).mask() is not None
calls = {
    "draw": lambda: with_click(draw),
    "json_schema": lambda: gcd.json_schema(int),
    "tool_calls": lambda: gcd.tool_calls([tokenizer]),
    "generate": lambda: smc.generate,
    "logits_processor": lambda: smc.BudgetLogitsProcessor,
    "cluster": lambda: hmm._initialize.cluster(torch.zeros(3, 2), 2),
    "gcd": lambda: command("compile"),
    "tokenizer": lambda: with_click(tokenizer),
    "hub": lambda: with_click(hub),
    "sample": lambda: with_click(sample),
    "experiments": lambda: __import__("experiments.run"),
}
for name, call in calls.items():
    try:
        call()
    except (Exception, SystemExit) as error:
        calls[name] = [type(error).__name__, str(getattr(error, "message", error))]
    else:
        calls[name] = ["nothing", ""]
print(json.dumps(calls))
"""
HIDDEN = (
    "accelerate,click,datasets,faiss,gguf,graphviz,huggingface_hub,hydra,jinja2,lemminflect,"
    "matplotlib,omegaconf,outlines_core,pandas,peft,pydantic,sglang,sqlglot,tokenizers,tqdm,"
    "transformers,triton,vllm,wandb,xgrammar"
)
NAMED = {
    "draw": "drawing", "json_schema": "pydantic", "tool_calls": "models", "generate": "models",
    "logits_processor": "models", "cluster": "distillation", "gcd": "cli", "tokenizer": "cli",
    "hub": "cli", "sample": "cli", "experiments": "experiments",
}  # fmt: skip


@pytest.fixture(scope="module")
def messages() -> dict[str, list[str]]:
    """Return the error of each call in a process where no optional dependency can be imported."""
    command = [sys.executable, "-c", SCRIPT, HIDDEN, ",".join(LIBRARY)]
    paths = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=paths, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_extras_are_described() -> None:
    page = (ROOT / "docs" / "versioning.md").read_text(encoding="utf-8")
    table = page.partition("## Optional dependencies")[2].partition("## ")[0]
    assert not [extra for extra in EXTRAS if f"`{extra}`" not in table]


@pytest.mark.parametrize("call", NAMED)
def test_a_missing_dependency_names_its_extra(messages: dict[str, list[str]], call: str) -> None:
    kind, text = messages[call]
    assert kind in ("BadInput", "ConstraintError", "ImportError", "SystemExit")
    assert "\n" not in text
    match = re.search(
        r"needs the package (\w+), which is not installed; run "
        r"pip install 'globally-constrained-decoding\[(\w+)\]'$",
        text,
    )
    assert match, text
    package, extra = match[1].replace("_", "-"), match[2]
    assert extra == NAMED[call]
    needed = [re.split(r"[<>=;]", each)[0].strip() for each in EXTRAS[extra]]
    brought = {"faiss": "faiss-cpu", "huggingface-hub": "transformers", "hydra": "hydra-core"}
    assert brought.get(package, package) in needed
