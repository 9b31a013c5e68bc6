"""One of two processes that train a small model together: python two_ranks.py RANK RENDEZVOUS OUT. See `test_ranks.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from scored_trees import HASH, VOCABULARY, random_tree
from small_models import tiny_model
from turngym.trainers.config import CriticConfig, LossConfig, OptimiserConfig
from turngym.trainers.critic import Critic
from turngym.trainers.layouts import get_layout
from turngym.trainers.learner import Learner
from turngym.trainers.ranks import whole
from turngym.tree import Tree

UPDATES = 3
SETTINGS = {
    "plain": (LossConfig(options={"clip_low": 0.9}), {"micro_tokens": 40}),
    "packed": (LossConfig(options={"clip_low": 0.9}), {"layout": "packed"}),
    "share": (LossConfig(name="p3o"), {}),
    "stale": (
        LossConfig(proximal="start", next_observation=0.5, entropy_shaping=0.4),
        {"ess_base": 1.0, "micro_tokens": 40},
    ),
    "corrected": (
        LossConfig(proximal="start", correction="token_tis", correction_options={"normalise": True}),
        {},
    ),
    "anchored": (LossConfig(proximal="average", kl=0.3), {"micro_tokens": 40, "epochs": 2}),
    "rollouts": (LossConfig(aggregation="constant", horizon=7, entropy=0.1), {"grad_clip": 0.1}),
}


def batch(update: int) -> list[Tree]:
    """Trees of very different sizes."""
    return [random_tree(range(n), 10 * update + n) for n in (9, 2, 4, 1)]


def replicated_or_sharded(*, shard: bool) -> Any:
    model = tiny_model("opt", seed=1, vocabulary=VOCABULARY).double()
    if shard:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.model.decoder.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def criticised(
    kind: str, trees: slice, *, shard: bool = False
) -> tuple[list[torch.Tensor], dict[str, float]]:
    """What a critic of these trees has learnt, and its statistics."""
    model = replicated_or_sharded(shard=shard)
    found = Critic(
        model,
        CriticConfig(kind=kind, lr=1e-2),  # type: ignore[arg-type]
        where="states",
        gamma=1.0,
        truncated="mask",
        layout=get_layout("flat", model),
        micro_tokens=40,
    )
    statistics: dict[str, float] = {}
    for update in range(UPDATES):
        mine = batch(update)[trees]
        for tree in mine:
            for node in tree:
                if node.is_action:
                    node.reward = float(node.index % 3)
        statistics = found.fit(mine, found.read(mine))
    return [p.detach() for p in found.parameters], statistics


def trained(
    setting: str, trees: slice, *, shard: bool = False
) -> tuple[list[torch.Tensor], dict[str, float]]:
    """Weights after some updates on these trees of each batch, and the statistics of the last."""
    loss, options = SETTINGS[setting]
    model = replicated_or_sharded(shard=shard)
    learner = Learner(
        model,
        loss=loss,
        optimiser=OptimiserConfig(**{"lr": 1e-3, **options}),  # type: ignore[arg-type]
        renderer_hash=HASH,
    )
    statistics: dict[str, float] = {}
    for update in range(UPDATES):
        statistics = learner.update(batch(update)[trees])
    return [whole(p.detach()) for p in model.parameters()], statistics


def main() -> None:
    rank, rendezvous, out = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    mine = slice(0, 1) if rank == 0 else slice(1, None)
    results = {name: trained(name, mine) for name in SETTINGS}
    results["sharded"] = trained("plain", mine, shard=True)
    results["sharded anchored"] = trained("anchored", mine, shard=True)
    results |= {f"critic {kind}": criticised(kind, mine) for kind in ("probe", "network")}
    results["critic sharded"] = criticised("probe", mine, shard=True)
    torch.save(results, out / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
