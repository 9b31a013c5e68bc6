"""A Hugging Face causal language model in this process, on a CPU or a GPU, as a policy.

All live episodes share one forward per token, and the keys and values of every conversation survive its turns, so a
turn costs its own tokens and not its history (`policies.engine`, `policies.cached`). Sampled log-probs are exact, an
action depends on its context, parameters and weights only, and the model object is the one that a learner trains:
after an update it calls `weights_changed` and nothing has to be copied.

The event loop stays free: the model runs in a thread of the policy's own, one step at a time, and between steps
every episode that got its action has the chance to take its turn and ask for the next.

What this does not do: several GPUs, quantised weights, speculative decoding.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from turngym.agents.chat import Renderer
from turngym.agents.policies.cached import CachedBackend, longest, probe
from turngym.agents.policies.engine import Backend, Engine, PlainBackend, Row, Stats
from turngym.agents.policies.kv import AttentionKind, Forward, attention_kind
from turngym.agents.policies.loading import load_model, read_template
from turngym.agents.policy import Sample, SampleParams, Turn
from turngym.agents.template import TemplateRenderer
from turngym.errors import ConfigError, HarnessFault
from turngym.types import IntArray

log = logging.getLogger(__name__)

# Passes of the event loop between an action that ended and the next step. An episode takes its turn and asks again
# within one; a path that ended hands its place on over semaphores and gathers, which takes about ten. If a step began
# before they are done, which rows share it would depend on timing, and log-probs in their last bit with it.
_PASSES = 32


class LocalPolicy:
    """Implements `agents.policy.Policy` with a model of transformers, with or without a PEFT adapter.

    Args:
        model: a causal language model. Training and sampling share it; sampling leaves its mode as it was.
        renderer: a tokenizer, for which a `TemplateRenderer` is made, or any renderer of the model's ids.
        name: as a person would ask for the policy.
        max_slots: conversations whose keys and values are kept; as many requests are computed at once, more wait.
        kv_memory_mib: bound on the memory for keys and values.
        window: longest context with its action, in tokens; None takes the model's own, or what fits the memory.
        version: number of updates in the weights.

    Raises:
        ConfigError: where tokenizer and model don't belong together, or the options can't be honoured.
        TemplateError: see `TemplateRenderer`.
    """

    def __init__(
        self,
        model: Any,
        renderer: Any,
        *,
        name: str = "local",
        max_slots: int = 64,
        kv_memory_mib: int = 2048,
        window: int | None = None,
        version: int = 0,
    ) -> None:
        if max_slots < 1 or kv_memory_mib < 1:
            raise ConfigError(
                f"max_slots and kv_memory_mib must be positive, got {max_slots} and {kv_memory_mib}"
            )
        self.name = name
        self.stats = Stats()
        self._version = version
        self._max_slots, self._kv_memory_mib, self._asked_window = max_slots, kv_memory_mib, window
        self._futures: dict[Row, asyncio.Future[Sample]] = {}
        self._driver: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"turngym {name}")
        self._engine: Engine | None = None
        self.model = model
        made = not hasattr(renderer, "open")
        self.renderer: Renderer = TemplateRenderer(renderer, stop_ids=_stop_ids(model)) if made else renderer
        self._stop_ids = frozenset(self.renderer.stop_ids)
        if self.tokenizer is not None and len(self.tokenizer) > self._vocabulary:
            raise ConfigError(
                f"{name}: the tokenizer has {len(self.tokenizer)} tokens and the model embeds {self._vocabulary}: they "
                "don't belong together (or call model.resize_token_embeddings after adding tokens)"
            )

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        dtype: str | None = None,
        device: str | None = None,
        adapter: str | None = None,
        template: str | Path | None = None,
        max_slots: int = 64,
        kv_memory_mib: int = 2048,
        window: int | None = None,
    ) -> LocalPolicy:
        """Load a model and its tokenizer.

        Args:
            source: `sprout` (in the package), a folder, a GGUF file, or a name on the Hugging Face hub.
            dtype: of the weights (`float32`, `bfloat16`, …); None is float32 on a CPU, else as they were saved.
            device: `cpu`, `cuda`, `cuda:1`, …; None is the first GPU, else the CPU.
            adapter: folder or hub name of a PEFT adapter to put on top.
            template: file with a Jinja chat template to use instead of the tokenizer's own; it is saved with the model.
            max_slots: see the class.
            kv_memory_mib: see the class.
            window: see the class.

        Raises:
            ConfigError: where there is no such model, or it can't be loaded; says what was tried.
            TemplateError: where the model has no chat template that can be rendered append-only.
        """
        model, tokenizer = load_model(str(source), dtype=dtype, device=device, adapter=adapter)
        if template is not None:
            tokenizer.chat_template = read_template(template)
        return cls(
            model,
            tokenizer,
            name=f"local:{source}",
            max_slots=max_slots,
            kv_memory_mib=kv_memory_mib,
            window=window,
        )

    # ------------------------------------------------------------------ the contract

    @property
    def version(self) -> int:
        """Number of updates in the weights that the next token is sampled from."""
        return self._version

    async def sample(self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None) -> Sample:
        """Sample one action after `context_ids` `(T,)`.

        Raises:
            ConfigError: where context and action don't fit the window, or an id is not in the vocabulary.
            HarnessFault: where the model failed; the policy stays usable.
        """
        engine = self._engine
        if engine is None:
            raise ConfigError(f"{self.name} is closed")
        row = Row(context_ids, params, self._stop_ids)
        self._check(row)
        loop = asyncio.get_running_loop()
        self._enter(loop, engine)
        future: asyncio.Future[Sample] = loop.create_future()
        self._futures[row] = future
        engine.submit(row)
        if self._driver is None:
            self._driver = loop.create_task(self._drive(engine))
        try:
            return await future
        finally:
            if self._futures.pop(row, None) is not None:  # cancelled: nobody waits for it any more
                engine.cancel(row)

    async def close(self) -> None:
        """Release weights, caches and the thread. Safe to call twice."""
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.wait([self._driver])
        self._thread.shutdown()
        self._model = self._engine = None

    # ------------------------------------------------------------------ for a learner

    @property
    def model(self) -> Any:
        """The model object. Setting another one (wrapped with an adapter, say) drops all caches."""
        return self._model

    @model.setter
    def model(self, model: Any) -> None:
        if self._futures:
            raise ConfigError(
                f"{self.name}: the model can't be replaced while {len(self._futures)} actions are sampled"
            )
        forward = Forward(model)
        self._model = model
        self._vocabulary = int(model.get_input_embeddings().weight.shape[0])
        own = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        if self._asked_window is not None and own is not None and self._asked_window > own:
            raise ConfigError(
                f"{self.name}: window={self._asked_window} is beyond the model's {own} positions"
            )
        self.window: int | None = self._asked_window or own
        self._engine = Engine(self._backend(forward), self.stats)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer behind the renderer; None where it has none."""
        return getattr(self.renderer, "tokenizer", None)

    def weights_changed(self, version: int | None = None) -> None:
        """The weights were updated in place: drop every key and value that old weights computed.

        Actions in the making begin anew, so that each was sampled by one version alone.

        Args:
            version: of the new weights; None counts up by one.
        """
        self._version = self._version + 1 if version is None else version
        if self._engine is not None:
            self._engine.invalidate()

    # ------------------------------------------------------------------ inside

    def _backend(self, forward: Forward) -> Backend:
        """Keep keys and values where the model allows, else say so and compute everything anew."""
        try:
            kind = attention_kind(self._model, self.window)
            token_bytes = probe(forward, kind, self._vocabulary)
        except Exception as error:  # noqa: BLE001 - whatever a model raises at a foreign cache, it can't use one
            reason = f"{type(error).__name__}: {error}"
        else:
            return self._cached(forward, kind, token_bytes)
        log.warning(
            "%s: %s can't use turngym's cache (%s); every token re-encodes its whole context, which is correct and slow",
            self.name,
            type(self._model).__name__,
            reason,
        )
        return PlainBackend(forward, self._max_slots)

    def _cached(self, forward: Forward, kind: AttentionKind, token_bytes: int) -> Backend:
        max_tokens = self._kv_memory_mib * 2**20 // token_bytes
        fits = longest(max_tokens)
        if self._asked_window is not None and fits < self._asked_window:
            needed = -(-(self._asked_window + 64) * token_bytes // 2**20)
            raise ConfigError(
                f"{self.name}: one context of {self._asked_window} tokens needs {needed} MiB for keys and values, "
                f"kv_memory_mib is {self._kv_memory_mib}: raise it to {needed} or lower window"
            )
        if self.window is None or fits < self.window:
            log.info("%s: kv_memory_mib=%d holds contexts of %d tokens", self.name, self._kv_memory_mib, fits)
            self.window = fits
        return CachedBackend(
            forward, kind, max_slots=self._max_slots, max_tokens=max_tokens, stats=self.stats
        )

    def _check(self, row: Row) -> None:
        context = row.context
        if context.ndim != 1 or not context.size:
            raise ConfigError(f"{self.name}: a context is a non-empty (T,) array, got shape {context.shape}")
        if self.window is not None and row.room > self.window:
            raise ConfigError(
                f"{self.name}: a context of {context.size} tokens and an action of up to {row.params.max_tokens} don't fit "
                f"the window of {self.window}: lower max_tokens, or end the episode before (Budget.context_tokens)"
            )
        if not 0 <= int(context.min()) <= int(context.max()) < self._vocabulary:
            raise ConfigError(
                f"{self.name}: ids must be in [0, {self._vocabulary}): was another renderer used?"
            )

    def _enter(self, loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
        """Each `asyncio.run` has an event loop of its own; leave nothing behind from the one before."""
        driver = self._driver
        if driver is None:
            return
        if driver.done():
            self._driver = None
        elif driver.get_loop() is not loop:
            if not driver.get_loop().is_closed():
                raise ConfigError(
                    f"{self.name} is used from two event loops at once: make one policy for each"
                )
            self._driver = None
            self._abandon(engine)

    async def _drive(self, engine: Engine) -> None:
        """Step the engine while anybody waits for an action."""
        loop = asyncio.get_running_loop()
        passes = _PASSES
        try:
            while True:
                for _ in range(passes):
                    await asyncio.sleep(0)
                if engine.idle:
                    return
                ended = await loop.run_in_executor(self._thread, engine.step, self._version)
                for row, outcome in ended:
                    self._resolve(row, outcome)
                passes = _PASSES if ended else 1
        except Exception as error:  # noqa: BLE001 - nobody awaits this task: its failure belongs to those who wait
            for row in list(self._futures):
                self._resolve(row, error)
        finally:
            self._driver = None
            self._abandon(engine)

    def _resolve(self, row: Row, outcome: Sample | Exception) -> None:
        future = self._futures.pop(row, None)
        if future is None or future.done():
            return
        if isinstance(outcome, Sample):
            future.set_result(outcome)
            return
        fault = HarnessFault(f"{self.name}: the model failed: {type(outcome).__name__}: {outcome}")
        fault.__cause__ = outcome
        future.set_exception(fault)

    def _abandon(self, engine: Engine) -> None:
        """Let go of every request: the driver was cancelled, or its event loop is gone."""
        for row, future in self._futures.items():
            engine.cancel(row)
            if not future.get_loop().is_closed():
                future.cancel()
        self._futures.clear()


def _stop_ids(model: Any) -> list[int]:
    """Ids that the model's own generation ends at."""
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)


__all__ = ["LocalPolicy"]
