"""Basic: grow one tree over live forks, give credit, and look at who gets it. No model, no torch.

An erring expert plays eight paths. One failed path is searched for its first irrecoverable turn by bisection on
live forks, and the credit rule turns the tree into one advantage per action.
"""

import asyncio

import turngym
from turngym.trainers.credit import apply, get_rule


def main() -> None:
    task = turngym.procedural("turngym/Corridor-v0", fold="train", count=1, seed=5)[0]
    policy = turngym.load_policy("scripted:epsilon?epsilon=0.35")
    plan = turngym.make_plan("bisect", roots=8, suffixes_min=4, suffixes_max=4)

    tree = asyncio.run(turngym.grow(task, policy, plan, seed=1))
    statistics = apply(get_rule("elpo"), [tree])

    print(tree)
    print({name: round(value, 3) for name, value in statistics.items()})
    for leaf in tree.leaves:
        turn = tree[leaf].metrics.get("critical_turn")
        if turn is None:
            continue
        print(f"leaf {leaf} failed; its first irrecoverable turn is {turn:.0f}:")
        for index, action in enumerate(tree.actions(leaf)):
            node = tree[action]
            text = policy.renderer.text(node.ids).removeprefix("<tool_call>").removesuffix("</tool_call>")
            mark = " ← lost here" if index == turn else ""
            print(f"  {index:2d} {text:60s} {node.advantage:+.2f}{mark}")


if __name__ == "__main__":
    main()
