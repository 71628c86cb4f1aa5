"""The job file: what the ML team asks for. One frozen, strict model per section of it (DESIGN §6).

A job says *what*; how it runs is the plan's business. So there is no NCCL variable, no DeepSpeed key and no node name
here, and no key that nothing obeys: what is not built yet is an unknown key, with a word on what to write instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from warpbeam import job_checks as checks
from warpbeam.errors import UserError
from warpbeam.spec_file import Spec, build, digest, load_spec
from warpbeam.spec_problems import Problem, refuse

JOB_SCHEMA: Final = "warpbeam/job/v1"

DataFormat = Literal["auto", "messages", "sharegpt", "alpaca", "prompt-completion", "text", "tokens"]
Strategy = Literal["zero1", "zero2", "zero3", "ddp"]
Offload = Literal["none", "cpu", "nvme"]
Schedule = Literal["cosine", "linear", "constant", "wsd"]
OverLength = Literal["truncate", "split", "drop", "fail"]


class Section(BaseModel):
    """Base of every mapping of a job or pool file."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if found := self.contradictions():
            refuse(*found)
        return self

    def contradictions(self) -> list[Problem]:
        """What does not go together here, by keys relative to this section."""
        return []


def _shape(value: object) -> str:
    return "#mapping" if isinstance(value, (dict, BaseModel)) else "#plain"


def _pattern(pattern: re.Pattern[str]) -> Any:
    """The pattern in the JSON Schema, for editors; the check beside it words the error."""
    return Field(json_schema_extra={"pattern": f"^{pattern.pattern}$"})


Name = Annotated[str, AfterValidator(checks.name), _pattern(checks.NAME)]
CodeReference = Annotated[str, AfterValidator(checks.reference), _pattern(checks.CODE)]
EnvName = Annotated[str, AfterValidator(checks.env_name)]
ModelLocation = Annotated[str, Field(min_length=1), AfterValidator(checks.location("hf", "s3", "file", local=True))]
DataLocation = Annotated[str, Field(min_length=1), AfterValidator(checks.location("s3", "file", local=True))]
StoreLocation = Annotated[str, Field(min_length=1), AfterValidator(checks.location("s3", "file", local=False))]


def _list_to_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _steps_or_fraction(value: object) -> str:
    return "#steps" if isinstance(value, int) and not isinstance(value, bool) else "#fraction"


def _auto(value: object) -> object:
    return {} if value == "auto" else value


class TokenizerTraining(Section):
    """A byte-level BPE tokenizer trained on the job's own training data."""

    vocab_size: int = Field(ge=300, le=1_000_000, examples=[4096], description="Entries, special tokens included.")


class TrainTokenizer(Section):
    """`tokenizer: {train: {vocab_size: 4096}}`."""

    train: TokenizerTraining


class Model(Section):
    """Weights to begin from (`path`), or a shape to begin from nothing (`config` and `tokenizer`)."""

    path: ModelLocation | None = Field(
        None,
        examples=["hf://Qwen/Qwen2.5-0.5B"],
        description="hf://ORG/NAME, s3://BUCKET/PREFIX or a local folder.",
    )
    revision: str = Field("main", min_length=1, description="Branch, tag or commit on the Hugging Face Hub.")
    trust_remote_code: bool = Field(False, description="Run Python code that comes with the model.")
    config: dict[str, Any] | None = Field(
        None,
        examples=["{model_type: qwen2, hidden_size: 256}"],
        description="A Hugging Face config.json's content: from scratch.",
    )
    tokenizer: (
        Annotated[
            Annotated[ModelLocation, Tag("#plain")] | Annotated[TrainTokenizer, Tag("#mapping")],
            Discriminator(_shape),
        ]
        | None
    ) = Field(
        None,
        examples=["{train: {vocab_size: 4096}}"],
        description="Another tokenizer than the model's: a path as for `path`, or {train: {vocab_size: N}}.",
    )
    chat_template: str | None = Field(
        None, min_length=1, description="A Jinja chat template, inline or as a path to a .jinja file."
    )

    def contradictions(self) -> list[Problem]:
        return checks.model(self)


class DataSource(Section):
    """One place that data comes from."""

    path: DataLocation = Field(
        examples=['"s3://bucket/data/*.jsonl"'],
        description="A file, a folder or a pattern; s3:// or local, relative to the job file.",
    )
    format: DataFormat = Field("auto", description="What a record looks like; auto looks at the first records.")
    weight: float | None = Field(
        None, gt=0, examples=[1.0], description="Share of the rows in a mixture; all sources have one, or none has."
    )
    fields: dict[str, str] = Field({}, description="Names of your own fields: {messages: dialog}.")

    def contradictions(self) -> list[Problem]:
        return checks.data_source(self)


class Data(Section):
    """What to train and evaluate on, and how records become rows of `seq_len` tokens."""

    train: list[DataSource] = Field(min_length=1, examples=['[{path: "s3://bucket/train/*.jsonl"}]'])
    eval: list[DataSource] = []
    seq_len: int = Field(ge=8, le=16_777_216, examples=[2048], description="Tokens in a row.")
    packing: bool = Field(True, description="Several examples share a row; they never see each other.")
    on_bad_record: Literal["fail", "skip"] = "fail"
    over_length: OverLength | None = Field(
        None, description="An example longer than a row; default: truncate for sft, split for pretrain."
    )

    def contradictions(self) -> list[Problem]:
        return checks.data(self)


class Train(Section):
    """The optimization: AdamW, its schedule, how long."""

    method: Literal["sft", "pretrain"]
    epochs: float | None = Field(None, gt=0, examples=[2], description="Passes over the data; may be a fraction.")
    max_steps: int | None = Field(
        None, ge=1, examples=[1000], description="Optimizer steps; with epochs, whichever ends first."
    )
    global_batch: int = Field(
        ge=1, le=1 << 30, examples=[64], description="Rows of seq_len in one optimizer step, over all ranks."
    )
    lr: float = Field(gt=0, le=10, examples=["1e-5"], description="Peak learning rate.")
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="The schedule ends at lr times this.")
    schedule: Schedule = "cosine"
    warmup: Annotated[
        Annotated[int, Field(ge=0), Tag("#steps")] | Annotated[float, Field(ge=0), Tag("#fraction")],
        Discriminator(_steps_or_fraction),
    ] = Field(0.0, examples=[0.03], description="Below 1: a fraction of all steps; a whole number: steps.")
    decay: float = Field(0.1, gt=0, le=1, description="wsd only: the last fraction of all steps, in which lr falls.")
    weight_decay: float = Field(0.01, ge=0, le=10, description="Norms and biases are left out.")
    betas: Annotated[
        tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]], BeforeValidator(_list_to_tuple)
    ] = Field((0.9, 0.95), examples=["[0.9, 0.95]"])
    eps: float = Field(1e-8, gt=0, le=1)
    clip: float | None = Field(1.0, gt=0, description="Largest gradient norm; null: no clipping.")
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="auto: bf16 on GPUs, fp32 on CPUs.")
    seed: int = Field(0, ge=0, lt=2**31)
    eval_every: int | None = Field(None, ge=1, description="Steps; default: at each checkpoint and at the end.")
    activation_checkpointing: bool | None = Field(
        None,
        description="Recompute activations in the backward pass: less memory, more time. Default: the plan's choice.",
    )
    launch_after_s: float = Field(180, ge=5, description="After so long in a phase of the launch the doctor looks.")
    stall_after_s: float = Field(
        600, ge=5, description="Without progress for so long, an attempt is ended (stacks in its logs) and tried again."
    )
    spares_after_s: float | None = Field(
        None, ge=0, description="From then on, workers with the engine imported wait for a next attempt; null: never."
    )

    def contradictions(self) -> list[Problem]:
        return checks.train(self)


class Code(Section):
    """Your own functions, each `package.module:name`."""

    render: CodeReference | None = Field(
        None,
        examples=['"my.mod:render"'],
        description="render(record, tokenizer) -> {messages} | {input_ids, loss_mask} | None",
    )
    loss: CodeReference | None = Field(
        None, examples=['"my.mod:loss"'], description="loss(outputs, batch) -> (sum, tokens)"
    )
    model: CodeReference | None = Field(None, examples=['"my.mod:build"'], description="model(job) -> torch.nn.Module")
    callbacks: list[CodeReference] = Field([], examples=['["my.mod:Callback"]'])


class Parallelism(Section):
    """How the model's states are spread. `auto`, the default of every key: the plan chooses (on CPUs, zero3)."""

    strategy: Strategy = Field("zero3", description="Default: the fastest that fits; on a CPU pool zero3.")
    offload: Offload = Field("none", description="Where optimizer states (and, with zero3, parameters) live.")
    micro_batch: int | None = Field(
        None, ge=1, description="Rows a rank computes at once; default: the largest that fits."
    )

    @property
    def strategy_is_open(self) -> bool:
        """Nobody named a strategy: the plan may choose one."""
        return "strategy" not in self.model_fields_set

    @property
    def offload_is_open(self) -> bool:
        """Nobody said where states live."""
        return "offload" not in self.model_fields_set

    def contradictions(self) -> list[Problem]:
        return checks.parallelism(self)


class Range(Section):
    """Elastic: any number of accelerators from `min` to `max`."""

    min: int = Field(ge=1)
    max: int = Field(ge=1)

    def contradictions(self) -> list[Problem]:
        return checks.accelerator_range(self)


class Resources(Section):
    """How much of the pool."""

    accelerators: Annotated[
        Annotated[int, Field(ge=1), Tag("#plain")] | Annotated[Range, Tag("#mapping")], Discriminator(_shape)
    ] = Field(1, examples=[8], description="GPUs (worker processes on a CPU pool), or {min: 8, max: 16}.")


class CheckpointSpec(Section):
    """When the training state is saved, and where."""

    every_steps: int | None = Field(None, ge=1, description="Default: at the end only.")
    keep: int = Field(3, ge=1, description="Newest ones kept; the best one is kept besides.")
    keep_every: int | None = Field(
        None, ge=1, examples=["1000"], description="Besides, those at multiples of this step are never given up."
    )
    background: bool = Field(
        True,
        description="Copy the state to host memory and go on while it is written; false: no copy, training waits.",
    )
    upload_limit_mb_per_s: float | None = Field(
        None,
        ge=1,
        examples=["200"],
        description="How fast each rank uploads at most, in 10^6 bytes a second. Default: as fast as it goes.",
    )
    store: StoreLocation | None = Field(
        None, examples=['"s3://bucket/prefix"'], description="Default: the pool's store."
    )


class Secret(Section):
    """A secret by the name the pool gives it, and the environment variable it becomes."""

    env: EnvName = Field(examples=["HF_TOKEN"])
    from_: str = Field(alias="from", min_length=1, examples=["hf-token"])


class Job(Section):
    """A whole job file."""

    schema_: Literal["warpbeam/job/v1"] = Field(alias="schema", examples=[JOB_SCHEMA])
    name: Name = Field(examples=["my-first-sft"], description="The run's id: lowercase letters, digits and -.")
    team: Name = Field("default", description="Whose it is: lowercase letters, digits and -.")
    model: Model = Field(examples=["{path: hf://Qwen/Qwen2.5-0.5B}"])
    data: Data
    train: Train
    code: Code = Code()
    recipe: CodeReference | None = Field(
        None, examples=['"my.mod:train"'], description="Your own training loop, `package.module:function`."
    )
    parallelism: Annotated[
        Parallelism, BeforeValidator(_auto, json_schema_input_type=Literal["auto"] | Parallelism)
    ] = Field(Parallelism(), examples=["auto"])
    resources: Resources = Field(Resources(), examples=["{accelerators: 8}"])
    checkpoint: CheckpointSpec = CheckpointSpec()
    secrets: list[Secret] = Field([], examples=["[{env: HF_TOKEN, from: hf-token}]"])
    env: dict[Annotated[str, AfterValidator(checks.plain_setting)], str] = Field(
        {}, examples=['{MY_FLAG: "1"}'], description="Plain settings of your own code; no secrets."
    )

    def contradictions(self) -> list[Problem]:
        return checks.job(self)

    @property
    def over_length(self) -> OverLength:
        """What happens to an example longer than a row, with the method's default filled in."""
        return self.data.over_length or ("truncate" if self.train.method == "sft" else "split")

    def to_dict(self) -> dict[str, Any]:
        """JSON-able content with the file's own keys; `parse_job` reads it back. What the plan may choose of
        `parallelism` stays out."""
        content = self.model_dump(mode="json", by_alias=True)
        content["parallelism"] = self.parallelism.model_dump(mode="json", exclude_unset=True)
        return content


DATA_SUFFIXES: Final = frozenset({".jsonl", ".ndjson", ".parquet", ".txt", ".csv", ".gz", ".zst"})

# Keys of other tools and of issues to come: what to write here instead.
HINTS: Final[dict[str, str]] = {
    "tp": "tensor parallelism is not built yet: leave it out",
    "pp": "pipeline parallelism is not built yet: leave it out",
    "cp": "context parallelism is not built yet: leave it out",
    "ep": "expert parallelism is not built yet: leave it out",
    "lora": "LoRA is not built yet: leave it out",
    "deepspeed": "the plan writes the DeepSpeed config: choose with `parallelism: {strategy: zero3}`",
    "learning_rate": "write `train.lr`",
    "num_train_epochs": "write `train.epochs`",
    "batch_size": "write `train.global_batch` (rows of seq_len over all ranks)",
    "per_device_train_batch_size": "write `parallelism.micro_batch`",
    "gradient_accumulation_steps": "leave it out: the plan computes it from global_batch and the accelerators",
    "max_seq_length": "write `data.seq_len`",
    "max_length": "write `data.seq_len`",
    "warmup_ratio": "write `train.warmup` (below 1: a fraction)",
    "warmup_steps": "write `train.warmup` (a whole number: steps)",
    "lr_scheduler_type": "write `train.schedule`",
    "max_grad_norm": "write `train.clip`",
    "bf16": "write `train.precision: bf16`",
    "fp16": "write `train.precision: bf16` (fp16 is not supported)",
    "gpus": "write `resources.accelerators`",
    "num_gpus": "write `resources.accelerators`",
    "num_workers": "write `resources.accelerators`",
    "world_size": "write `resources.accelerators`",
    "save_steps": "write `checkpoint.every_steps`",
    "eval_steps": "write `train.eval_every`",
    "output_dir": "leave it out, or write `checkpoint.store: s3://bucket/prefix`",
    "gradient_checkpointing": "write `train.activation_checkpointing: true`",
}


@dataclass(frozen=True)
class LoadedJob:
    """A job with where it came from.

    Attributes:
        root: the folder relative paths start at, and own code is imported from.
        digest: sha256 of the content.
    """

    job: Job
    path: Path
    root: Path
    digest: str

    def renamed(self, name: str) -> LoadedJob:
        """The same job as another run. Raises UserError for a name that cannot be one."""
        job = parse_job(self.job.to_dict() | {"name": name}, name="--name")
        return replace(self, job=job, digest=digest(job))


def load_job(path: Path) -> LoadedJob:
    """Read and check a job file. Raises UserError with every problem of it."""
    if path.suffix in DATA_SUFFIXES:
        raise UserError(
            f"{path} is a data file, not a job file",
            fix=f"`warpbeam init NAME --data {path}` writes a job file that trains on it",
            reason="data_file",
        )
    job = load_spec(path, Job, kind="job file", hints=HINTS)
    absolute = path.resolve()
    return LoadedJob(job=job, path=absolute, root=absolute.parent, digest=digest(job))


def parse_job(content: dict[str, Any], *, name: str = "job") -> Job:
    """A job from its `to_dict()`, with the same errors a file gets."""
    return build(Spec(name, content), Job, kind="job file", hints=HINTS)


def check_name(name: str, *, what: str = "run name") -> str:
    """`name` if it may become a key, a file name and a Kubernetes name; else UserError."""
    if problem := checks.name_problem(name):
        raise UserError(f"{what} {problem.wrong}", fix=problem.write, reason="bad_name")
    return name
