"""The model of a job: from a configuration, or an empty shell that its weights are then read into.

No rank ever holds the whole of a sharded model: under ZeRO-3 the shell is born in pieces, and each rank reads only its
own ranges of the weights, by the same way that a checkpoint is restored. From scratch every rank draws the same
numbers, whatever the world.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from warpbeam.errors import UserError
from warpbeam.storage import layout
from warpbeam.train import hooks

if TYPE_CHECKING:
    from warpbeam.checkpoint.weights import HfWeights
    from warpbeam.job import Job
    from warpbeam.plan.plan import Plan
    from warpbeam.storage.config import StorageConfig
    from warpbeam.storage.store import ObjectStore

BORN_SHARDED = 1_000_000_000
"""Parameters from which on a model from scratch is initialised in pieces too; below, the whole fits anywhere."""
log = logging.getLogger(__name__)


@dataclass
class Built:
    """A model, and where its weights are to come from (None: it has them)."""

    module: torch.nn.Module
    base: HfWeights | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def config(self) -> Any:
        """Of a transformers model; None for a module of the user's own."""
        return getattr(self.module, "config", None)


def build(
    job: Job,
    plan: Plan,
    root: Path,
    storage: StorageConfig,
    tokenizer: Any,
    *,
    device: torch.device,
    cache_dir: Path,
) -> Built:
    """Build the job's model. Collective under ZeRO-3.

    Args:
        tokenizer: of the prepared data; its vocabulary must fit the embedding.
        cache_dir: on this node's disk, for weights that are fetched.

    Raises:
        UserError: an unknown model, a vocabulary that does not fit, a hook that returns no module.
    """
    if job.code.model:
        return Built(_from_hook(job))
    base: HfWeights | None = None
    if job.model.path:
        base = _weights(job, root, storage, cache_dir)
        config = _read_config(base.folder, job.model.trust_remote_code)
    else:
        config = scratch_config(job.model.config or {}, tokenizer)
    _check_vocabulary(config, tokenizer, chat=job.train.method == "sft")
    # A loop of the user's own shards as it likes, so it gets the model whole.
    strategy = "own" if job.recipe else plan.strategy
    module = _make(config, plan, strategy, job.model.trust_remote_code, empty=base is not None, device=device)
    if base is not None:
        base = _with_prefix(base, module)
    if plan.activation_checkpointing:
        _checkpoint_activations(module)
    module.train()
    return Built(module, base)


def scratch_config(given: Mapping[str, Any], tokenizer: Any) -> Any:
    """A transformers configuration from the job's mapping; what the tokenizer knows is filled in."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    from warpbeam.data.tokenizer import vocabulary_size

    settings = {"vocab_size": vocabulary_size(tokenizer), **given}
    model_type = settings.pop("model_type", None)
    settings.setdefault("bos_token_id", tokenizer.bos_token_id)
    settings.setdefault("eos_token_id", tokenizer.eos_token_id)
    if model_type is None:
        raise UserError(
            "model.config has no model_type",
            fix="write for example `model_type: qwen2` under model.config:",
            reason="no_model_type",
        )
    try:
        return AutoConfig.for_model(model_type, **settings)
    except (ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise UserError(
            f"model.config is not a configuration of {model_type!r}",
            why=" ".join(str(error).split())[:300],
            fix="use the keys of that model's config.json",
            reason="bad_model_config",
        ) from error


def write_model_files(store: ObjectStore, job: Job, built: Built | None, tokenizer: Any) -> None:
    """The model's small files beside the run, once: an export copies them. config.json comes last."""
    prefix = layout.run_model_prefix(job.team, job.name)
    if store.head(f"{prefix}/config.json") is not None:
        return
    with tempfile.TemporaryDirectory(prefix="warpbeam-model-") as name:
        folder = Path(name)
        tokenizer.save_pretrained(folder)
        if built is not None and hasattr(built.config, "save_pretrained"):
            built.config.save_pretrained(folder)
            _generation_config(built.config, tokenizer).save_pretrained(folder)
        if built is not None and built.base is not None and job.model.trust_remote_code:
            for path in built.base.folder.glob("*.py"):
                shutil.copy(path, folder / path.name)
        files = [path for path in folder.iterdir() if path.is_file()]
        for path in sorted(files, key=lambda path: path.name == "config.json"):
            store.upload(path, f"{prefix}/{path.name}")


def _generation_config(config: Any, tokenizer: Any) -> Any:
    """Where generation stops, by the tokenizer's own rules, and what fills up a batch."""
    from transformers import GenerationConfig

    from warpbeam.data.tokenizer import stop_ids

    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=list(stop_ids(tokenizer)) or config.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _from_hook(job: Job) -> torch.nn.Module:
    target = job.code.model or ""
    module = hooks.load(target, "code.model")(job)
    if not isinstance(module, torch.nn.Module):
        raise UserError(
            f"code.model: {target} returned {type(module).__name__}",
            fix="return a torch.nn.Module that takes input_ids and returns logits",
            reason="model_hook",
        )
    return module


def _weights(job: Job, root: Path, storage: StorageConfig, cache_dir: Path) -> HfWeights:
    from warpbeam.checkpoint.weights import HfWeights, fetch_model_folder

    path = job.model.path or ""
    if "://" not in path:
        path = str(root / Path(path).expanduser())
    return HfWeights(fetch_model_folder(path, storage, cache_dir, revision=job.model.revision))


def _with_prefix(weights: HfWeights, module: torch.nn.Module) -> HfWeights:
    """Base models are published with and without the class's prefix before their tensors' names."""
    from warpbeam.checkpoint.weights import HfWeights

    return HfWeights(weights.folder, base_prefix=getattr(module, "base_model_prefix", ""))


def _read_config(folder: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"the configuration of the model in {folder} cannot be used",
            why=str(error).strip().splitlines()[0][:300],
            fix="check model.path; a model with code of its own needs model.trust_remote_code: true",
            reason="bad_model_config",
        ) from error


def _check_vocabulary(config: Any, tokenizer: Any, *, chat: bool) -> None:
    from warpbeam.data.tokenizer import check_tokenizer

    check_tokenizer(tokenizer, chat=chat, embedding_rows=getattr(config.get_text_config(), "vocab_size", None))


def _make(
    config: Any, plan: Plan, strategy: str, trust_remote_code: bool, *, empty: bool, device: torch.device
) -> torch.nn.Module:
    """The module: drawn from the seeded generator, or empty; in pieces where it is large and ZeRO-3 shards it."""
    pad = getattr(config, "pad_token_id", None)
    config.pad_token_id = None  # else that row of the embedding would never be trained
    in_pieces = strategy == "zero3" and (empty or (plan.parameters or 0) >= BORN_SHARDED)
    # DeepSpeed keeps float32 masters beside bf16 weights; everybody else keeps float32 weights.
    dtype = torch.bfloat16 if plan.precision == "bf16" and empty and strategy.startswith("zero") else torch.float32
    with ExitStack() as stack:
        stack.enter_context(_uninitialised())
        if in_pieces:
            stack.enter_context(_sharded_at_birth(plan))
        elif empty and device.type == "cuda":
            stack.enter_context(device)
        module = _instantiate(config, dtype, trust_remote_code)
    module.tie_weights()
    if not empty:
        _initialise(module, in_pieces)
    config.pad_token_id = pad
    config.architectures = [type(module).__name__]
    return module if in_pieces else module.to(device)  # type: ignore[no-any-return]


def _instantiate(config: Any, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        raise UserError(
            f"no causal language model can be built from the configuration of {config.model_type!r}",
            why=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}",
            fix="check the configuration, or build the model yourself: code.model",
            reason="model_not_built",
        ) from error


def _initialise(module: Any, in_pieces: bool) -> None:
    """Draw the weights: the same numbers in one piece on each rank as cut up over all (where rank 0 draws)."""
    if not in_pieces:
        module.initialize_weights()
        return
    from transformers.integrations.deepspeed import initialize_weights_zero3

    initialize_weights_zero3(module)


@contextmanager
def _uninitialised() -> Iterator[None]:
    """Build without drawing random numbers: every value is about to be read, or drawn afterwards."""
    from transformers.initialization import no_init_weights

    with no_init_weights():
        yield


@contextmanager
def _sharded_at_birth(plan: Plan) -> Iterator[None]:
    """Each module's parameters are cut up as soon as it is made, so that the whole never exists."""
    from transformers.integrations.deepspeed import prevent_arange_dtype_change

    from warpbeam.train.strategies.deepspeed import joined_deepspeed

    deepspeed = joined_deepspeed()
    with prevent_arange_dtype_change(), deepspeed.zero.Init(config_dict_or_path=plan.deepspeed):
        yield


def _checkpoint_activations(module: torch.nn.Module) -> None:
    if not hasattr(module, "gradient_checkpointing_enable"):
        raise UserError(
            f"{type(module).__name__} cannot recompute activations",
            fix="set activation_checkpointing: false under train:",
            reason="no_activation_checkpointing",
        )
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]
