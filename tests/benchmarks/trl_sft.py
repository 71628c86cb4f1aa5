"""The rival of `make bench-trl`: TRL's SFTTrainer with DeepSpeed ZeRO-3 on the same examples, model, world and rows.

    torchrun --nproc-per-node 2 tests/benchmarks/trl_sft.py --data DIR --tokenizer DIR --model CONFIG.json
        --mode MODE --rows ROWS_PER_RANK --seq-len N --steps N --out DIR

Runs in an environment of its own (`make bench-trl` makes it): TRL is no dependency. Each rank writes a line for each
step into `DIR/steps-RANK.jsonl`: when it ended, and its own loss tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, TrainerCallback
from trl import SFTConfig, SFTTrainer

MODES = {
    "default": {},  # one example a row, padded to the longest of its batch
    "padding-free": {"padding_free": True, "max_length": None},  # the same examples end to end in one row
    "packed": {"packing": True, "packing_strategy": "bfd"},  # full rows, end to end in one
    "packed-single": {"packing": True, "packing_strategy": "bfd"},  # full rows, one after the other, accumulated
}
"""All but the first keep examples apart by transformers' dense block mask: TRL passes `position_ids` that restart."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    for name in ("data", "tokenizer", "model", "out"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    parser.add_argument("--mode", choices=MODES, required=True)
    for name in ("rows", "seq-len", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def as_prompt_completion(record: dict) -> dict:
    """Our `messages` as TRL's conversational prompt and completion, whose loss falls on the completion alone."""
    return {"prompt": record["messages"][:-1], "completion": record["messages"][-1:]}


class StepClock(TrainerCallback):
    """Writes the line of each optimizer step; `loss_tokens` are those of the micro-batches in the order of training."""

    def __init__(self, path: Path, accumulation: int) -> None:
        self._file = path.open("w", buffering=1)
        self._accumulation = accumulation
        self.loss_tokens: list[int] = []

    def on_step_end(self, _args, state, _control, **_kwargs) -> None:
        end = state.global_step * self._accumulation
        tokens = sum(self.loss_tokens[end - self._accumulation : end])
        self._file.write(json.dumps({"at": time.monotonic(), "loss_tokens": tokens}) + "\n")


def main() -> None:
    """Train; whoever measures reads the lines."""
    args = arguments()
    data = load_dataset("json", data_files=str(args.data / "*.jsonl"), split="train").map(
        as_prompt_completion, remove_columns=["messages"]
    )
    model = AutoModelForCausalLM.from_config(Qwen2Config(**json.loads(args.model.read_text())))
    rows, accumulation = (1, args.rows) if args.mode == "packed-single" else (args.rows, 1)
    zero3 = {
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    clock = StepClock(args.out / f"steps-{os.environ['RANK']}.jsonl", accumulation)
    trainer = SFTTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(args.tokenizer),
        train_dataset=data,
        callbacks=[clock],
        args=SFTConfig(
            output_dir=str(args.out / "trl"),
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=accumulation,
            max_steps=args.steps,
            learning_rate=1e-3,
            deepspeed=zero3,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=args.steps,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataset_num_proc=1,
            **{"max_length": args.seq_len, **MODES[args.mode]},
        ),
    )
    collate = trainer.data_collator

    def counting(examples):
        batch = collate(examples)
        clock.loss_tokens.append(int((batch["labels"] != -100).sum()))
        return batch

    trainer.data_collator = counting
    trainer.train()


if __name__ == "__main__":
    main()
