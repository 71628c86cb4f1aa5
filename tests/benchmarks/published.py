"""Reads rows of published_runs.csv into the planner's own question (`Setup`), or says what is missing.

What a row does not state takes a default that depends only on its other columns; each default taken is listed in
`Reading.assumed`. Only a row without a model size or an accelerator cannot be read.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.benchmarks.published_shapes import row_shape
from warpbeam.errors import UserError
from warpbeam.plan.setup import Checkpointing, Layout, Lora, Optimizer, Precision, Recipe, Setup, Sharding, Stack

DATA: Final = Path(__file__).parent / "data" / "published_runs.csv"
COUNTS: Final = (
    *("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "gpus", "nodes", "tp", "pp", "cp", "dp"),
    *("micro_batch", "global_batch", "seq_len"),
)
NUMBERS: Final = (
    *COUNTS,
    "params_B",
    *("measured_peak_mem_GiB", "measured_tokens_per_s_per_gpu", "measured_step_s", "measured_tflops_per_gpu"),
    "measured_MFU_pct",
)
MOST: Final = 1e9  # of anything that a row counts
WORDS: Final = (
    *("framework", "zero_stage_or_sharding", "act_ckpt", "precision", "optimizer", "offload", "lora", "attention"),
    *("fits", "notes"),
)
"""Columns whose capitals mean nothing; not the interconnect's, where GB and Gb are two things."""
NEEDED: Final = ("id", "model", *COUNTS, "params_B", "gpu", "interconnect_if_known", *WORDS[:-2], "notes")
"""Columns that a file must have; a measurement may be left out."""
Statistic = Literal["allocated", "reserved", "device", "unknown"]

# Part of a framework's name -> stack; first match wins.
STACKS: Final[tuple[tuple[str, Stack], ...]] = (
    ("automodel", "fsdp"),
    ("zero3", "megatron_deepspeed"),
    ("megatron-deepspeed", "megatron_deepspeed"),
    ("megatron+deepspeed", "megatron_deepspeed"),
    ("megatron", "megatron"),
    ("nemo", "megatron"),
    ("primus", "megatron"),
    ("meta internal", "megatron"),
    ("gpt-neox", "megatron_deepspeed"),
    ("nanotron", "nanotron"),
    ("internevo", "internevo"),
    ("torchtune", "torchtune"),
    ("litgpt", "litgpt"),
    ("lit-llama", "litgpt"),
    ("maxtext", "maxtext"),
    ("paxml", "maxtext"),
    ("hf ", "hf"),
    ("deepspeed", "deepspeed"),
    ("colossalai", "deepspeed"),
    ("xtuner", "deepspeed"),
    ("fsdp", "fsdp"),
    ("torchtitan", "fsdp"),
    ("composer", "fsdp"),
    ("cookbook", "fsdp"),
    ("fastchat", "fsdp"),
    ("alpaca", "fsdp"),
    ("flash-attn training", "fsdp"),
)
MEGATRON_LIKE: Final = ("megatron", "megatron_deepspeed", "nanotron", "internevo")
ADAPTER_RANK: Final[dict[Stack, int]] = {"hf": 64, "deepspeed": 64}  # QLoRA's; the other recipes' default is 8
USUAL_REPLICAS: Final = 8
UNCHECKPOINTED: Final = ("alpaca", "lit-llama", "flash-attn training")  # do not checkpoint unless changed


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One row.

    Attributes:
        setup: None where something needed is missing.
        missing: what, in words; empty when there is a setup.
        assumed: columns that took a default.
        statistic: what the measured peak counts.
        last_stage: measured on the last pipeline stage (else the largest).
        scored: neither lowq nor tiny.
        complete: the columns that the strict bar asks for are all stated.
    """

    id: str
    source: str
    row: Mapping[str, str]
    notes: Mapping[str, str]
    setup: Setup | None
    missing: str
    assumed: tuple[str, ...]
    accelerator: str
    statistic: Statistic
    last_stage: bool

    @property
    def scored(self) -> bool:
        return self.notes.get("lowq") != "1" and self.notes.get("tiny") != "1"

    @property
    def layout_unknown(self) -> bool:
        """Neither the number of accelerators nor any split is stated: memory cannot be said."""
        return not self.row["gpus"] and not self.row["tp"]

    @property
    def guessed(self) -> bool:
        """What activations depend on took a default."""
        return bool({"act_ckpt", "seq_len", "micro_batch"} & set(self.assumed))

    @property
    def complete(self) -> bool:
        wanted = ("hidden", "layers", "micro_batch", "seq_len", "act_ckpt", "precision")
        return all(self.row[name] for name in wanted)

    def number(self, column: str) -> float | None:
        return float(self.row[column]) if self.row[column] else None

    @property
    def peak_gib(self) -> float | None:
        return self.number("measured_peak_mem_GiB")


def read_rows(path: Path = DATA) -> list[Reading]:
    """Every row of a file with the columns of published_runs.csv. Raises UserError where there is no such file."""
    fix = f"name a CSV file with the columns of {DATA.name} (data/README.md explains them)"
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or ()
            if lacking := [name for name in NEEDED if name not in names]:
                what = f"{path} lacks the column{'s' if len(lacking) > 1 else ''} {', '.join(lacking)}"
                other = next((mark for mark in (";", "\t", "|") if len(names) == 1 and mark in names[0]), None)
                why = f"its first line is cut by {other!r}; columns are cut by ','" if other else ""
                raise UserError(what, why=why, fix=fix, reason="bad_file")
            return [read_row(row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read", why=str(error), fix=fix, reason="bad_file") from error


def clean(row: Mapping[str, str | None]) -> dict[str, str]:
    """A row without surrounding blanks or capitals that mean nothing; whole numbers without a fraction, and empty
    where a number is no number or nobody stated it."""
    found = {name: (value or "").strip() for name, value in row.items() if isinstance(name, str)}
    found |= {name: found.get(name, "").lower() for name in WORDS} | {"gpu": found.get("gpu", "").upper()}
    for name in NUMBERS:
        found.setdefault(name, "")
        try:
            number = float(found[name])
        except ValueError:
            found[name] = ""
        else:
            if not 0 < number < MOST:
                found[name] = ""
            elif name in COUNTS:
                found[name] = str(max(1, round(number)))
    return found


def read_row(row: Mapping[str, str]) -> Reading:
    """One row; pure."""
    row = clean(row)
    notes = dict(_notes(row["notes"]))
    assumed: list[str] = []
    setup, missing = None, ""
    shape = row_shape(row, notes)
    if shape is None:
        missing = "the model's size (params_B, or hidden and layers)"
    else:
        assumed += [name for name in ("hidden", "layers", "ffn", "vocab") if not row[name]]
        stack = _stack(row)
        layout = _layout(row, notes, stack, assumed)
        recipe = _recipe(row, notes, layout, stack, shape.parameters, assumed)
        setup = Setup(shape=shape, layout=layout, recipe=recipe)
    return Reading(
        id=row["id"],
        source=notes.get("src", "unknown"),
        row=row,
        notes=notes,
        setup=setup,
        missing=missing,
        assumed=tuple(assumed),
        accelerator=row["gpu"],
        statistic=_statistic(notes.get("mem_stat", ""), row),
        last_stage=notes.get("rank", "").startswith("last"),
    )


def _notes(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(";"):
        if match := re.match(r"\s*([A-Za-z_0-9]+)=(.*)", part):
            yield match[1], match[2].strip()


def _stack(row: Mapping[str, str]) -> Stack:
    framework = row["framework"].lower()
    for part, stack in STACKS:
        if part in framework:
            return stack
    return "hf"


def _int(row: Mapping[str, str], column: str, default: int) -> int:
    return int(float(row[column])) if row[column] else default


def _layout(row: Mapping[str, str], notes: Mapping[str, str], stack: Stack, assumed: list[str]) -> Layout:
    tp, pp, cp = (_int(row, name, 1) for name in ("tp", "pp", "cp"))
    ep = int(notes["ep"]) if notes.get("ep", "").isdigit() else 1
    dp = _int(row, "dp", 0)
    accelerators = _int(row, "gpus", 0) or tp * pp * cp * dp
    if not accelerators:  # one where the model is not split either, else a few replicas, enough for the experts
        assumed.append("gpus")
        accelerators = tp * pp * cp * max(ep, USUAL_REPLICAS) if row["tp"] else 1
    accelerators = max(accelerators // (tp * pp * cp), 1) * tp * pp * cp
    nodes = _int(row, "nodes", 0)
    on_node = 4 if row["gpu"].startswith(("GB", "TPU")) else 8
    offload = row["offload"].lower()
    paged = "paged" in row["optimizer"].lower()
    sharding = _sharding(row, stack, accelerators // (tp * pp), assumed)
    return Layout(
        accelerators=accelerators,
        per_node=max(1, accelerators // nodes) if nodes else min(accelerators, on_node),
        sharding=sharding,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=max(1, min(ep, accelerators // pp)),
        sequence_parallel=_sequence_parallel(row, notes, stack, tp),
        virtual_stages=_virtual_stages(row, notes, pp),
        offload="cpu" if "cpu" in offload or paged else "none",
        offload_parameters=sharding in ("zero3", "fsdp")
        and any(part in offload for part in ("param", "full", "deepsp")),
        stack=stack,
    )


def _sequence_parallel(row: Mapping[str, str], notes: Mapping[str, str], stack: Stack, tp: int) -> bool:
    if tp == 1:
        return False
    if "zero3" in row["framework"].lower():
        return True  # DeepSpeed's partition_activations: what checkpointing keeps is split over tensor parallelism
    if notes.get("sp") in ("0", "1"):
        return notes["sp"] == "1"
    return stack not in ("megatron_deepspeed", "internevo")  # these are older


def _virtual_stages(row: Mapping[str, str], notes: Mapping[str, str], pp: int) -> int:
    if pp == 1:
        return 1
    if notes.get("vp", "").split(" ")[0].isdigit():
        return int(notes["vp"].split(" ")[0])
    per_chunk = notes.get("vpp_layers_per_stage", "")
    if per_chunk.isdigit() and row["layers"]:
        return max(1, int(row["layers"]) // pp // int(per_chunk))
    return int(notes["vpp"]) if notes.get("vpp", "").isdigit() else 1


def _sharding(row: Mapping[str, str], stack: Stack, replicas: int, assumed: list[str]) -> Sharding:
    text = row["zero_stage_or_sharding"].lower()
    found: tuple[tuple[str, Sharding], ...] = (
        ("hybrid_shard", "hsdp"),
        ("grad_op", "zero2"),
        ("zero1/2", "distributed_optimizer"),
        ("distributed_opt", "distributed_optimizer"),
        ("megatron_fsdp", "fsdp"),
        ("fsdp", "fsdp"),
        ("gemini", "zero3"),
        ("zero3", "zero3"),
        ("zero2", "zero2"),
        ("zero1", "zero1"),
        ("zero0", "ddp"),
        ("ddp", "ddp"),
        ("none", "ddp"),
    )
    for part, sharding in found:
        if part in text:
            return sharding
    assumed.append("zero_stage_or_sharding")
    if stack in ("megatron", "nanotron"):
        return "distributed_optimizer"
    if stack in ("megatron_deepspeed", "internevo"):
        return "zero1"
    if stack in ("fsdp", "maxtext"):
        return "fsdp" if replicas > 1 else "ddp"
    return "zero2" if "deepspeed" in text or stack == "deepspeed" else "ddp"


def _recipe(
    row: Mapping[str, str],
    notes: Mapping[str, str],
    layout: Layout,
    stack: Stack,
    parameters: int,
    assumed: list[str],
) -> Recipe:
    lora = _lora(row, stack)
    for name in ("seq_len", "micro_batch", "precision", "act_ckpt"):
        if not row[name]:
            assumed.append(name)
    micro_batch = _int(row, "micro_batch", 0)
    global_batch = _int(row, "global_batch", 0)
    if not micro_batch:
        rows = global_batch // layout.dp if global_batch else 2 if lora is not None else 1
        micro_batch = max(1, min(rows, 4 if parameters < 4e9 else 2)) if stack not in MEGATRON_LIKE else 1
    seq_len = _int(row, "seq_len", _usual_length(row["framework"].lower(), stack))
    precision = _precision(row)
    text = row["precision"].lower()
    return Recipe(
        seq_len=seq_len,
        micro_batch=micro_batch,
        # Without a stated batch: a pipeline is filled, others do not accumulate.
        global_batch=max(global_batch or micro_batch * layout.dp * layout.pp, 1),
        precision=precision,
        optimizer=_optimizer(row["optimizer"].lower()),
        checkpointing=_checkpointing(row, stack, lora is not None, parameters),
        fp32_gradients=_fp32_gradients(text, stack, row["framework"].lower()),
        eager_attention=_eager(row),
        chunked_loss="composer" in row["framework"],  # its fused cross-entropy works in place
        master_weights=_master_weights(text, stack, row["framework"].lower(), row["zero_stage_or_sharding"]),
        offload_activations="act" in row["offload"].lower(),
        lora=lora,
    )


def _usual_length(framework: str, stack: Stack) -> int:
    if "torchtitan" in framework:
        return 8192  # its Llama 3 configs
    return 2048 if stack in ("hf", "deepspeed", "torchtune", "litgpt") else 4096


def _precision(row: Mapping[str, str]) -> Precision:
    text = row["precision"].lower()
    if any(part in text for part in ("fp8", "float8", "fp4")) and "nf4" not in text:
        return "fp8"
    if "fp16" in text or (not text and row["gpu"].startswith("V100")):
        return "fp16"
    return "fp32" if text == "fp32" else "bf16"


def _optimizer(text: str) -> Optimizer:
    if "8-bit" in text or "8bit" in text:
        return "adamw_8bit"
    return "muon" if "muon" in text else "adafactor" if "adafactor" in text else "adamw"


def _fp32_gradients(precision: str, stack: Stack, framework: str) -> bool:
    if "fp32 grad" in precision:
        return True
    if "nemo" in framework or "bridge" in framework:
        return False  # their recipes set grad_reduce_in_fp32 to false
    # Megatron accumulates bf16 gradients in fp32; fp16 stacks and InternEvo in 16 bits; FSDP keeps fp32 shards.
    return stack in ("megatron", "fsdp", "maxtext", "nanotron") and "fp16" not in precision


def _master_weights(precision: str, stack: Stack, framework: str, stage: str) -> bool:
    if "true" in precision or stack in ("torchtune", "litgpt"):
        return False
    if any(name in framework for name in ("notebook", "automodel")):
        return False  # these load and train in 16 bits
    return not (stack == "hf" and "deepspeed" in framework and not stage)  # a model loaded in 16 bits, nothing sharded


def _eager(row: Mapping[str, str]) -> bool:
    text = row["attention"].lower()
    if text:
        return any(part in text for part in ("no flash", "unfused", "local"))
    return row["gpu"].startswith(("V100", "TITANRTX"))


def _checkpointing(row: Mapping[str, str], stack: Stack, lora: bool, parameters: int) -> Checkpointing:
    if row["act_ckpt"] == "selective" and _recomputes_little(row["notes"], "moe=1" in row["notes"]):
        return "none"
    if row["act_ckpt"] in ("none", "selective", "full"):
        return row["act_ckpt"]  # type: ignore[return-value]
    if any(name in row["framework"].lower() for name in UNCHECKPOINTED):
        return "none"
    if stack == "megatron":
        return "none"  # the recipes' default: only the attention core, which a flash kernel recomputes anyway
    if stack == "fsdp":
        return "selective"
    if stack in ("nanotron", "litgpt"):
        return "none"
    return "full" if lora or parameters > 1e9 else "none"


def _recomputes_little(text: str, mixture: bool) -> bool:
    """Attention's core (a flash kernel keeps little of it), norms, activations of experts, but not the wide MLP."""
    found = re.findall(r"recompute(?:_modules=\[| modules: selective:| )([a-z_+ ]+)", text)
    modules = set(re.split(r"[+ ]", " ".join(found)))
    return bool(found) and ("moe" if mixture else "mlp") not in modules


def _lora(row: Mapping[str, str], stack: Stack) -> Lora | None:
    text, precision = row["lora"].lower(), row["precision"].lower()
    if text in ("", "none"):
        return None
    rank = int(match[1]) if (match := re.search(r"\br(\d+)", text)) else ADAPTER_RANK.get(stack, 8)
    four = "nf4" in precision or "int4" in precision or text.startswith(("q-lora", "qlora"))
    return Lora(
        rank=rank,
        base_bits=4 if four else 8 if "8bit" in precision else None,
        embeddings="emb" in text,
    )


def _statistic(text: str, row: Mapping[str, str]) -> Statistic:
    if "smi" in text:
        return "device"
    if "reserved" in text:
        return "reserved"
    if "alloc" in text or "active" in text:
        return "allocated"
    return "unknown"
