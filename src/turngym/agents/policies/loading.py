"""Models and tokenizers by name: the one in the package, folders, GGUF files, the Hugging Face hub."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as bars

from turngym.errors import ConfigError, MissingDependency

SPROUT = resources.files("turngym.agents.policies") / "sprout_model"
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def load_model(source: str, *, dtype: str | None, device: str | None, adapter: str | None) -> tuple[Any, Any]:
    """The model (in eval mode, on its device, with its adapter) and the tokenizer that `source` names.

    Args:
        source: see `LocalPolicy.load`; a leading `local:` is ignored.
        dtype: see `LocalPolicy.load`.
        device: see `LocalPolicy.load`.
        adapter: see `LocalPolicy.load`.

    Raises:
        ConfigError: where there is no such model, or it can't be loaded.
    """
    source = source.removeprefix("local:")
    where, arguments = _locate(source)
    place = _device(device)
    try:
        with quiet_bars():
            tokenizer = AutoTokenizer.from_pretrained(where, **arguments)
            model = AutoModelForCausalLM.from_pretrained(where, dtype=_dtype(dtype, place), **arguments)
    except ImportError as error:
        raise MissingDependency(f"loading {source!r} needs another package: {error}") from error
    except (OSError, ValueError) as error:  # what transformers raises for missing and malformed files
        raise ConfigError(
            f"can't load the model {source!r}: {error}\nA model is `sprout`, a folder with config.json, weights and tokenizer, a "
            ".gguf file, or a name on the Hugging Face hub (which needs network, or the model in its local cache)"
        ) from error
    if "gguf_file" in arguments:
        # The weights are float now, but transformers still takes the model for a quantised one and won't save it.
        model.hf_quantizer, model.is_quantized = None, False
        del model.config.quantization_config
    if adapter is not None:
        model = _with_adapter(model, adapter)
    return model.to(place).eval(), tokenizer


@contextmanager
def quiet_bars() -> Iterator[None]:
    """Without the progress bars of transformers: they would be drawn across the caller's own display."""
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


def read_template(file: str | Path) -> str:
    """The Jinja text in `file`.

    Raises:
        ConfigError: where it can't be read.
    """
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the chat template {str(file)!r}: {error}") from error


def _locate(source: str) -> tuple[str, dict[str, Any]]:
    """What `from_pretrained` takes for `source`."""
    if source == "sprout":
        if not SPROUT.joinpath("config.json").is_file():
            raise ConfigError(
                "the default model is not in this installation: make it with python -m turngym.agents.policies.sprout, "
                "or name another one (local:FOLDER)"
            )
        return str(SPROUT), {}
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(f"there is no file {source!r}")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        return str(path), {}
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        siblings = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, siblings, n=1)
        question = f" Did you mean {str(path.parent / near[0])!r}?" if near else ""
        raise ConfigError(f"there is no folder {source!r}.{question}")
    return source, {}


def _device(device: str | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {device!r}: write cpu, cuda, cuda:1 or mps") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {device!r}: no GPU is visible to torch; leave the device out for the CPU")
    return place


def _dtype(dtype: str | None, device: torch.device) -> Any:
    """Half precision is slower than float32 on most CPUs, and moves log-probs by tenths."""
    if dtype is None:
        return torch.float32 if device.type == "cpu" else "auto"
    if dtype not in _DTYPES:
        near = difflib.get_close_matches(dtype, _DTYPES, n=1) or ["float32"]
        raise ConfigError(f"unknown dtype {dtype!r}. Did you mean {near[0]!r}? Known: {', '.join(_DTYPES)}")
    return getattr(torch, dtype)


def _with_adapter(model: Any, adapter: str) -> Any:
    try:
        from peft import PeftModel  # noqa: PLC0415 - only for adapters

        return PeftModel.from_pretrained(model, adapter, is_trainable=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't load the adapter {adapter!r}: {error}") from error


__all__ = ["SPROUT", "load_model", "quiet_bars"]
