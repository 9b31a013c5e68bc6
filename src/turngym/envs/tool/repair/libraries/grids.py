"""Boards of squares: neighbours, paths, regions, and turning them around. A grid is a list of equally long texts."""

from __future__ import annotations

from collections import deque

Square = tuple[int, int]
STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1))


def neighbours(grid: list[str], square: Square) -> list[Square]:
    """The squares above, right, below and left that lie on the board, in that order."""
    row, column = square
    found: list[Square] = []
    for down, right in STEPS:
        if 0 <= row + down < len(grid) and 0 <= column + right < len(grid[0]):
            found.append((row + down, column + right))
    return found


def distance(grid: list[str], start: Square, goal: Square, wall: str = "#") -> int:
    """Steps of the shortest way around walls; -1 where there is none."""
    seen = {start: 0}
    waiting = deque([start])
    while waiting:
        square = waiting.popleft()
        if square == goal:
            return seen[square]
        for row, column in neighbours(grid, square):
            if grid[row][column] != wall and (row, column) not in seen:
                seen[row, column] = seen[square] + 1
                waiting.append((row, column))
    return -1


def regions(grid: list[str], kind: str = ".") -> list[int]:
    """Sizes of the connected regions of one kind of square, largest first."""
    left = {(r, c) for r, line in enumerate(grid) for c, mark in enumerate(line) if mark == kind}
    sizes: list[int] = []
    while left:
        waiting = [left.pop()]
        size = 0
        while waiting:
            square = waiting.pop()
            size += 1
            for other in neighbours(grid, square):
                if other in left:
                    left.remove(other)
                    waiting.append(other)
        sizes.append(size)
    return sorted(sizes, reverse=True)


def rotate(grid: list[str], turns: int = 1) -> list[str]:
    """Turn the board clockwise by so many quarters."""
    for _ in range(turns % 4):
        grid = ["".join(line[column] for line in reversed(grid)) for column in range(len(grid[0]))]
    return grid


def count_lines(grid: list[str], mark: str, length: int = 3) -> int:
    """How many straight runs of `length` squares with the mark there are: across, down, and on both diagonals."""
    height, width = len(grid), len(grid[0])
    found = 0
    for row in range(height):
        for column in range(width):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                last_row, last_column = row + down * (length - 1), column + right * (length - 1)
                if last_row < height and 0 <= last_column < width:
                    found += all(grid[row + down * i][column + right * i] == mark for i in range(length))
    return found


def step(grid: list[str], alive: str = "*", dead: str = ".") -> list[str]:
    """One generation of Conway's game of life on a board with nothing around it."""
    after: list[str] = []
    for row, line in enumerate(grid):
        marks = ""
        for column, mark in enumerate(line):
            near = 0
            for r in range(max(row - 1, 0), min(row + 2, len(grid))):
                for c in range(max(column - 1, 0), min(column + 2, len(line))):
                    near += (r, c) != (row, column) and grid[r][c] == alive
            marks += alive if near == 3 or (near == 2 and mark == alive) else dead
        after.append(marks)
    return after


PROBES = (
    "[neighbours(['...', '...'], s) for s in ((0, 0), (0, 1), (1, 2))]",
    "neighbours(['.'], (0, 0))",
    "neighbours(['...', '...', '...'], (1, 1))",
    "distance(['...', '.#.', '...'], (0, 0), (2, 2))",
    "distance(['.#.', '.#.', '...'], (0, 0), (0, 2))",
    "distance(['.#.', '##.', '...'], (0, 0), (2, 2))",
    "distance(['...'], (0, 1), (0, 1))",
    "distance(['.x.', '...'], (0, 0), (0, 2), 'x')",
    "distance(['.#.', '...'], (0, 0), (0, 2), 'x')",
    "regions(['..#.', '##.#', '.#..'])",
    "regions(['###'])",
    "regions(['aab', 'aba', 'bba'], 'b')",
    "regions(['.....', '.###.', '.#.#.', '.###.', '.....'])",
    "rotate(['ab', 'cd', 'ef'])",
    "rotate(['ab', 'cd'], 2)",
    "rotate(['abc'], -1)",
    "rotate(['ab', 'cd'], 4)",
    "rotate(['ab', 'cd'], 5)",
    "count_lines(['xxx', 'xxx', 'xxx'], 'x')",
    "count_lines(['xxxx'], 'x')",
    "count_lines(['x..', '.x.', '..x'], 'x')",
    "count_lines(['..x', '.x.', 'x..'], 'x')",
    "count_lines(['xx', 'xx'], 'x', 2)",
    "count_lines(['x.x', '...'], 'x', 1)",
    "step(['.....', '..*..', '..*..', '..*..', '.....'])",
    "step(['**', '**'])",
    "step(['*..', '.*.', '..*'])",
    "step(['***', '***', '***'])",
    "step(['.*.*', '*.*.', '****'])",
)
NAMES = {
    "neighbours": ("adjacent", "around"),
    "distance": ("shortest", "path_length"),
    "regions": ("areas", "components"),
    "rotate": ("turn", "spin"),
    "count_lines": ("runs", "rows_of"),
    "step": ("advance", "generation"),
}
