"""A policy's weights to a folder and back, bit for bit: the whole model, or the adapter alone."""

from __future__ import annotations

import json
from pathlib import Path

from turngym.agents.policies.loading import quiet_bars
from turngym.agents.policies.local import LocalPolicy


def save_weights(policy: LocalPolicy, folder: Path) -> None:
    """Write a folder that transformers (or, for an adapter, PEFT) and `local:FOLDER` load."""
    with quiet_bars():
        policy.model.save_pretrained(folder, safe_serialization=True)
    policy.tokenizer.save_pretrained(folder)
    if hasattr(policy.model, "peft_config"):
        _forget_places(folder / "adapter_config.json")


def _forget_places(config: Path) -> None:
    """An adapter names its base by hub name, or not at all: a folder of this machine means nothing on another."""
    settings = json.loads(config.read_text(encoding="utf-8"))
    if Path(settings["base_model_name_or_path"] or "").is_absolute():
        settings["base_model_name_or_path"] = None
        config.write_text(json.dumps(settings, indent=2, sort_keys=True), encoding="utf-8")


def load_weights(policy: LocalPolicy, folder: Path) -> None:
    """Put the weights that `save_weights` wrote into the policy's model, in place."""
    if hasattr(policy.model, "peft_config"):
        from peft import load_peft_weights, set_peft_model_state_dict  # noqa: PLC0415 - only for adapters

        set_peft_model_state_dict(policy.model, load_peft_weights(str(folder)))
        return
    dtype = next(policy.model.parameters()).dtype
    with quiet_bars():
        saved = type(policy.model).from_pretrained(folder, dtype=dtype)
    policy.model.load_state_dict(saved.state_dict())
