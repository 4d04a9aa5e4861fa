"""This module finds what of a schema or a grammar contains itself.

A schema, or a rule, is recursive if it lies on a cycle of the graph "contains or refers to", and
two can be entered again from each other if they lie on a common one: if they are in one strongly
connected component. Tarjan's algorithm finds these in O(nodes + references), where following
every node for itself would be quadratic. Source: Tarjan, "Depth-first search and linear graph
algorithms", SIAM Journal on Computing 1 (1972).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping


def components(below: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the strongly connected components; one comes behind all that it leads to.

    `below` has every node, and those that an edge leads to from it.
    """
    found: list[list[str]] = []
    placed: set[str] = set()  # in a component
    order: dict[str, int] = {}  # nodes as they were first met
    lowest: dict[str, int] = {}  # the first of them that is known to be reached
    pending: list[str] = []  # met, and of no component yet
    for root in below:
        if root in order:
            continue
        path: list[tuple[str, Iterator[str]]] = [(root, iter(below[root]))]
        order[root] = lowest[root] = len(order)
        pending.append(root)
        while path:
            node, rest = path[-1]
            for other in rest:
                if other not in order:
                    order[other] = lowest[other] = len(order)
                    pending.append(other)
                    path.append((other, iter(below[other])))
                    break
                if other not in placed:
                    lowest[node] = min(lowest[node], order[other])
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                if lowest[node] == order[node]:
                    found.append([])
                    while node not in placed:
                        found[-1].append(pending.pop())
                        placed.add(found[-1][-1])
    return found


def cycles(below: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Return a number for each node that lies on a cycle; nodes on a common one share it."""
    return {
        node: number
        for number, nodes in enumerate(components(below))
        for node in nodes
        if len(nodes) > 1 or node in below[node]
    }
