"""`warpbeam plan` as it is typed: answers, JSON, exit codes, refusals in words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from warpbeam.cli.main import app
from warpbeam.errors import UserError, WarpbeamError

ROOT = Path(__file__).parents[3]
LLAMA_8B = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, "intermediate_size": 14336}
LLAMA_70B = (
    LLAMA_8B | {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64} | {"intermediate_size": 28672}
)
QUESTION = ["--seq-len", "8192", "--global-batch-tokens", "1048576", "--method", "pretrain"]
JOB = """\
schema: warpbeam/job/v1
name: planned
model: {path: model}
data: {train: [{path: data.jsonl}], seq_len: 4096}
train: {method: sft, max_steps: 100, global_batch: 64, lr: 1e-5}
resources: {accelerators: 16}
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and a job; nothing of the user's own is read."""
    monkeypatch.setenv("WARPBEAM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("WARPBEAM_POOL", raising=False)
    for name, config in (("model", LLAMA_8B), ("large", LLAMA_70B)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["plan", *words])


def asked(*words: str, model: str = "model", accelerators: str = "16xH100-SXM") -> Result:
    return run("--model", model, "--accelerators", accelerators, *QUESTION, *words)


def refusal(result: Result) -> WarpbeamError:
    assert isinstance(result.exception, UserError), result.output
    assert result.exception.exit_code == 2
    return result.exception


def test_a_question_in_passing() -> None:
    result = asked("--tokens", "15e12")
    assert result.exit_code == 0
    for word in ("fits", "memory", "step", "speed", "to the end", "checkpoint", "chosen", "because", "otherwise"):
        assert f"\n  {word}" in result.output
    assert "8.03B parameters" in result.output
    assert "MFU" in result.output
    assert "not run by this version" in result.output


def test_json_keys() -> None:
    found = json.loads(asked("--json", "--steps", "10").stdout)
    wanted = {"fits", "memory_per_gpu_gib", "step_time_s", "tokens_per_s", "mfu_6n", "mfu_full", "strategy"}
    assert wanted | {"hours", "cost", "formulas"} <= set(found)
    assert found["fits"] is True
    assert found["cost"] is None
    assert found["hours"] == pytest.approx(10 * found["step_time_s"]["total"] / 3600)
    assert {"activations", "logits", "communication"} <= set(found["memory_per_gpu_gib"]["parts"])
    assert {"compute", "data_communication", "optimizer", "bubble"} <= set(found["step_time_s"]["parts"])


def test_what_does_not_fit_exits_with_1() -> None:
    result = asked("--strategy", "ddp", model="large", accelerators="32xA100-80GB")
    assert result.exit_code == 1
    assert "  fits          no:" in result.output
    assert "would fit" in result.output
    assert json.loads(asked("--strategy", "ddp", "--json", model="large").stdout)["fits"] is False


def test_a_job_on_a_pool() -> None:
    pool = str(ROOT / "cluster/pools/h100.yaml")
    result = run("job.yaml", "--pool", pool)
    assert result.exit_code == 0, result.output
    assert "16 x H100-SXM, zero" in result.output
    assert "left open" in result.output
    assert "cost " in result.output
    found = json.loads(run("job.yaml", "--pool", pool, "--json").stdout)
    assert found["strategy"] in ("zero1", "zero2", "zero3")
    assert found["deepspeed"]["zero_optimization"]["stage"] == int(found["strategy"][-1])
    assert found["cost"] == pytest.approx(found["hours"] * 16 * 2.5)
    emitted = json.loads(run("job.yaml", "--pool", pool, "--emit", "deepspeed").stdout)
    assert emitted == found["deepspeed"]


def test_what_a_job_states_stays(place: Path) -> None:
    stated = JOB + "parallelism: {strategy: zero1, micro_batch: 1}\n"
    (place / "job.yaml").write_text(stated.replace("lr: 1e-5", "lr: 1e-5, activation_checkpointing: true"))
    found = json.loads(run("job.yaml", "--pool", str(ROOT / "cluster/pools/h100.yaml"), "--json").stdout)
    assert (found["strategy"], found["micro_batch"], found["activation_checkpointing"]) == ("zero1", 1, True)
    assert found["why"] == "as the job says"


def test_scale() -> None:
    result = asked("--scale", "16,5,32")
    assert result.exit_code == 0
    assert "EFFICIENCY" in result.output
    assert " 5 |" in result.output
    rows = json.loads(
        run("job.yaml", "--pool", str(ROOT / "cluster/pools/h100.yaml"), "--scale", "4,8", "--json").stdout
    )
    assert [row["accelerators"] for row in rows["scaling"]] == [4, 8]


def test_scale_where_nothing_fits_exits_with_1() -> None:
    result = asked("--scale", "1,2", model="large")
    assert result.exit_code == 1
    assert "against the smallest size:" in result.output
    assert asked("--scale", "1,2", "--json", model="large").exit_code == 1
    assert asked("--scale", "1,16", model="large", accelerators="16xH200").exit_code == 0


def test_ranks_of_a_cpu_pool_share_its_cores(place: Path) -> None:
    """As a job on the pool is planned at each size, so is a question."""
    small = "layers=4,hidden=256,heads=4,ffn=512,vocab=1000"
    pool = ["--pool", str(ROOT / "cluster/pools/local.yaml")]
    words = ["--model", small, *pool, "--seq-len", "256", "--global-batch-tokens", "16384"]
    result = run(*words, "--scale", "1,2")
    assert "ranks share the pool's cores: fewer for each" in result.output
    rows = json.loads(run(*words, "--scale", "1,2", "--json").stdout)["scaling"]
    for row in rows:
        alone = json.loads(run(*words, "--accelerators", str(row["accelerators"]), "--json").stdout)
        assert row["found"]["step_s"] == pytest.approx(alone["step_time_s"]["total"])


@pytest.mark.parametrize(
    ("words", "pair"),
    [
        (["--scale", "8,16", "--emit", "deepspeed"], "--scale and --emit"),
        (["--scale", "8,16", "--explain", "memory"], "--scale and --explain"),
        (["--emit", "deepspeed", "--explain", "memory"], "--emit and --explain"),
        (["--explain", "memory", "--json"], "--explain and --json"),
    ],
)
def test_what_would_print_instead_of_another_is_refused(words: list[str], pair: str) -> None:
    assert pair in refusal(asked(*words)).what
    assert pair in refusal(run("job.yaml", "--pool", str(ROOT / "cluster/pools/h100.yaml"), *words)).what


def test_abbreviated_numbers_are_refused_with_one_that_is_accepted() -> None:
    result = run("--model", "model", "--accelerators", "16xH100", "--seq-len", "8192", "--global-batch-tokens", "1M")
    assert result.exit_code == 2
    assert "1048576" in result.output
    assert "8192" in asked("--seq-len", "8k").output


def test_a_key_that_is_misspelt_is_no_default(place: Path) -> None:
    config = {**LLAMA_70B, "num_hidden_layer": 80}
    (place / "odd.json").write_text(json.dumps(config))
    assert asked(model="odd.json", accelerators="32xH100").exit_code == 0, "beside the right key it decides nothing"
    del config["num_hidden_layers"]
    (place / "odd.json").write_text(json.dumps(config))
    error = refusal(asked(model="odd.json"))
    assert "no key num_hidden_layers" in error.what
    assert error.fix == "write `num_hidden_layers` for `num_hidden_layer`"


def test_a_size_that_is_the_family_s_default_is_told(place: Path) -> None:
    (place / "short.json").write_text(json.dumps({k: v for k, v in LLAMA_70B.items() if k != "num_hidden_layers"}))
    for words in ([], ["--emit", "deepspeed"], ["--scale", "8,16"], ["--explain", "memory"]):
        told = asked(*words, model="short.json").stderr
        assert "short.json says no num_hidden_layers: planned with 32, the default of llama" in told
    notes = json.loads(asked("--json", model="short.json").stdout)["notes"]
    assert len(notes) == 1
    assert "num_hidden_layers" in notes[0]


SCRATCH = JOB.replace(
    "{path: model}",
    "{config: {model_type: qwen2, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2}, "
    "tokenizer: {train: {vocab_size: 4096}}}",
)


def test_a_job_s_default_size_is_told(place: Path) -> None:
    """Of a model from scratch and of one by path, whatever is printed; once."""
    (place / "scratch.yaml").write_text(SCRATCH)
    for words in ([], ["--emit", "deepspeed"], ["--scale", "8,16"], ["--explain", "memory"], ["--json"]):
        result = run("scratch.yaml", "--pool", str(ROOT / "cluster/pools/h100.yaml"), *words)
        assert result.stderr.count("says no hidden_size: planned with 4,096, the default of qwen2") == 1
        assert result.stderr.count("says no intermediate_size: planned with 22,016") == 1
    assert [note.split(":")[0] for note in json.loads(result.stdout)["notes"]] == [
        "model.config says no hidden_size",
        "model.config says no intermediate_size",
    ]
    assert (
        "model/config.json says no hidden_size"
        in run("job.yaml", "--pool", str(ROOT / "cluster/pools/h100.yaml")).stderr
    )


def test_another_family_s_key_is_refused_with_the_right_one(place: Path) -> None:
    (place / "scratch.yaml").write_text(SCRATCH.replace("num_attention_heads: 4", "n_heads: 4"))
    pool = str(ROOT / "cluster/pools/h100.yaml")
    error = refusal(run("scratch.yaml", "--pool", pool))
    assert "qwen2 calls it `num_attention_heads`" in str(error)
    assert "n_head`" not in str(error)
    (place / "model/config.json").write_text(json.dumps({"model_type": "qwen2", "n_heads": 4}))
    for result in (asked(), run("job.yaml", "--pool", pool)):
        error = refusal(result)
        assert "qwen2 calls it num_attention_heads" in error.why
        assert error.fix == "write `num_attention_heads` for `n_heads`"


def test_scale_pads_whatever_number_of_accelerators_it_begins_with() -> None:
    result = asked("--scale", "1,2,4,5", accelerators="5xH100")
    assert result.exit_code == 0, result.output
    assert "\n5 |" in result.output
    job = run("job.yaml", "--pool", str(ROOT / "cluster/pools/h100.yaml"), "--accelerators", "5", "--scale", "5,8")
    assert job.exit_code == 0, job.output


def test_emit_says_in_what_it_differs_from_the_best() -> None:
    result = asked("--emit", "deepspeed")
    found, alone = json.loads(result.stdout), json.loads(asked("--emit", "deepspeed", "--engine", "here").stdout)
    assert found == alone
    assert "the best that this version runs; the plan's best is" in result.stderr
    shown = asked().output
    assert f"this version  zero{found['zero_optimization']['stage']}, micro-batch " in shown
    assert f"micro-batch {found['train_micro_batch_size_per_gpu']}, " in shown.partition("this version")[2]
    assert "precision fp8" in refusal(asked("--emit", "deepspeed", "--engine", "here", "--precision", "fp8")).what
    assert "does not run fp8" in refusal(asked("--emit", "deepspeed", "--precision", "fp8")).what


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--steps", "0"], "--steps is 0"),
        (["--tokens", "-1"], "--tokens is -1"),
        (["--tokens", "nan"], "--tokens is nan"),
        (["--tokens", "1e9", "--steps", "3"], "say the same"),
        (["--optimizer", "lion"], "--optimizer lion"),
        (["--allow", "foo"], "--allow foo"),
    ],
)
def test_numbers_and_words_that_cannot_be(words: list[str], what: str) -> None:
    assert what in refusal(asked(*words)).what


def test_units_that_are_missing_are_told() -> None:
    assert "has no fp8 units" in asked("--precision", "fp8", accelerators="8xA100-80GB").stderr


def test_printed_parts_come_to_their_sum() -> None:
    lines = {line[2:16].strip(): line[16:] for line in asked().stdout.splitlines()}
    for word, total in (("memory", lines["fits"].split()[1]), ("step", lines["step"].split()[0])):
        parts = lines[word].partition(": ")[2] if word == "step" else lines[word]
        assert sum(map(float, re.findall(r" ([\d.]+)(?:,| GiB| s)", " " + parts))) == pytest.approx(
            float(total), abs=0.02
        )


def test_adapters_are_labelled_by_their_own_formula() -> None:
    shown = asked("--lora", "16", "--base-bits", "4").output
    assert "by 4N, " in shown
    assert "by 4N + 8LHs" in shown
    assert "checkpoint    0.50 GB" in shown
    assert json.loads(asked("--lora", "16", "--json").stdout)["formulas"]["mfu_6n"].startswith("4 N")


def test_explain() -> None:
    result = asked("--explain", "memory", "--engine", "here")
    assert "N = 8,030,261,248 parameters" in result.output
    assert "expected peak" in result.output
    job = run("job.yaml", "--pool", str(ROOT / "cluster/pools/h100.yaml"), "--explain", "memory")
    assert "optimizer states are shared" in job.output


def test_a_model_by_its_numbers() -> None:
    result = asked(model="layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256")
    assert result.exit_code == 0
    assert "8.03B parameters" in result.output


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        ([], "nothing to plan", "--model config.json"),
        (["job.yaml", "--model", "model"], "names its model itself", "leave --model"),
        (["job.yaml", "--tp", "2"], "--tp goes with --model", "in the job file"),
        (["job.yaml", "--accelerators", "16xH100"], "it is a number", "--accelerators 8"),
        (["--model", "model", *QUESTION], "how many accelerators", "16xH100"),
        (["--model", "model", "--accelerators", "16xH100", "--seq-len", "8192"], "--global-batch-tokens", "1048576"),
        (["--model", "nowhere", "--accelerators", "8xH100", *QUESTION], "there is no nowhere", "layers=32"),
        (["--model", "hf://no/where", "--accelerators", "8xH100", *QUESTION], "not on this machine", "layers=32"),
        (["--model", "hf://", "--accelerators", "8xH100", *QUESTION], "hf:// is no name", "hf://ORG/NAME"),
        (["--model", "hf://a/b/c", "--accelerators", "8xH100", *QUESTION], "hf://a/b/c is no name", "hf://ORG/NAME"),
        (["--model", "hf://gpt2", "--accelerators", "8xH100", *QUESTION], "hf://gpt2 is no name", "hf://ORG/NAME"),
        (["--model", "hf://a b/c", "--accelerators", "8xH100", *QUESTION], "hf://a b/c is no name", "hf://ORG/NAME"),
        (["--model", "model", "--accelerators", "99999999xH100", *QUESTION], "more than the 1,048,576", "write fewer"),
        (
            ["--model", "model", "--accelerators", "16xH100", "--scale", "999999999", *QUESTION],
            "more than the 1,048,576 accelerators",
            "8,16,32,64",
        ),
        (["--model", "model", "--accelerators", "8xH1000", *QUESTION], "no accelerator `H1000`", "H100"),
        (
            ["--model", "model", "--accelerators", "16xA100", "--pool", "POOL", *QUESTION],
            "has no A100",
            "--accelerators 16",
        ),
        (["--model", "model", "--accelerators", "99", "--pool", "POOL", *QUESTION], "asks for 99", "16` or less"),
        (
            ["--model", "model", "--accelerators", "16xH100", "--tp", "3", *QUESTION],
            "does not divide 16",
            "`--tp 2` or `4`",
        ),
        (
            ["--model", "model", "--accelerators", "16xH100", "--method", "rl", *QUESTION[:4]],
            "--method rl",
            "pretrain or sft",
        ),
        (
            ["--model", "model", "--accelerators", "16xH100", "--method", "qlora", *QUESTION[:4]],
            "--method qlora",
            "`--lora 16 --base-bits 4`, beside --method pretrain or sft",
        ),
        (
            ["--model", "model", "--accelerators", "16xH100", "--scale", "8,x", *QUESTION],
            "no list of numbers",
            "8,16,32,64",
        ),
        (["--model", "odd.json", "--accelerators", "8xH100", *QUESTION], "model family 'mamba'", "layers=32"),
        (
            ["--model", "broken.json", "--accelerators", "8xH100", *QUESTION],
            "no config.json that can be read",
            "layers=32",
        ),
    ],
)
def test_refusals(words: list[str], what: str, fix: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (place / "odd.json").write_text('{"model_type": "mamba"}')
    (place / "broken.json").write_text("{")
    pool = str(ROOT / "cluster/pools/h100.yaml")
    error = refusal(run(*[pool if word == "POOL" else word for word in words]))
    assert what in error.what
    assert fix in error.fix


def test_run_refuses_what_cannot_fit(place: Path) -> None:
    """Before anything is spent, and with the change that would help; --force is another matter."""
    from warpbeam.job import load_job
    from warpbeam.launch.begin import Request, plan_request, refuse_what_cannot_fit
    from warpbeam.pool import load_pool

    (place / "job.yaml").write_text(JOB.replace("path: model", "path: large").replace("16", "8"))
    loaded: Any = load_job(place / "job.yaml")
    plan = plan_request(Request(loaded, load_pool(ROOT / "cluster/pools/h100.yaml"))).plan
    assert plan.fits is False
    with pytest.raises(UserError, match="it cannot fit") as caught:
        refuse_what_cannot_fit(plan, force=False)
    assert "--force" in caught.value.fix
    assert "offload: cpu" in caught.value.fix
    assert "not run by this version" not in caught.value.fix
    assert caught.value.exit_code == 2
    refuse_what_cannot_fit(plan, force=True)
    result = CliRunner().invoke(app, ["run", "job.yaml", "--pool", str(ROOT / "cluster/pools/h100.yaml"), "--yes"])
    assert isinstance(result.exception, UserError)
    assert result.exception.reason == "does_not_fit"


def test_more_than_the_pool_has_is_a_question_only() -> None:
    pool = ["--pool", str(ROOT / "cluster/pools/h100.yaml")]
    more = ["--accelerators", "32"]
    result = run("job.yaml", *pool, *more)
    assert result.exit_code == 0, result.output
    assert "32 are asked about, the pool `h100` has 16 accelerators: `run` and `submit` refuse it" in result.stderr
    away = ["--address", "http://127.0.0.1:1"]
    for words in (["run", "job.yaml", *pool, *more, "--yes"], ["submit", "job.yaml", *pool, *more, "--dry-run", *away]):
        error = refusal(CliRunner().invoke(app, words))
        assert error.reason == "too_few_accelerators"
        assert "`--accelerators 16` or less" in error.fix
