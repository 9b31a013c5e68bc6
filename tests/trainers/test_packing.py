"""Packs: every shared token once, and the gradient of the flat layout."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scored_trees import HASH, VOCABULARY, assert_close_gradients, random_tree
from small_models import tiny_model
from turngym.errors import ConfigError
from turngym.trainers.config import LossConfig, OptimiserConfig, PolicyConfig
from turngym.trainers.layouts import FlatLayout, PackedLayout, get_layout
from turngym.trainers.learner import Learner
from turngym.trainers.model import checkpoint_activations, with_adapter
from turngym.trainers.packing import Pack, depth_first, lay_out, pack, token_ratio
from turngym.trainers.rows import Row, rows_of
from turngym.trainers.tree_attention import (
    PackedForward,
    blocks_of,
    dense_mask,
    fault_of,
    flex_mask,
    packed_forward,
)
from turngym.tree import Tree


def row(ids: Sequence[int], targets: Sequence[int] = (), *, advantage: float = 1.0, seed: int = 0) -> Row:
    """A context whose `targets` (all tokens but the first by default) are trained, off the sampling policy."""
    rng = np.random.default_rng([seed, *ids])
    places = np.array(targets or range(1, len(ids)), np.int32)
    return Row(
        rollout_id=f"r{seed}",
        ids=np.array(ids, np.int32),
        targets=places,
        behaviour_logprobs=-rng.uniform(0.5, 5, places.size).astype(np.float32),
        advantages=np.full(places.size, advantage, np.float32)
        * rng.uniform(0.5, 2, places.size).astype(np.float32),
        lower_clip_extra=np.zeros(places.size, np.float32),
        version=np.zeros(places.size, np.int32),
        nodes=np.zeros(places.size, np.int32),
        leaf=seed,
    )


trees = st.builds(random_tree, st.lists(st.integers(0, 20), min_size=1, max_size=10), st.integers(0, 10_000))
contexts = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9).map(row), min_size=1, max_size=12)


# ---------------------------------------------------------------------- the layout itself


def test_a_fork_is_laid_out_as_written_by_hand() -> None:
    """7 8 forks into 1 2 and 1 3; a row of its own follows. Depth first: 5 6 | 7 8 1 2 | 3."""
    rows = [row([7, 8, 1, 3]), row([5, 6]), row([7, 8, 1, 2])]
    (packed,) = pack(rows, 100)
    assert packed.ids.tolist() == [5, 6, 7, 8, 1, 2, 3]
    assert packed.positions.tolist() == [0, 1, 0, 1, 2, 3, 3]
    assert packed.last.tolist() == [2, 2, 7, 7, 7, 6, 7]
    assert packed.starts.tolist() == [0, 2, 6, 7]
    assert [path.tolist() for path in packed.paths] == [[0, 1], [2, 3, 4, 5], [2, 3, 4, 6]]
    # the 1 at place 4 is followed by 2 in one row and by 3 in the other: it predicts both
    assert packed.sources.tolist() == [0, 2, 3, 4, 2, 3, 4]
    assert token_ratio(rows) == 10 / 7


@given(contexts)
@settings(max_examples=40)
def test_no_two_tokens_of_a_pack_have_the_same_history(rows: list[Row]) -> None:
    (packed,) = pack(rows, 10_000)
    histories = {tuple(r.ids[: n + 1].tolist()) for r in rows for n in range(r.ids.size)}
    assert packed.ids.size == len(histories)


@given(contexts, st.integers(1, 30))
@settings(max_examples=40)
def test_packs_hold_every_row_on_its_path_within_the_budget(rows: list[Row], budget: int) -> None:
    packs = pack(rows, budget)
    laid = [(r, path, packed) for packed in packs for r, path in zip(packed.rows, packed.paths, strict=True)]
    assert sorted(id(r) for r, _, _ in laid) == sorted(id(r) for r in rows)
    for r, path, packed in laid:
        assert packed.ids[path].tolist() == r.ids.tolist()
        assert packed.positions[path].tolist() == list(range(r.ids.size))
    for packed in packs:
        assert packed.ids.size <= budget or len(packed.rows) == 1


@given(contexts, st.integers(1, 30))
@settings(max_examples=40)
def test_a_token_sees_its_path_and_nothing_else(rows: list[Row], budget: int) -> None:
    for packed in pack(rows, budget):
        mask = dense_mask(packed, torch.float32, torch.device("cpu"))[0, 0] == 0
        path_of = {int(place): path[: n + 1] for path in packed.paths for n, place in enumerate(path)}
        for query in range(packed.ids.size):
            assert mask[query].nonzero()[:, 0].tolist() == sorted(path_of[query].tolist())


@pytest.fixture(params=["apart", "together"])
def grouping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small rows are computed together, since calls cost; where they cost nothing, rows are even cut apart."""
    if request.param == "apart":
        monkeypatch.setattr("turngym.trainers.tree_attention._PIECE", 2)
        monkeypatch.setattr("turngym.trainers.tree_attention._CALL", 0)
        monkeypatch.setattr("turngym.trainers.tree_attention._FETCH", 0)


@pytest.mark.usefixtures("grouping")
@given(contexts)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_blocks_and_flex_see_what_the_dense_mask_shows(rows: list[Row]) -> None:
    (packed,) = pack(rows, 10_000)
    device, size = torch.device("cpu"), packed.ids.size
    dense = dense_mask(packed, torch.float32, device)[0, 0] == 0
    blocks = blocks_of(packed, torch.float32, device)
    seen = torch.zeros(size, size, dtype=torch.bool)
    begin = 0
    for count, index, mask in zip(blocks.queries, blocks.index.split(blocks.keys), blocks.masks, strict=True):
        shown = torch.ones(count, count).tril().bool() if mask is None else mask == 0
        seen[begin : begin + count, index] = shown
        begin += count
    assert begin == size
    assert torch.equal(seen, dense)
    place = torch.arange(size)
    flex = flex_mask(packed, device)
    assert flex.shape[-2:] == (size, size)
    zero = torch.zeros((), dtype=torch.long)
    assert torch.equal(flex.mask_mod(zero, zero, place[:, None], place[None, :]), dense)


def test_a_cut_is_made_where_least_is_computed_twice() -> None:
    """Two prompts with three answers each, and room for one prompt and all of its answers."""
    rows = [row([p] * 10 + [a]) for p in (1, 2) for a in (5, 6, 7)]
    assert [[r.ids[0] for r in packed.rows] for packed in pack(rows, 14)] == [[1, 1, 1], [2, 2, 2]]
    assert sum(packed.ids.size for packed in pack(rows, 13)) == 26
    assert len(pack(rows, 26)) == 1
    assert pack([], 10) == []
    with pytest.raises(ConfigError, match="at least one token"):
        pack(rows, 0)


def test_less_can_be_shared_than_there_is() -> None:
    ordered, shared = depth_first([row([1, 2, 3]), row([1, 2, 4])])
    packed = lay_out(ordered, np.minimum(shared, 1))
    assert packed.ids.tolist() == [1, 2, 3, 2, 4]
    assert packed.last.tolist() == [5, 3, 3, 5, 5]


# ---------------------------------------------------------------------- equality with the flat layout


@dataclass(frozen=True)
class Setting:
    """What is trained and how; the weights never move, so that one learner serves every example."""

    loss: str = "ppo"
    kind: str = "opt"
    rank: int = 0
    micro: int = 10_000
    single: bool = False
    "single precision; else double, of which models with rotary positions compute a part in single all the same"

    @cache  # noqa: B019 - some dozens, as long as the tests run
    def learner(self, layout: str) -> Learner:
        model = tiny_model(self.kind, seed=1, vocabulary=VOCABULARY)
        if self.rank:
            model = with_adapter(model, PolicyConfig(lora_rank=self.rank), seed=2)
            for name, parameter in model.named_parameters():
                if "lora_B" in name:  # they start at 0, where half of the gradient is
                    torch.nn.init.normal_(parameter, std=0.01, generator=torch.Generator().manual_seed(3))
        model = model.to(torch.float32 if self.single else torch.float64)
        learner = Learner(
            model,
            loss=LOSSES[self.loss],
            optimiser=OptimiserConfig(layout=layout, micro_tokens=self.micro, grad_clip=0.0),  # type: ignore[arg-type]
            renderer_hash=HASH,
        )
        assert isinstance(learner.layout, PackedLayout if layout == "packed" else FlatLayout)
        learner.optimiser.step = lambda closure=None: None  # type: ignore[assignment,method-assign]
        return learner

    def update(self, layout: str, rows: list[Row]) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        """Statistics and gradient of one optimiser step."""
        learner = self.learner(layout)
        statistics, _ = learner._step(rows, 1.0)
        return statistics, {n: p.grad for n, p in learner.model.named_parameters() if p.grad is not None}


def assert_equal_updates(rows: list[Row], setting: Setting) -> None:
    """Loss, statistics and the gradient of every parameter agree, to rounding.

    In double precision to ten digits, so that no case is lost in noise; in single precision within 1e-5 of each
    gradient's norm, or of a hundredth of the largest where a gradient is nothing but noise.
    """
    tolerance = 1e-5 if setting.single else 1e-10
    flat, flat_gradients = setting.update("flat", rows)
    packed, packed_gradients = setting.update("packed", rows)
    for name, value in flat.items():
        assert packed[name] == pytest.approx(value, rel=10 * tolerance, abs=tolerance), name
    assert_close_gradients(flat_gradients, packed_gradients, tolerance)


def rows_in(batch: list[Tree]) -> list[Row]:
    return rows_of(batch, renderer_hash=HASH)


LOSSES = {
    "pg": LossConfig(name="pg"),
    "weighted_sft": LossConfig(name="weighted_sft"),
    "ppo": LossConfig(name="ppo", options={"clip_low": 0.2, "clip_high": 0.28}, entropy=0.01, kl=0.1),
    "sao": LossConfig(name="sao"),
}


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("loss", LOSSES)
@given(st.lists(trees, min_size=1, max_size=3))
@settings(max_examples=10)
def test_packed_updates_are_flat_updates(loss: str, rank: int, batch: list[Tree]) -> None:
    assert_equal_updates(rows_in(batch), Setting(loss=loss, rank=rank))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gpt2", "opt"])
@pytest.mark.parametrize("micro", [1, 25])
def test_packed_updates_are_flat_updates_for_every_decoder_and_cut(kind: str, micro: int) -> None:
    batch = [random_tree([0, 1, 1, 2, 0, 3, 4], seed) for seed in range(3)]
    assert_equal_updates(rows_in(batch), Setting(kind=kind, micro=micro, single=True))


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("loss", LOSSES)
def test_packed_updates_are_flat_updates_in_single_precision(loss: str, rank: int) -> None:
    for seed in range(4):
        batch = [random_tree([0, 1, 1, 2, 0, 3, 4, 4, 2], 10 * seed + i) for i in range(3)]
        assert_equal_updates(rows_in(batch), Setting(loss=loss, kind="llama", rank=rank, single=True))


@pytest.mark.parametrize("loss", ["ppo", "sao"])
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=8), min_size=2, max_size=8), st.integers(0, 99)
)
@settings(max_examples=10)
def test_a_shared_token_is_clipped_apart_in_every_leaf(loss: str, leaves: list[list[int]], seed: int) -> None:
    """Every leaf trains its whole path with an advantage of its own: a shared token has one ratio and many terms."""
    rng = np.random.default_rng(seed)
    behaviour: dict[tuple[int, ...], float] = {}
    rows = []
    for leaf in leaves:
        histories = [tuple(leaf[: n + 1]) for n in range(1, len(leaf))]
        for history in histories:
            behaviour.setdefault(history, -float(rng.uniform(0.5, 5)))
        logprobs = np.array([behaviour[h] for h in histories], np.float32)
        rows.append(replace(row(leaf, advantage=float(rng.normal())), behaviour_logprobs=logprobs))
    assert_equal_updates(rows, Setting(loss=loss))


@pytest.mark.usefixtures("grouping")
@pytest.mark.parametrize("way", ["blocks", "dense"])
@given(contexts)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_way_of_attention_gives_the_logits_of_the_rows(way: str, rows: list[Row]) -> None:
    model = tiny_model("llama", vocabulary=VOCABULARY)
    forward = PackedForward(way)  # type: ignore[arg-type]
    (packed,) = pack(rows, 10_000)
    (part,) = FlatLayout().parts(rows, 10_000)
    with torch.no_grad():
        pieces = part.logits(model).split([r.targets.size for r in part.rows])
        expected = {id(r): logits for r, logits in zip(part.rows, pieces, strict=True)}
        with forward.attention(model):
            seen = forward.logits(model, packed, packed.sources)
    for r, logits in zip(packed.rows, seen.split([r.targets.size for r in packed.rows]), strict=True):
        torch.testing.assert_close(logits, expected[id(r)], rtol=1e-4, atol=1e-5)


def test_checkpointed_layers_attend_to_the_tree_again() -> None:
    batch = [random_tree([0, 1, 1, 2, 0, 3, 4], seed) for seed in range(2)]
    rows = rows_of(batch, renderer_hash=HASH)
    gradients = []
    for checkpointing in (False, True):
        model = tiny_model("llama", vocabulary=VOCABULARY)
        if checkpointing:
            checkpoint_activations(model)
        model.train()
        (part,) = get_layout("packed", model).parts(rows, 10_000)
        with part.attention(model):
            torch.log_softmax(part.logits(model), -1)[:, 3].sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-6)


def test_the_model_attends_as_before_when_a_pack_is_done() -> None:
    model = tiny_model("llama", vocabulary=VOCABULARY)
    ids = torch.arange(9)[None]
    before = model(input_ids=ids).logits
    layout = get_layout("packed", model)
    (part,) = layout.parts([row([1, 2, 3]), row([1, 2, 4])], 100)

    def broken() -> None:
        with part.attention(model):
            assert model.config._attn_implementation == "turngym_tree"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(input_ids=ids).logits, before)
    with pytest.raises(RuntimeError, match="under PackedForward"):
        part.logits(model)


# ---------------------------------------------------------------------- models that can't


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("mistral", "last 8 tokens only"),
        ("gemma3", "last 8 tokens only"),
        ("mamba", "another state than keys and values"),
        ("bloom", "does not take attention functions"),
    ],
)
def test_a_model_that_can_not_share_prefixes_is_flat_and_says_why(
    kind: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model(kind, vocabulary=VOCABULARY)
    with caplog.at_level(logging.WARNING):
        layout = get_layout("packed", model)
    assert isinstance(layout, FlatLayout)
    assert reason in caplog.text
    assert "computed in every row" in caplog.text


def test_a_window_that_no_context_outgrows_does_not_matter() -> None:
    model = tiny_model("mistral", vocabulary=VOCABULARY, sliding_window=512)
    assert packed_forward(model) == PackedForward("blocks")


def test_a_model_whose_packed_logits_differ_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", vocabulary=VOCABULARY)
    for way in ("blocks", "dense"):
        assert fault_of(model, way) is None  # type: ignore[arg-type]
    # places in the pack instead of places in the row: what a model does that ignores position_ids

    def misplaced(rows: list[Row], tokens: int) -> list[Pack]:
        return [replace(p, positions=np.arange(p.ids.size, dtype=np.int32)) for p in pack(rows, tokens)]

    monkeypatch.setattr("turngym.trainers.tree_attention.pack", misplaced)
    for way in ("blocks", "dense"):
        assert "differ by" in str(fault_of(model, way))  # type: ignore[arg-type]


def test_layouts_have_two_names() -> None:
    with pytest.raises(ConfigError, match="flat or packed"):
        get_layout("padded", tiny_model())  # type: ignore[arg-type]
