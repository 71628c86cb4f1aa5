"""The rival of `make bench-trl`: TRL's SFTTrainer with DeepSpeed ZeRO-3 on the same examples, model, world and batch.

    torchrun --nproc-per-node 2 tests/benchmarks/trl_sft.py --data DIR --tokenizer DIR --model CONFIG.json
        --mode default|packed --rows ROWS_PER_RANK --seq-len N --steps N --out OUT.json

Runs in an environment of its own (`make bench-trl` makes it): TRL is no dependency. Rank 0 writes, for each step
after the first, its seconds and the loss tokens of the whole world.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, TrainerCallback
from trl import SFTConfig, SFTTrainer


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    for name in ("data", "tokenizer", "model", "out"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    parser.add_argument("--mode", choices=["default", "packed"], required=True)
    for name in ("rows", "seq-len", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def as_prompt_completion(record: dict) -> dict:
    """Our `messages` as TRL's conversational prompt and completion, whose loss falls on the completion alone."""
    return {"prompt": record["messages"][:-1], "completion": record["messages"][-1:]}


class StepClock(TrainerCallback):
    """Seconds per optimizer step."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def on_step_end(self, *_args, **_kwargs) -> None:
        self.at.append(time.perf_counter())


def main() -> None:
    """Train and write the measurement."""
    args = arguments()
    data = load_dataset("json", data_files=str(args.data / "*.jsonl"), split="train").map(
        as_prompt_completion, remove_columns=["messages"]
    )
    model = AutoModelForCausalLM.from_config(Qwen2Config(**json.loads(args.model.read_text())))
    packed = {"packing": True, "packing_strategy": "bfd"} if args.mode == "packed" else {}
    zero3 = {
        "train_micro_batch_size_per_gpu": args.rows,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    clock, loss_tokens = StepClock(), []
    trainer = SFTTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(args.tokenizer),
        train_dataset=data,
        callbacks=[clock],
        args=SFTConfig(
            output_dir=f"{args.out}.trl",
            max_length=args.seq_len,
            per_device_train_batch_size=args.rows,
            max_steps=args.steps,
            learning_rate=1e-3,
            deepspeed=zero3,
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=args.steps,
            save_strategy="no",
            report_to=[],
            dataset_num_proc=1,
            **packed,
        ),
    )
    collate = trainer.data_collator

    def counting(examples):
        batch = collate(examples)
        loss_tokens.append(int((batch["labels"] != -100).sum()))
        return batch

    trainer.data_collator = counting
    trainer.train()
    gathered = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, loss_tokens[: args.steps])
    if trainer.accelerator.is_main_process:
        steps = [b - a for a, b in zip(clock.at, clock.at[1:], strict=False)]
        tokens = [sum(rank) for rank in zip(*gathered, strict=True)][1 : len(steps) + 1]
        args.out.write_text(json.dumps({"mode": args.mode, "step_s": steps, "loss_tokens": tokens}))


if __name__ == "__main__":
    main()
