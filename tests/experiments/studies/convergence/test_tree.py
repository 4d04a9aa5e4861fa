"""Trees of spellings against plain enumeration; restriction changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gcd
import smc
from experiments.arms import METHODS
from experiments.config import HMMConfig
from experiments.studies.convergence.evaluate import (
    Evaluator,
    load_values,
    save_values,
)
from experiments.studies.convergence.sampler import TreeLM, TreeProposal, sample_runs, tabulate
from experiments.studies.convergence.tree import Restriction, Tree, count_prefixes
from gcd._tokens.batch import AutomatonBatch
from hmm._model import HMM
from smc._inference.algorithms import SMC
from smc._vocabulary.mixture import defend
from smc.testing import ToyLM

# Two ids that say the same, tokens no constraint here has a use for, ids without bytes, two ends.
VOCABULARY = gcd.Vocabulary.from_bytes(
    [b"a", b"b", b"ab", b"x", b"c", b"", b"", b"a", b"yz", b"", b"bc"], [5, 9]
)
LM = ToyLM(VOCABULARY, seed=3, spread=1.5)
PROMPT = (0, 3)
CONSTRAINTS = {
    "words": gcd.choice(["a", "ab", "abc", "bbc"]),
    "classes": gcd.regex("[abc]{1,3}c"),
    "loop": gcd.regex("a*b"),
    "everything": gcd.regex("[abcxyz]{0,2}"),
}
HMM_ = HMM.random(
    4, VOCABULARY.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64
)


def lifted(name: str) -> gcd.TokenAutomaton:
    return gcd.lift(CONSTRAINTS[name], VOCABULARY)


def built(name: str, budget: int, **options) -> tuple[gcd.TokenAutomaton, Restriction, Tree]:
    constraint = lifted(name)
    restriction = Restriction.of(constraint)
    tree = Tree(restriction.automaton, budget)
    evaluator = Evaluator(LM, PROMPT, restriction.ids, **options)
    evaluator(tree, torch.arange(tree.num_exact))
    return constraint, restriction, tree


def prefixes(constraint: gcd.TokenAutomaton, budget: int) -> set[tuple[int, ...]]:
    """All token prefixes that can be completed within the budget, by plain enumeration."""
    found: set[tuple[int, ...]] = set()

    def visit(state: int, tokens: tuple[int, ...]) -> None:
        if state < 0 or constraint.steps_to_accept[state] > budget - len(tokens):
            return
        if state == constraint.final:
            return
        found.add(tokens)
        for token in range(VOCABULARY.size):
            visit(constraint.step(state, token), (*tokens, token))

    visit(constraint.initial, ())
    return found


def paths(restriction: Restriction, tree: Tree, nodes: torch.Tensor) -> list[tuple[int, ...]]:
    return [
        tuple(int(restriction.ids[token]) for token in row if token >= 0)
        for row in tree.tokens(tree.paths(nodes)).tolist()
    ]


@pytest.mark.parametrize("name", list(CONSTRAINTS))
@pytest.mark.parametrize("budget", [2, 3, 4, 5])
def test_the_tree_is_all_prefixes(name, budget):
    constraint, restriction, tree = built(name, budget)
    expected = prefixes(constraint, budget)
    inner = (tree["text"] < 0).nonzero().squeeze(1)
    assert count_prefixes(constraint, budget) == tree.num_prefixes == len(expected)
    assert set(paths(restriction, tree, inner)) == expected
    ended = (tree["text"] >= 0).nonzero().squeeze(1)
    for node, path in zip(ended.tolist(), paths(restriction, tree, ended), strict=True):
        assert path[-1] in VOCABULARY.eos_ids
        assert tree.texts[tree["text"][node]] == VOCABULARY.decode(path[:-1])
        assert constraint.accepts(path[:-1])


@settings(max_examples=60)
@given(
    texts=st.lists(st.text("abcx", min_size=0, max_size=5), min_size=1, max_size=6, unique=True),
    extra=st.integers(0, 6),
)
@example(texts=[""], extra=0)
def test_counting_needs_no_tree(texts, extra):
    constraint = gcd.lift(gcd.choice(texts), VOCABULARY)
    budget = constraint.fewest_tokens + extra
    tree = Tree(Restriction.of(constraint).automaton, budget)
    assert (
        count_prefixes(constraint, budget) == tree.num_prefixes == len(prefixes(constraint, budget))
    )


def test_an_ample_budget_costs_no_more():
    words = lifted("words")
    assert count_prefixes(words, 10**9) == count_prefixes(words, 4) > count_prefixes(words, 3)


def test_a_tree_too_large_to_build_is_counted():
    constraint = gcd.lift(gcd.regex("(a|b|ab|c){60}"), VOCABULARY)
    # At most 3 + 2 ways a token, so nothing close to this is ever enumerated.
    assert count_prefixes(constraint, 62) > 1e20


@pytest.mark.parametrize("name", list(CONSTRAINTS))
def test_a_restricted_constraint_has_the_same_states_and_classes(name):
    constraint = lifted(name)
    restriction = Restriction.of(constraint)
    small = restriction.automaton
    small.check()
    other = len(restriction.ids)
    for state in range(constraint.num_states):
        for place, token in enumerate(restriction.ids):
            assert small.step(state, place) == constraint.step(state, int(token))
        assert small.step(state, other) == -1
    assert (small.steps_to_accept == constraint.steps_to_accept).all()
    for klass in range(small.num_classes):
        members = restriction.ids[small.class_of[:-1] == klass]
        if len(members):
            full = np.flatnonzero(constraint.class_of == constraint.class_of[members[0]])
            assert members.tolist() == full.tolist()


@pytest.mark.parametrize("name", list(CONSTRAINTS))
@pytest.mark.parametrize(
    "method", ["pgcd", "pgcd_tied", "pgcd_exact", "pgcd_in_time", "pgcd_joint"]
)
@pytest.mark.parametrize("options", [{}, {"defense": 0.0}])
def test_restriction_changes_no_guide(name, method, options):
    """Log g and log Z at every prefix are those of the whole vocabulary and the whole HMM."""
    constraint, restriction, tree = built(name, 4)
    settings = HMMConfig(lookahead="conditional", **options)
    table = tabulate(METHODS[method].proposal(settings, restriction.hmm(HMM_)), tree)
    own, whole = TreeProposal(tree, table), METHODS[method].proposal(settings, HMM_)
    batch = smc.Batch(AutomatonBatch([constraint]), torch.tensor([4]))
    inner = (tree["text"][: tree.num_exact] < 0).nonzero().squeeze(1)
    for node, path in zip(inner.tolist(), paths(restriction, tree, inner), strict=True):
        state = whole.start(batch)
        if path:
            state = whole.advance(state, torch.tensor([path]))
        log_p = LM.log_p(PROMPT + path).unsqueeze(0)
        guide = defend(whole.guide(state, log_p), log_p)
        slots = tree.rows(torch.tensor([node]))[0]
        tokens = restriction.ids[tree["token"][slots].numpy()]
        at = torch.tensor([node])
        found = defend(own.guide(own.state(at), tree.log_p(at)), tree.log_p(at))
        torch.testing.assert_close(found.log_g[0, :-1], guide.log_g[0, tokens])
        torch.testing.assert_close(found.log_z, guide.log_z)
        others = np.setdiff1d(np.arange(VOCABULARY.size), tokens)
        assert bool(guide.log_g[0, others].isneginf().all())


def test_favorites_are_picked_among_the_same_tokens():
    """With fewer favorites than tokens, which ones they are is not changed either."""
    constraint, restriction, tree = built("everything", 3)
    some = tabulate(smc.PGCD(restriction.hmm(HMM_), exact_top_k=2), tree)
    none = tabulate(smc.PGCD(restriction.hmm(HMM_), exact_top_k=0), tree)
    assert not torch.equal(some.log_g, none.log_g)
    whole = smc.PGCD(HMM_, exact_top_k=2)
    state = whole.start(smc.Batch(AutomatonBatch([constraint]), torch.tensor([3])))
    guide = whole.guide(state, LM.log_p(PROMPT).unsqueeze(0))
    slots = tree.rows(torch.tensor([0]))[0]
    tokens = restriction.ids[tree["token"][slots].numpy()]
    torch.testing.assert_close(some.log_g[slots], guide.log_g[0, tokens])


@pytest.mark.parametrize("max_rows", [1, 2, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_model_is_asked_once_at_every_prefix(max_rows, temperature):
    _, restriction, tree = built("classes", 4, max_rows=max_rows, temperature=temperature)
    inner = (tree["text"] < 0).nonzero().squeeze(1)
    assert bool((tree.known == (tree["text"] < 0)).all())
    for node, path in zip(inner.tolist(), paths(restriction, tree, inner), strict=True):
        log_p = (LM.log_p(PROMPT + path) / temperature).log_softmax(dim=0)
        row = tree.log_p(torch.tensor([node]))[0]
        slots = tree.rows(torch.tensor([node]))[0]
        tokens = restriction.ids[tree["token"][slots].numpy()]
        torch.testing.assert_close(row[:-1], log_p[tokens])
        rest = np.setdiff1d(np.arange(VOCABULARY.size), tokens)
        torch.testing.assert_close(row[-1], log_p[rest].logsumexp(dim=0))


def test_what_was_said_is_kept_on_disk(tmp_path):
    _, restriction, tree = built("words", 3)
    evaluator = Evaluator(LM, PROMPT, restriction.ids)
    sample_runs(
        TreeLM(tree, evaluator), TreeProposal(tree, "lcd"), algorithm=SMC(), particles=8, runs=60
    )
    assert tree.num_nodes > tree.num_exact  # LCD has walked where there is no end in time
    save_values(tree, tmp_path / "values.npz")
    again = Tree(restriction.automaton, 3)
    assert not load_values(again, tmp_path / "nothing.npz")
    assert load_values(again, tmp_path / "values.npz")
    for name in ("log_p", "log_other"):  # within the budget; what lies behind is asked again
        kept = tree[name][: len(again[name])]
        torch.testing.assert_close(again[name], kept, rtol=0, atol=0, equal_nan=True)
    other = Tree(restriction.automaton, 4)
    assert not load_values(other, tmp_path / "values.npz")  # another tree's


def test_a_model_that_gives_nan_is_refused():
    constraint = lifted("words")
    restriction = Restriction.of(constraint)

    class Broken(ToyLM):
        def log_p(self, tokens):
            return super().log_p(tokens) * (torch.nan if len(tokens) > 3 else 1)

    tree = Tree(restriction.automaton, 4)
    with pytest.raises(FloatingPointError, match="NaN"):
        Evaluator(Broken(VOCABULARY), PROMPT, restriction.ids)(tree, torch.arange(tree.num_exact))


def test_a_proposal_that_leaves_the_tree_is_not_tabulated():
    """LCD draws tokens after which nothing ends in time; only its own form on the tree may."""
    _, _, tree = built("loop", 3)
    with pytest.raises(ValueError, match="texts can end within the budget"):
        tabulate(smc.LCD(), tree)
    table = tabulate(smc.GCD(), tree)
    inner = torch.arange(tree.num_exact)[tree["text"][: tree.num_exact] < 0]
    own = TreeProposal(tree, "gcd")
    same = TreeProposal(tree, table)
    first, second = (each.guide(each.state(inner), tree.log_p(inner)).log_g for each in (own, same))
    torch.testing.assert_close(first, second)
