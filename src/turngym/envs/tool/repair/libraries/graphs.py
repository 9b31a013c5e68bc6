"""Directed graphs with lengths: orders, shortest ways, components, spanning trees. A graph maps node to node to length."""

from __future__ import annotations

import heapq

Graph = dict[str, dict[str, int]]


def nodes(graph: Graph) -> list[str]:
    """Every node, also those that are only pointed at, sorted."""
    found = set(graph)
    for targets in graph.values():
        found |= set(targets)
    return sorted(found)


def order(graph: Graph) -> list[str]:
    """Nodes so that every edge points forward; of several that could come next, the first by name.

    Raises:
        ValueError: where the graph has a cycle.
    """
    waiting = dict.fromkeys(nodes(graph), 0)
    for targets in graph.values():
        for target in targets:
            waiting[target] += 1
    ready = [node for node, count in waiting.items() if count == 0]
    result: list[str] = []
    while ready:
        node = heapq.heappop(ready)
        result.append(node)
        for target in graph.get(node, {}):
            waiting[target] -= 1
            if waiting[target] == 0:
                heapq.heappush(ready, target)
    if len(result) < len(waiting):
        raise ValueError("there is a cycle")
    return result


def shortest(graph: Graph, start: str, goal: str) -> tuple[int, list[str]]:
    """Length and nodes of the shortest way; of equal ones that with the smaller names. (-1, []) where there is none."""
    heap: list[tuple[int, list[str]]] = [(0, [start])]
    done: set[str] = set()
    while heap:
        length, path = heapq.heappop(heap)
        node = path[-1]
        if node == goal:
            return length, path
        if node in done:
            continue
        done.add(node)
        for target, step in graph.get(node, {}).items():
            if target not in done:
                heapq.heappush(heap, (length + step, [*path, target]))
    return -1, []


def reverse(graph: Graph) -> Graph:
    """Every edge the other way."""
    turned: Graph = {node: {} for node in nodes(graph)}
    for node, targets in graph.items():
        for target, length in targets.items():
            turned[target][node] = length
    return turned


def reachable(graph: Graph, start: str, steps: int = -1) -> list[str]:
    """Nodes that can be reached, the start among them, sorted. `steps` limits the number of edges; -1 does not."""
    seen = {start}
    front = [start]
    while front and steps != 0:
        following: list[str] = []
        for node in front:
            for target in graph.get(node, {}):
                if target not in seen:
                    seen.add(target)
                    following.append(target)
        front = following
        steps -= 1
    return sorted(seen)


def tree(graph: Graph) -> list[tuple[int, str, str]]:
    """Edges of a cheapest spanning forest, as if edges had no direction: (length, smaller name, larger name), sorted."""
    parents = {node: node for node in nodes(graph)}

    def root(node: str) -> str:
        while parents[node] != node:
            node = parents[node]
        return node

    edges = {(length, min(a, b), max(a, b)) for a, targets in graph.items() for b, length in targets.items()}
    chosen: list[tuple[int, str, str]] = []
    for length, a, b in sorted(edges):
        if root(a) != root(b):
            parents[root(a)] = root(b)
            chosen.append((length, a, b))
    return chosen


def longest(graph: Graph) -> int:
    """Length of the longest way in a graph without cycles."""
    best = dict.fromkeys(nodes(graph), 0)
    for node in order(graph):
        for target, length in graph.get(node, {}).items():
            best[target] = max(best[target], best[node] + length)
    return max(best.values(), default=0)


PROBES = (
    "nodes({'b': {'a': 1}, 'c': {}})",
    "order({'b': {'a': 1}, 'c': {'b': 1}})",
    "order({'a': {'c': 1}, 'b': {'c': 1}, 'd': {}})",
    "order({'c': {'a': 1, 'b': 1}, 'd': {'a': 2}})",
    "order({'a': {'b': 1}, 'b': {'a': 1}})",
    "order({'a': {'b': 1}, 'b': {'c': 1}, 'c': {'b': 1}})",
    "order({})",
    "shortest({'a': {'b': 1, 'c': 5}, 'b': {'c': 2}}, 'a', 'c')",
    "shortest({'a': {'b': 1, 'c': 3}, 'b': {'c': 2}}, 'a', 'c')",
    "shortest({'a': {'b': 1}, 'b': {'a': 1}}, 'a', 'z')",
    "shortest({'a': {}}, 'a', 'a')",
    "shortest({'a': {'b': 4, 'c': 1}, 'c': {'b': 1, 'd': 7}, 'b': {'d': 1}}, 'a', 'd')",
    "shortest({'a': {'b': 1}, 'c': {'a': 1}}, 'b', 'a')",
    "reverse({'a': {'b': 2}, 'b': {'c': 3}})",
    "reachable({'a': {'b': 1}, 'b': {'c': 1}, 'd': {}}, 'a')",
    "[reachable({'a': {'b': 1}, 'b': {'c': 1}, 'c': {'d': 1}}, 'a', n) for n in range(4)]",
    "reachable({'a': {'a': 1}}, 'a')",
    "reachable({}, 'x')",
    "tree({'a': {'b': 1, 'c': 4}, 'b': {'c': 2, 'd': 7}, 'c': {'d': 3}})",
    "tree({'a': {'b': 2}, 'c': {'d': 1}})",
    "tree({'b': {'a': 3}, 'c': {'a': 1, 'b': 1}})",
    "longest({'a': {'b': 1, 'c': 1}, 'b': {'d': 5}, 'c': {'d': 2}})",
    "longest({'a': {'b': 2}, 'b': {'c': 3}, 'x': {'c': 9}})",
    "longest({})",
)
NAMES = {
    "nodes": ("vertices", "names"),
    "order": ("schedule", "topological"),
    "shortest": ("route", "best_way"),
    "reverse": ("transpose", "flip"),
    "reachable": ("closure", "within_reach"),
    "tree": ("backbone", "spanning"),
    "longest": ("critical", "depth"),
}
