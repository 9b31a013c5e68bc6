"""What a run saves loads elsewhere, with nothing of this machine in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from small_models import byte_tokenizer, tiny_model
from turngym.agents.policies.local import LocalPolicy
from turngym.trainers.config import PolicyConfig
from turngym.trainers.model import with_adapter
from turngym.trainers.weights import _forget_places, load_weights, save_weights


def adapted(base: Path, seed: int) -> LocalPolicy:
    """A policy with an adapter that is not the identity, on a base that was loaded from a folder."""
    from transformers import AutoModelForCausalLM

    model = with_adapter(AutoModelForCausalLM.from_pretrained(base), PolicyConfig(lora_rank=2), seed=seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(seed))
    return LocalPolicy(model, byte_tokenizer())


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tiny_model("llama", vocabulary=400).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_an_adapter_loads_by_peft_alone_from_where_it_was_moved_to(base: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    policy, ids = adapted(base, 1), torch.arange(9)[None]
    save_weights(policy, tmp_path / "here")
    expected = policy.model(input_ids=ids).logits
    shutil.move(tmp_path / "here", tmp_path / "there")
    shutil.move(base, tmp_path / "elsewhere")
    for file in (tmp_path / "there").glob("*.json"):
        assert str(tmp_path) not in file.read_text()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "elsewhere")
    assert not torch.equal(plain(input_ids=ids).logits, expected)
    loaded = PeftModel.from_pretrained(plain, tmp_path / "there")
    assert torch.equal(loaded(input_ids=ids).logits, expected)


def test_an_adapter_that_was_saved_is_put_back_bit_for_bit(base: Path, tmp_path: Path) -> None:
    saved, other, ids = adapted(base, 1), adapted(base, 2), torch.arange(9)[None]
    save_weights(saved, tmp_path / "adapter")
    load_weights(other, tmp_path / "adapter")
    assert torch.equal(other.model(input_ids=ids).logits, saved.model(input_ids=ids).logits)


@pytest.mark.parametrize(
    ("before", "after"), [("owner/model", "owner/model"), ("/home/me/base", None), (None, None)]
)
def test_the_name_of_a_base_is_kept_where_it_means_something(
    before: str | None, after: str | None, tmp_path: Path
) -> None:
    config = tmp_path / "adapter_config.json"
    config.write_text(json.dumps({"base_model_name_or_path": before, "r": 2}))
    _forget_places(config)
    assert json.loads(config.read_text()) == {"base_model_name_or_path": after, "r": 2}
