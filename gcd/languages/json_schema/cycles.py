"""This module finds the schemas of a document that contain themselves.

A schema is recursive if it lies on a cycle of the graph "contains or refers to", and two schemas
can be entered again from each other if they lie on a common one: if they are in one strongly
connected component. Tarjan's algorithm finds these in O(schemas + references), where following
every schema for itself would be quadratic. Source: Tarjan, "Depth-first search and linear graph
algorithms", SIAM Journal on Computing 1 (1972).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping


def cycles(below: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Return a number for each node that lies on a cycle; nodes on a common one share it.

    `below` has every node, and those that an edge leads to from it.
    """
    component: dict[str, int] = {}
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
                if other not in component:
                    lowest[node] = min(lowest[node], order[other])
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                if lowest[node] == order[node]:
                    while node not in component:
                        component[pending.pop()] = order[node]
    size: dict[int, int] = {}
    for number in component.values():
        size[number] = size.get(number, 0) + 1
    return {
        node: number
        for node, number in component.items()
        if size[number] > 1 or node in below[node]
    }
