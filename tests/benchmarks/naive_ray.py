"""The rival of `make bench-startup`: what a competent person writes first with Ray Data, Ray Train and DeepSpeed.

    python -m tests.benchmarks.naive_ray DATA_DIR TOKENIZER_DIR CONFIG_JSON STEPS OUT_JSON

No resume, no masks, no packing across batches: tokenise, concatenate, cut, train. It writes when its first step ended.
"""

from __future__ import annotations

import json
import sys
import time

import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

SEQ_LEN, MICRO_BATCH, WORLD = 256, 8, 2


def pack(batch, tokenizer_dir):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    texts = [tokenizer.apply_chat_template(list(m), tokenize=False) for m in batch["messages"]]
    ids = [token for text in texts for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    rows = len(ids) // SEQ_LEN
    return {"input_ids": [ids[i * SEQ_LEN : (i + 1) * SEQ_LEN] for i in range(rows)]}


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
    shard = ray.train.get_dataset_shard("train")
    step = 0
    while step < config["steps"]:
        for batch in shard.iter_torch_batches(batch_size=MICRO_BATCH, drop_last=True):
            loss = engine(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss
            engine.backward(loss)
            engine.step()
            step += 1
            if step == 1 and ray.train.get_context().get_world_rank() == 0:
                with open(config["out"], "w") as out:
                    json.dump({"first_step_at": time.time(), "loss": loss.item()}, out)
            if step == config["steps"]:
                break
    ray.train.report({"loss": loss.item()})


def main(data, tokenizer_dir, config_json, steps, out):
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    dataset = ray.data.read_json(data).map_batches(pack, fn_kwargs={"tokenizer_dir": tokenizer_dir}, batch_size=512)
    with open(config_json) as file:
        model = json.load(file)
    TorchTrainer(
        train,
        train_loop_config={"model": model, "steps": int(steps), "out": out},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=WORLD, resources_per_worker={"CPU": 1}),
        datasets={"train": dataset},
        run_config=RunConfig(storage_path=f"{out}.ray"),
    ).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
