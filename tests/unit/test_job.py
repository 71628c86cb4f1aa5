"""The job contract: its defaults, what contradicts itself, and the secrets it must never hold."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warpbeam.errors import UserError
from warpbeam.job import Job, Range, TrainTokenizer, check_name, load_job, parse_job
from warpbeam.secret_shapes import redact

REPOSITORY = Path(__file__).parents[2]
BASE: dict[str, Any] = {
    "schema": "warpbeam/job/v1",
    "name": "ok",
    "model": {"path": "hf://Qwen/Qwen2.5-0.5B"},
    "data": {"train": [{"path": "data/*.jsonl"}], "seq_len": 128},
    "train": {"method": "sft", "epochs": 1, "global_batch": 8, "lr": 1e-5},
}
SCRATCH = {"config": {"model_type": "qwen2"}, "tokenizer": {"train": {"vocab_size": 4096}}}


def content(**changes: Any) -> dict[str, Any]:
    """BASE with `section__key=value` set; None removes."""
    changed = copy.deepcopy(BASE)
    for dotted, value in changes.items():
        *sections, key = dotted.split("__")
        target = changed
        for section in sections:
            target = target.setdefault(section, {})
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value
    return changed


def job(**changes: Any) -> Job:
    return parse_job(content(**changes))


def refused(**changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        job(**changes)
    return str(caught.value)


def test_defaults() -> None:
    made = job()
    assert made.team == "default"
    assert (made.parallelism.strategy, made.parallelism.offload, made.parallelism.micro_batch) == (
        "zero3",
        "none",
        None,
    )
    assert made.resources.accelerators == 1
    assert made.train.betas == (0.9, 0.95)
    assert made.train.precision == "auto"
    assert made.data.packing
    assert made.over_length == "truncate"
    assert job(train__method="pretrain").over_length == "split"
    assert job(data__over_length="drop").over_length == "drop"


def test_what_yaml_may_give() -> None:
    assert job(train__lr=1).train.lr == 1.0, "a whole number is a number"
    assert job(train__betas=[0.8, 0.9]).train.betas == (0.8, 0.9)
    assert job(parallelism="auto") == job()
    assert job(resources__accelerators={"min": 2, "max": 4}).resources.accelerators == Range(min=2, max=4)
    assert job(train__warmup=100).train.warmup == 100
    assert isinstance(job(train__warmup=100).train.warmup, int)
    assert job(train__warmup=0.1).train.warmup == 0.1
    scratch = job(model=SCRATCH).model
    assert isinstance(scratch.tokenizer, TrainTokenizer)
    assert scratch.tokenizer.train.vocab_size == 4096
    assert job(model=SCRATCH | {"tokenizer": "hf://gpt2"}).model.tokenizer == "hf://gpt2"


@pytest.mark.parametrize("changes", [{}, {"model": SCRATCH}, {"resources__accelerators": {"min": 1, "max": 2}}])
def test_a_job_survives_json(changes: dict[str, Any]) -> None:
    made = job(**changes)
    assert parse_job(made.to_dict()) == made


def test_jobs_are_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        job().name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "key", "wrong"),
    [
        ({"model": {"revision": "x"}}, "model:", "needs `path` or `config`"),
        ({"model": BASE["model"] | SCRATCH}, "model.config", "stands beside `path`"),
        ({"model": {"config": {"model_type": "qwen2"}}}, "model.tokenizer", "is missing"),
        ({"model": SCRATCH | {"config": {"hidden_size": 8}}}, "model.config.model_type", "is missing"),
        (
            {"model": SCRATCH | {"config": {"model_type": "qwen2", "vocab_size": 100}}},
            "model.config.vocab_size",
            "the tokenizer to train has 4096 entries",
        ),
        (
            {"model": SCRATCH | {"config": {"model_type": "qwen2", "hiden_size": 64}}},
            "model.config.hiden_size",
            "did you mean `hidden_size`?",
        ),
        ({"model__tokenizer": SCRATCH["tokenizer"]}, "model.tokenizer", "cannot be trained for weights that exist"),
        ({"model__path": "https://huggingface.co/x"}, "model.path", "cannot be read from there"),
        ({"model__path": "hf://a/b/c"}, "model.path", "is not hf://ORG/NAME"),
        ({"model__path": "s3://Not_A_Bucket/x"}, "model.path", "is not s3://BUCKET/KEY"),
        ({"data__train": [{"path": "hf://x/y"}]}, "data.train[0].path", "cannot be read from there"),
        (
            {"data__train": [{"path": "a", "weight": 1}, {"path": "b"}]},
            "data.train[1].weight",
            "other sources have one",
        ),
        ({"data__eval": [{"path": "a", "weight": 1}]}, "data.eval[0].weight", "has no meaning"),
        ({"data__train": [{"path": "a", "fields": {"mesages": "x"}}]}, "fields.mesages", "did you mean `messages`"),
        (
            {"data__train": [{"path": "a", "format": "text", "fields": {"prompt": "x"}}]},
            "fields.prompt",
            "is no field of format text",
        ),
        (
            {"train__method": "pretrain", "data__train": [{"path": "a", "format": "alpaca"}]},
            "data.train[0].format",
            "pretrain reads text or tokens",
        ),
        (
            {"model": SCRATCH, "data__train": [{"path": "a", "format": "tokens"}]},
            "data.train[0].format",
            "in the tokenizer that made them",
        ),
        ({"train__epochs": None}, "train:", "needs `epochs` or `max_steps`"),
        ({"train__epochs": 0}, "train.epochs", "must be more than 0"),
        ({"train__max_steps": 0}, "train.max_steps", "must be 1 or more"),
        ({"train__warmup": 1.0}, "train.warmup", "a fraction below 1 or a whole number of steps"),
        ({"train__warmup": -1}, "train.warmup", "must be 0 or more"),
        ({"train__warmup": "3%"}, "train.warmup", "must be a number"),
        ({"train__warmup": 10, "train__max_steps": 10}, "train.warmup", "takes 10 steps of 10"),
        ({"train__decay": 0.5}, "train.decay", "has no meaning with schedule cosine"),
        (
            {"train__schedule": "wsd", "train__decay": 0.7, "train__warmup": 0.4},
            "train.decay",
            "more than the whole run",
        ),
        ({"train__schedule": "constant", "train__min_lr_ratio": 0.1}, "train.min_lr_ratio", "has no meaning"),
        ({"train__betas": [0.9]}, "train.betas[1]", "is missing"),
        ({"train__betas": [0.9, 1]}, "train.betas[1]", "must be less than 1"),
        ({"train__precision": "fp16"}, "train.precision", "must be auto | fp32 | bf16"),
        ({"train__clip": 0}, "train.clip", "must be more than 0"),
        ({"parallelism": {"strategy": "ddp", "offload": "cpu"}}, "parallelism.offload", "needs a ZeRO strategy"),
        ({"parallelism": {"strategy": "zero2", "offload": "nvme"}}, "parallelism.offload", "nvme needs zero3"),
        ({"parallelism": {"tp": 2}}, "parallelism.tp", "not built yet"),
        ({"parallelism": "fast"}, "parallelism", "write for example `parallelism: auto`"),
        ({"resources__accelerators": {"min": 4, "max": 2}}, "resources.accelerators.max", "less than min"),
        ({"resources__accelerators": 0}, "resources.accelerators", "must be 1 or more"),
        ({"resources__accelerators": "8"}, "resources.accelerators", "write 8 without quotes"),
        ({"resources__gpus": 8}, "resources.gpus", "write `resources.accelerators`"),
        ({"checkpoint__store": "bucket/prefix"}, "checkpoint.store", "use s3:// or file://"),
        ({"checkpoint__store": "file://relative"}, "checkpoint.store", "is not file:///ABSOLUTE/PATH"),
        ({"code__render": "my/mod.py:f"}, "code.render", "`my.mod:f`"),
        ({"code__callbacks": ["a:b", "a.b"]}, "code.callbacks[1]", "package.module:name"),
        ({"recipe": "train"}, "recipe", "package.module:name"),
        ({"secrets": [{"env": "A", "from": "a"}, {"env": "A", "from": "b"}]}, "secrets[1].env", "is set already"),
        ({"secrets": [{"env": "A", "from": "a"}], "env": {"A": "1"}}, "secrets[0].env", "is set already"),
        ({"secrets": [{"env": "A B", "from": "a"}]}, "secrets[0].env", "is no name of an environment variable"),
        ({"env": {"NCCL_DEBUG": "INFO"}}, "env.NCCL_DEBUG", "belongs to the pool"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "env.CUDA_VISIBLE_DEVICES", "belongs to the pool"),
        ({"env": {"AWS_REGION": "x"}}, "env.AWS_REGION", "belongs to the pool"),
        ({"env": {"A": 1}}, "env.A", 'put it in quotes: "1"'),
        ({"env": {"a b": "1"}}, "env.a b", "is no name of an environment variable"),
        ({"name": "Ünlücky"}, "name", "may hold only a-z"),
        ({"name": "-a"}, "name", "write for example `a`"),
        ({"name": "a" * 64}, "name", "has 64 characters"),
        ({"team": "My Team"}, "team", "write for example `my-team`"),
        ({"name": "../../etc"}, "name", "write for example `etc`"),
    ],
)
def test_contradictions(changes: dict[str, Any], key: str, wrong: str) -> None:
    message = refused(**changes)
    assert key in message
    assert wrong in message


SECRETS = (
    "AKIAIOSFODNN7EXAMPLE",
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuv",
    "glpat-abcdefghijklmnopqrst",
    "sk-proj-abcdefghijklmnopqrstuvwx0123456789",
    "xoxb-123456789012-abcdefghijkl",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "https://user:hunter2hunter2@host/path",
    "-----BEGIN RSA PRIVATE KEY-----\nabc",
)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "place",
    [
        lambda s: {"env": {"MY_FLAG": s}},
        lambda s: {"model__path": s},
        lambda s: {"model__chat_template": f"prefix {s} suffix"},
        lambda s: {"data__train": [{"path": s}]},
        lambda s: {"train__method": s},
        lambda s: {"train__lr": s},
        lambda s: {"name": s},
        lambda s: {s: 1},
        lambda s: {"code__loss": s},
        lambda s: {"model__config": {"deep": [{"er": s}]}},
    ],
)
def test_a_secret_anywhere_is_refused_and_never_printed(secret: str, place: Any) -> None:
    message = refused(**place(secret))
    assert secret not in message
    assert "secrets:" in message
    assert "hunter2" not in message


@pytest.mark.parametrize("key", ["HF_TOKEN", "WANDB_API_KEY", "my_secret", "DB_PASSWORD", "TOKEN"])
def test_a_secrets_name_in_env_is_refused(key: str) -> None:
    message = refused(env={key: "some-plain-value"})
    assert "is a secret by its name" in message
    assert "some-plain-value" not in message
    assert "secrets:" in message


@pytest.mark.parametrize("key", ["HF_TOKEN"])
def test_a_secrets_value_is_not_printed_when_its_type_is_wrong(key: str) -> None:
    assert "998877665544" not in refused(env={key: 998877665544})


@pytest.mark.parametrize(
    "harmless",
    [
        "task-1-of-a-long-experiment-name-20240101",
        "hf_hub_cache_dir_for_models",
        "disk-0123456789-0123456789",
        "s3://b-c/k",
    ],
)
def test_ordinary_texts_are_no_secrets(harmless: str) -> None:
    assert job(env={"MY_FLAG": harmless}).env["MY_FLAG"] == harmless
    assert redact(harmless) == harmless


def test_redact_keeps_the_rest() -> None:
    assert redact("token hf_abcdefghijklmnopqrstuvwxyz!") == "token <a Hugging Face token>!"


def test_names() -> None:
    assert check_name("my-run-2") == "my-run-2"
    with pytest.raises(UserError, match="run name"):
        check_name("a/b")


@pytest.mark.parametrize("path", sorted(REPOSITORY.glob("jobs/**/job*.yaml")), ids=lambda p: p.parent.name)
def test_the_repositorys_own_jobs_load(path: Path) -> None:
    load_job(path)


def test_the_quickstart_is_about_four_million_parameters() -> None:
    from warpbeam.plan.model_shape import model_shape
    from warpbeam.plan.plan import scratch_config

    quickstart = load_job(REPOSITORY / "jobs/sft/job.yaml").job
    config = scratch_config(quickstart)
    assert config is not None
    assert 3e6 < model_shape(config).parameters < 5e6
    assert quickstart.resources.accelerators == 2


def test_the_contracts_and_the_planner_import_nothing_heavy() -> None:
    code = (
        "import sys, warpbeam.job, warpbeam.pool, warpbeam.versions, warpbeam.plan.plan, "
        "warpbeam.plan.compare, warpbeam.plan.schedule\n"
        "heavy = {'torch', 'ray', 'transformers', 'deepspeed', 'numpy', 'pyarrow', 'boto3'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_job_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text((REPOSITORY / "jobs/sft/job.yaml").read_text())
    loaded = load_job(path)
    other = loaded.renamed("nightly-x7k2p")
    assert other.job.name == "nightly-x7k2p"
    assert other.job.train == loaded.job.train
    assert other.digest != loaded.digest
    with pytest.raises(UserError, match="--name"):
        loaded.renamed("Not A Name")


@pytest.mark.parametrize(
    ("section", "fix"),
    [
        ({"parallelism": {"micro_batch": "auto"}}, "leave `micro_batch` out"),
        ({"checkpoint": {"keep": 0}}, "write for example `keep: 3`"),
    ],
)
def test_a_wrong_value_is_answered_with_a_right_one(section: dict[str, Any], fix: str) -> None:
    with pytest.raises(UserError) as caught:
        job(**section)
    assert caught.value.fix == fix
