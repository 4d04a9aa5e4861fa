"""Drawings of automata as graphviz source, or as SVG if the program `dot` is installed.

All transitions from one state to another form one arrow. Its label lists ranges of bytes, or a few
of the tokens and their total number. Accepting states are double circles. In the drawing of a token
automaton, each state also shows the fewest tokens from it to the end.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np

from gcd import Automaton, ConstraintError, TokenAutomaton
from gcd._readable import readable_bytes, readable_ranges
from gcd._support.optional import missing

if TYPE_CHECKING:
    import graphviz

MAX_STATES = 300
"""Maximum number of states: larger drawings are unreadable, and take `dot` minutes."""

_SHOWN_TOKENS = 5
_LABEL = 60  # maximum number of characters of a label


def to_dot(automaton: Automaton | TokenAutomaton) -> str:
    """Return the drawing of a byte or token automaton as graphviz source."""
    return _graph(automaton).source


def to_svg(automaton: Automaton | TokenAutomaton) -> str:
    """Return the drawing of a byte or token automaton as the text of an SVG file."""
    graph = _graph(automaton)
    if shutil.which("dot") is None:
        raise ConstraintError(
            "expected the graphviz program `dot` on the PATH, got none; install graphviz, or "
            "draw into a .dot file"
        )
    return str(graph.pipe(format="svg", encoding="utf-8"))


def _graph(automaton: Automaton | TokenAutomaton) -> graphviz.Digraph:
    """Draw an automaton, unless it has more than `MAX_STATES` states."""
    if automaton.num_states > MAX_STATES:
        raise ConstraintError(
            f"expected an automaton of at most {MAX_STATES} states to draw, got "
            f"{automaton.num_states}; draw a smaller constraint"
        )
    try:
        import graphviz
    except ImportError as error:
        raise missing("graphviz", "drawing", "a drawing of an automaton") from error
    graph = graphviz.Digraph(
        graph_attr={"rankdir": "LR"}, node_attr={"shape": "circle"}, edge_attr={"fontsize": "10"}
    )
    graph.node("start", label="", shape="none", width="0", height="0")
    for state in range(automaton.num_states):
        accepts = bool(automaton.accepting[state])
        label = str(state)
        if isinstance(automaton, TokenAutomaton):
            label += f"\\n{automaton.steps_to_accept[state]}"
        graph.node(str(state), label, shape="doublecircle" if accepts else "circle")
    graph.edge("start", str(automaton.initial))
    for source, target, label in _edges(automaton):
        graph.edge(str(source), str(target), label=graphviz.escape(label))
    return graph


def _edges(automaton: Automaton | TokenAutomaton) -> list[tuple[int, int, str]]:
    """Return source, target and label of each arrow."""
    found = []
    for source in range(automaton.num_states):
        row = automaton.delta[source]
        for target in np.unique(row[row >= 0]).tolist():
            classes = np.flatnonzero(row == target)
            if isinstance(automaton, TokenAutomaton):
                label = _tokens(automaton, classes)
            else:
                label = readable_ranges(
                    np.flatnonzero(np.isin(automaton.class_of_byte, classes)).tolist()
                )
            cut = label if len(label) <= _LABEL else label[: _LABEL - 3] + "..."
            found.append((source, int(target), cut))
    return found


def _tokens(automaton: TokenAutomaton, classes: np.ndarray) -> str:
    """Format the first tokens of the given classes, and the number of all of their tokens."""
    ids = np.flatnonzero(np.isin(automaton.class_of, classes))
    if automaton.eos_class in classes:
        return "EOS" if ids.size else "end"
    words = automaton.vocabulary.token_bytes
    shown = " ".join(readable_bytes(words[token]) for token in ids[:_SHOWN_TOKENS])
    return shown if ids.size <= _SHOWN_TOKENS else f"{ids.size} tokens: {shown}"
