"""What a job's types cannot say: how a text must look, and which values go together.

The first half checks one value and returns it; the second takes a section and lists what contradicts itself there, by
keys relative to the section. Only what the file alone can answer is here: data, own code and hardware come later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from warpbeam.plan.config_keys import foreign_keys, misspelt_keys
from warpbeam.secret_shapes import names_a_secret, redact
from warpbeam.spec_file import SECRETS_ADVICE
from warpbeam.spec_problems import Problem, nearest, refuse, show

if TYPE_CHECKING:
    from warpbeam.job import Data, DataSource, Job, Model, Parallelism, Range, Train

NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
NAME_LENGTH: Final = 63  # a Kubernetes label's
CODE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ENV_ADVICE: Final = "use letters, digits and _ only, for example MY_FLAG"
SHAPES: Final[dict[str, tuple[re.Pattern[str], str]]] = {  # scheme -> its pattern, and how to write it
    "s3": (re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?"), "s3://BUCKET/KEY"),
    "hf": (re.compile(r"hf://[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?"), "hf://ORG/NAME"),
    "file": (re.compile(r"file:///.*"), "file:///ABSOLUTE/PATH"),
}
POOL_ENV: Final = ("NCCL_", "CUDA_", "AWS_")

# format -> the names that `fields` may rename
RECORD_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "messages": ("messages", "system"),
    "sharegpt": ("conversations", "system"),
    "alpaca": ("instruction", "input", "output", "system"),
    "prompt-completion": ("prompt", "completion", "system"),
    "text": ("text",),
    "tokens": ("input_ids", "loss_mask"),
}
WITHOUT_TURNS: Final = ("auto", "text", "tokens")


def name_problem(name: str) -> Problem | None:
    """What is wrong where `name` cannot become a key, a file and a Kubernetes name."""
    if len(name) > NAME_LENGTH:
        return Problem((), f"has {len(name)} characters", f"use at most {NAME_LENGTH}")
    if not NAME.fullmatch(name):
        suggestion = re.sub(r"[^a-z0-9]+", "-", redact(name).lower()).strip("-")[:NAME_LENGTH].strip("-")
        wrong = f"may hold only a-z, 0-9 and - (not at the ends), it is {show(name)}"
        return Problem((), wrong, f"write for example `{suggestion or 'my-run'}`")
    return None


def name(value: str) -> str:
    if problem := name_problem(value):
        refuse(problem)
    return value


def env_name(value: str) -> str:
    if not ENV_NAME.fullmatch(value):
        refuse(Problem((), "is no name of an environment variable", ENV_ADVICE))
    return value


def reference(value: str) -> str:
    """`package.module:name`; whether it can be imported is checked where the code is."""
    if CODE.fullmatch(value):
        return value
    path, _, attribute = value.partition(":")
    advice = "write `package.module:name`, as in an import"
    if path.endswith(".py") or "/" in path:
        module = path.removeprefix("./").removesuffix(".py").replace("/", ".")
        advice = f"write it as in an import: `{redact(module)}:{redact(attribute) or 'name'}`"
    refuse(Problem((), f"is no reference to code, it is {show(value)}", advice))


def location(*schemes: str, local: bool) -> Callable[[str], str]:
    """A check of a URI with one of `schemes`, or also of a plain path where `local`."""
    allowed = " or ".join([f"{scheme}://" for scheme in schemes] + ["a local path"] * local)

    def check(uri: str) -> str:
        scheme, separator, _ = uri.partition("://")
        if not separator and local:
            return uri
        if scheme not in schemes or not separator:
            refuse(Problem((), f"cannot be read from there, it is {show(uri)}", f"use {allowed}"))
        shape, written = SHAPES[scheme]
        if not shape.fullmatch(uri):
            refuse(Problem((), f"is not {written}, it is {show(uri)}"))
        return uri

    return check


def plain_setting(key: str) -> str:
    """The name of an environment variable a job may set. Its value is never shown."""
    if names_a_secret(key):
        refuse(Problem((), "is a secret by its name (the value is not shown)", SECRETS_ADVICE))
    if key.upper().startswith(POOL_ENV):
        refuse(
            Problem((), "belongs to the pool, not to a job", "leave it out: the platform team sets it in the pool file")
        )
    return env_name(key)


# ---- sections


def model(section: Model) -> list[Problem]:
    found: list[Problem] = []
    if section.path and section.config:
        found.append(
            Problem(("config",), "stands beside `path`: a model is loaded or made from scratch", "keep one of the two")
        )
    if not section.path and section.config is None:
        found.append(
            Problem((), "needs `path` or `config`", "write `path: hf://ORG/NAME` or `config: {model_type: qwen2, ...}`")
        )
    if section.config is not None:
        found += _scratch(section, section.config)
    elif section.tokenizer is not None and not isinstance(section.tokenizer, str):
        found.append(
            Problem(
                ("tokenizer",), "cannot be trained for weights that exist", "leave it out, or name a tokenizer's path"
            )
        )
    return found


def _scratch(section: Model, config: Mapping[str, Any]) -> list[Problem]:
    found: list[Problem] = []
    if not isinstance(config.get("model_type"), str):
        found.append(Problem(("config", "model_type"), "is missing", "write for example `model_type: qwen2`"))
    for key, own in foreign_keys(config).items():
        family = config["model_type"]
        found.append(Problem(("config", key), f"is no key of {family}", f"{family} calls it `{own}`"))
    for key, near in misspelt_keys(config).items():
        found.append(Problem(("config", key), "is no key of this model", f"did you mean `{near}`?"))
    if section.tokenizer is None:
        found.append(
            Problem(
                ("tokenizer",),
                "is missing",
                "a model from scratch needs one: `tokenizer: {train: {vocab_size: 4096}}` or a path",
            )
        )
    elif not isinstance(section.tokenizer, str):
        trained, embedding = section.tokenizer.train.vocab_size, config.get("vocab_size")
        if isinstance(embedding, int) and embedding < trained:
            wrong = f"is {embedding}, but the tokenizer to train has {trained} entries"
            found.append(Problem(("config", "vocab_size"), wrong, f"write {trained} or more, or leave it out"))
    return found


def data_source(section: DataSource) -> list[Problem]:
    found: list[Problem] = []
    known = RECORD_FIELDS.get(section.format) or sorted({name for names in RECORD_FIELDS.values() for name in names})
    for name, own in section.fields.items():
        if name not in known:
            near = nearest(name, list(known))
            advice = f"did you mean `{near}`?" if near else f"it can rename {', '.join(known)}"
            found.append(Problem(("fields", name), f"is no field of format {section.format}", advice))
        elif not own:
            found.append(Problem(("fields", name), "is empty", f"write `{name}: your_field`"))
    return found


def data(section: Data) -> list[Problem]:
    weights = [source.weight for source in section.train]
    found: list[Problem] = []
    if any(weights) and not all(weights):
        first = weights.index(None)
        found.append(
            Problem(
                ("train", first, "weight"),
                "is missing, but other sources have one",
                "give every source a weight, or none",
            )
        )
    found += [
        Problem(("eval", i, "weight"), "has no meaning in evaluation, which reads every row once", "leave it out")
        for i, source in enumerate(section.eval)
        if source.weight is not None
    ]
    return found


def train(section: Train) -> list[Problem]:
    found: list[Problem] = []
    if section.epochs is None and section.max_steps is None:
        found.append(
            Problem(
                (), "needs `epochs` or `max_steps` (or both: whichever ends first)", "write for example `epochs: 1`"
            )
        )
    if isinstance(section.warmup, float) and section.warmup >= 1:
        wrong = f"must be a fraction below 1 or a whole number of steps, it is {section.warmup:g}"
        found.append(
            Problem(("warmup",), wrong, f"write {int(section.warmup)} for steps, or for example 0.03 for a fraction")
        )
    elif isinstance(section.warmup, int) and section.max_steps is not None and section.warmup >= section.max_steps:
        found.append(Problem(("warmup",), f"takes {section.warmup} steps of {section.max_steps}", "write fewer"))
    if section.schedule != "wsd" and section.decay != type(section).model_fields["decay"].default:
        found.append(
            Problem(
                ("decay",), f"has no meaning with schedule {section.schedule}", "leave it out, or write `schedule: wsd`"
            )
        )
    if section.schedule == "wsd" and isinstance(section.warmup, float) and section.warmup + section.decay > 1:
        found.append(
            Problem(("decay",), "and `warmup` are together more than the whole run", "write less for one of them")
        )
    if section.schedule == "constant" and section.min_lr_ratio:
        found.append(Problem(("min_lr_ratio",), "has no meaning with schedule constant", "leave it out"))
    return found


def parallelism(section: Parallelism) -> list[Problem]:
    found: list[Problem] = []
    if section.strategy == "ddp" and section.offload != "none":
        found.append(
            Problem(
                ("offload",),
                "needs a ZeRO strategy; ddp keeps every state on the accelerator",
                "write `strategy: zero3`",
            )
        )
    if section.offload == "nvme" and section.strategy in ("zero1", "zero2"):
        found.append(
            Problem(
                ("offload",),
                f"nvme needs zero3, the strategy is {section.strategy}",
                "write `strategy: zero3` or `offload: cpu`",
            )
        )
    return found


def accelerator_range(section: Range) -> list[Problem]:
    if section.max >= section.min:
        return []
    return [Problem(("max",), f"is {section.max}, less than min ({section.min})", f"write {section.min} or more")]


def job(section: Job) -> list[Problem]:
    found: list[Problem] = []
    if section.train.method == "pretrain" and not section.code.render:
        for part in ("train", "eval"):
            for i, source in enumerate(getattr(section.data, part)):
                if source.format not in WITHOUT_TURNS:
                    wrong = f"is {source.format}, but method pretrain reads text or tokens"
                    found.append(Problem(("data", part, i, "format"), wrong, "write `format: text`, or `method: sft`"))
    if section.model.tokenizer is not None and not isinstance(section.model.tokenizer, str) and not section.code.render:
        found += [
            Problem(
                ("data", part, i, "format"),
                "is tokens: ids mean something only in the tokenizer that made them; model.tokenizer is to be trained",
                "write `tokenizer: PATH` under model:",
            )
            for part in ("train", "eval")
            for i, source in enumerate(getattr(section.data, part))
            if source.format == "tokens"
        ]
    names = [secret.env for secret in section.secrets]
    for i, variable in enumerate(names):
        if variable in names[:i] or variable in section.env:
            wrong = f"sets {variable}, which is set already"
            found.append(Problem(("secrets", i, "env"), wrong, "keep one of the two"))
    return found
