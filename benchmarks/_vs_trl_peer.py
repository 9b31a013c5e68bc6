"""TRL's side of `vs_trl.py`, run by the interpreter of its own virtual environment: python _vs_trl_peer.py JOB.json

`GRPOTrainer` with a `rollout_func` that plays the episodes of a batch side by side: every turn is one `model.generate`
over the whole histories of those that are still playing, as `GRPOTrainer` itself generates without vLLM, and the
environment's tokens are masked out of the loss with `env_mask`. Writes one JSON line an update to `updates.jsonl`
(`seconds`, `cpu_seconds`, `tokens`), and the weights after every few updates to `weights/<update>`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from turngym.agents.template import TemplateRenderer
from turngym.registry import make


class Episode:
    """One game as TRL wants it: prompt ids, completion ids, and a mask that is 1 on what the model said."""

    def __init__(self, task: dict[str, Any], renderer: TemplateRenderer) -> None:
        self.env, self.renderer = make(task["env_id"], **task["options"]), renderer
        _, info = self.env.reset(seed=task["seed"])
        self.prompt: list[int] = renderer.open(info["messages"]).ids.tolist()
        self.completion: list[int] = []
        self.env_mask: list[int] = []
        self.reward, self.over = 0.0, False

    @property
    def history(self) -> list[int]:
        return self.prompt + self.completion

    def play(self, said: torch.Tensor) -> None:
        """Take the ids of one action; add them and, where the game goes on, the answer."""
        ids = said.numpy()
        self._add(ids.tolist(), 1)
        _, reward, terminated, truncated, info = self.env.step(self.renderer.text(ids))
        self.reward += reward
        self.over = terminated or truncated
        if not self.over:
            ended = int(ids[-1]) in self.renderer.stop_ids
            self._add(self.renderer.reply(info["messages"], ended=ended).ids.tolist(), 0)

    def _add(self, ids: list[int], sampled: int) -> None:
        self.completion += ids
        self.env_mask += [sampled] * len(ids)


class Rollouts:
    """The `rollout_func`. A prompt is the index of a task, since TRL hands nothing else to it."""

    def __init__(self, job: dict[str, Any], tokenizer: Any) -> None:
        self.tasks, self.turn_tokens = job["tasks"], job["turn_tokens"]
        self.tokenizer, self.renderer = tokenizer, TemplateRenderer(tokenizer)
        self.tokens = 0

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        episodes = [Episode(self.tasks[int(prompt)], self.renderer) for prompt in prompts]
        window = trainer.model.config.max_position_embeddings - self.turn_tokens
        while live := [e for e in episodes if not e.over and len(e.history) <= window]:
            for episode, said in zip(live, self.say(live, trainer), strict=True):
                episode.play(said)
        self.tokens = sum(sum(e.env_mask) for e in episodes)
        return {
            "prompt_ids": [e.prompt for e in episodes],
            "completion_ids": [e.completion for e in episodes],
            "logprobs": None,  # as TRL's own generation without vLLM: one update a batch needs none
            "env_mask": [e.env_mask for e in episodes],
            "game_reward": [e.reward for e in episodes],
        }

    def say(self, live: list[Episode], trainer: GRPOTrainer) -> list[torch.Tensor]:
        """The next action of every live episode, up to and with its end-of-turn id."""
        histories = [{"input_ids": e.history} for e in live]
        batch = self.tokenizer.pad(histories, padding_side="left", return_tensors="pt")
        with torch.no_grad():
            ids = trainer.model.generate(
                **batch, generation_config=trainer.generation_config, max_new_tokens=self.turn_tokens
            )
        said = ids[:, batch["input_ids"].shape[1] :]
        ends = (said == self.tokenizer.eos_token_id).int()
        lengths = torch.where(ends.any(1), ends.argmax(1) + 1, said.shape[1])
        return [row[:length] for row, length in zip(said, lengths, strict=True)]


class Clock(transformers.TrainerCallback):
    """Times each update, generation included, and saves weights outside of that time."""

    def __init__(self, job: dict[str, Any], rollouts: Rollouts) -> None:
        self.folder, self.every, self.rollouts = Path(job["folder"]), job["evaluate_every"], rollouts

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.perf_counter(), time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        line = {
            "seconds": time.perf_counter() - self.started[0],
            "cpu_seconds": time.process_time() - self.started[1],
            "tokens": self.rollouts.tokens,
        }
        with (self.folder / "updates.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if state.global_step % self.every == 0 or state.global_step == args.max_steps:
            folder = self.folder / "weights" / str(state.global_step)
            kwargs["model"].save_pretrained(folder)
            self.rollouts.tokenizer.save_pretrained(folder)


def game_reward(completions: list[str], game_reward: list[float], **_: Any) -> list[float]:
    return game_reward


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["model"])
    rollouts = Rollouts(job, tokenizer)
    config = GRPOConfig(
        output_dir=str(Path(job["folder"]) / "trainer"),
        max_steps=job["updates"],
        num_generations=job["group"],
        per_device_train_batch_size=job["group"] * job["trees"],
        shuffle_dataset=False,
        temperature=1.0,
        learning_rate=job["lr"],
        lr_scheduler_type="constant",
        adam_beta1=job["beta1"],
        adam_beta2=job["beta2"],
        max_grad_norm=job["grad_clip"],
        epsilon=job["clip_low"],
        epsilon_high=job["clip_high"],
        beta=0.0,
        loss_type="dapo",  # the mean over all trained tokens of the batch
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        seed=job["seed"],
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(job["model"]),
        processing_class=tokenizer,
        reward_funcs=game_reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [str(i) for i in range(len(job["tasks"]))]}),
        rollout_func=rollouts,
        callbacks=[Clock(job, rollouts)],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


if __name__ == "__main__":
    main()
