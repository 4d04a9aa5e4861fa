"""Cycles among the parts of a schema or the rules of a grammar.

A schema or rule is recursive if it lies on a cycle of the graph "contains or refers to". Two of
them are mutually recursive if they lie on a common cycle, that is, in one strongly connected
component. Tarjan's algorithm finds these components in O(nodes + references); a search from every
node separately would be quadratic. Source: Tarjan, "Depth-first search and linear graph
algorithms", SIAM Journal on Computing 1 (1972).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping


def components(below: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the strongly connected components, each after all components that it leads to.

    `below` maps every node to the nodes that its edges lead to.
    """
    found: list[list[str]] = []
    placed: set[str] = set()  # already in a component
    order: dict[str, int] = {}  # nodes in the order of discovery
    lowest: dict[str, int] = {}  # for each node, the earliest node known to be reachable
    pending: list[str] = []  # discovered, but not yet in a component
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
    """Return a number for each node that lies on a cycle; nodes on a common cycle share it."""
    return {
        node: number
        for number, nodes in enumerate(components(below))
        for node in nodes
        if len(nodes) > 1 or node in below[node]
    }
