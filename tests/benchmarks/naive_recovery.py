"""The rival of `make bench-recovery`: the naive script with the checkpoints and retries that Ray Train's guide shows.

    python -m tests.benchmarks.naive_recovery DATA_DIR TOKENIZER_DIR CONFIG_JSON EVERY STEPS_FILE

It trains until it is killed, and writes when each step of rank 0 ended. After a failure it reads its data from the
beginning: Ray Data has no position to go on from.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

import ray
import ray.train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from tests.benchmarks.naive_ray import MICRO_BATCH, WORLD, pack


def train(config):
    import deepspeed
    from transformers import AutoModelForCausalLM, Qwen2Config

    model = AutoModelForCausalLM.from_config(Qwen2Config(**config["model"]))
    ds = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "gradient_clipping": 1.0,
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds)
    rank = ray.train.get_context().get_world_rank()
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            engine.load_checkpoint(folder)
    shard = ray.train.get_dataset_shard("train")
    while True:
        for batch in shard.iter_torch_batches(batch_size=MICRO_BATCH, drop_last=True):
            loss = engine(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss
            engine.backward(loss)
            engine.step()
            step = engine.global_steps
            with open(config["steps_file"] + f".{rank}", "a") as out:
                out.write(json.dumps({"step": step, "wall": time.time(), "pid": os.getpid()}) + "\n")
            if step % config["every"] == 0:
                with tempfile.TemporaryDirectory() as folder:
                    engine.save_checkpoint(folder)
                    ray.train.report({"loss": loss.item()}, checkpoint=Checkpoint.from_directory(folder))


def main(data, tokenizer_dir, config_json, every, steps_file):
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    dataset = ray.data.read_json(data).map_batches(pack, fn_kwargs={"tokenizer_dir": tokenizer_dir}, batch_size=512)
    with open(config_json) as file:
        model = json.load(file)
    TorchTrainer(
        train,
        train_loop_config={"model": model, "every": int(every), "steps_file": steps_file},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=WORLD, resources_per_worker={"CPU": 1}),
        datasets={"train": dataset},
        run_config=RunConfig(storage_path=f"{steps_file}.ray", failure_config=FailureConfig(max_failures=-1)),
    ).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
