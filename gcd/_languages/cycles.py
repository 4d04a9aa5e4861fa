"""Cycles among the parts of a schema or the rules of a grammar.

Such parts or rules are the nodes of a graph, with edges to those that they contain or refer to. A
node is recursive if it is on a cycle. Two nodes are mutually recursive if they are on a common
cycle, that is, in one strongly connected component. Tarjan's algorithm finds these components in
O(nodes + edges). A search from every node separately would take quadratic time. Source: Tarjan,
"Depth-first search and linear graph algorithms", SIAM Journal on Computing 1 (1972).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping


def components(below: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the strongly connected components of a graph, as lists of nodes.

    `below` maps every node to the nodes that its edges lead to. A component comes after all
    components that it leads to.
    """
    found: list[list[str]] = []
    placed: set[str] = set()  # nodes that are already in a component
    order: dict[str, int] = {}  # nodes in the order of discovery
    lowest: dict[str, int] = {}  # for each node, the earliest node known to be reachable
    pending: list[str] = []  # nodes that were discovered, but are not yet in a component
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
    """Return a number for each node on a cycle. Nodes on a common cycle have the same number."""
    return {
        node: number
        for number, nodes in enumerate(components(below))
        for node in nodes
        if len(nodes) > 1 or node in below[node]
    }
