"""What is done to a model before it learns: a LoRA adapter, and activations that are computed again."""

from __future__ import annotations

from typing import Any

import torch

from turngym.trainers.config import PolicyConfig


def with_adapter(model: Any, config: PolicyConfig, *, seed: int) -> Any:
    """`model` with a fresh LoRA adapter on all its linear layers, or as it is where `lora_rank` is 0."""
    if config.lora_rank == 0:
        return model
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 - only where it is used

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % (1 << 31))
        return get_peft_model(
            model,
            LoraConfig(
                r=config.lora_rank,
                lora_alpha=config.lora_alpha,  # PEFT divides by the rank
                target_modules="all-linear",
                task_type="CAUSAL_LM",
            ),
        )


def checkpoint_activations(model: Any) -> None:
    """Let `model` compute the activations of each layer again in the backward instead of keeping them."""
    # transformers 5 renamed the method
    name = "activation_checkpointing_enable"
    enable = getattr(model, name, None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
