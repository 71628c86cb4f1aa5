"""A model's folder on this machine, fetched once for all its processes: local, from a bucket, or from the hub."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpbeam.checkpoint.node_cache import fetch_once
from warpbeam.errors import InfraError, UserError
from warpbeam.storage import open_uri
from warpbeam.storage.config import local_path
from warpbeam.storage.hub import hub_away

if TYPE_CHECKING:
    from warpbeam.storage import ObjectInfo, ObjectStore, StorageConfig

PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_WANTED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
_UNWANTED = ("*/*", "consolidated*.safetensors")  # the same weights again, in their authors' own layout


def fetch_model_folder(
    uri: str, config: StorageConfig | None, cache_dir: Path, *, revision: str = "main", with_code: bool = False
) -> Path:
    """A local folder with the model's safetensors, config and tokenizer; fetched once per node.

    Args:
        uri: a local path, `s3://bucket/prefix` or `hf://owner/name`.
        config: the pool's storage: its endpoint and credentials serve `s3://`.
        cache_dir: local disk shared by this node's processes.
        revision: branch, tag or commit, for `hf://`.
        with_code: also Python files (`trust_remote_code`), for `hf://`.

    Raises:
        UserError: nothing there, or only pickled weights.
        InfraError: the hub cannot be reached.
    """
    if uri.startswith("hf://"):
        return _from_hub(uri.removeprefix("hf://"), revision, with_code)
    if uri.startswith("s3://"):
        store, prefix = open_uri(uri, config)
        return fetch_from_store(store, prefix, uri, cache_dir)
    folder = local_path(uri) if uri.startswith("file://") else Path(uri).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"there is no model folder {folder}",
            fix="write a folder with config.json and *.safetensors, s3://BUCKET/PREFIX or hf://OWNER/NAME",
            reason="model_missing",
        )
    return folder


def fetch_from_store(store: ObjectStore, prefix: str, uri: str, cache_dir: Path) -> Path:
    """The same for a model below `prefix` of an open store; `uri` is its name in messages."""
    found = {info.key.removeprefix(f"{prefix}/"): info for info in store.list(f"{prefix}/") if info.size}
    if not found:
        raise UserError(f"there is no model at {uri}", why="no object begins with it", reason="model_missing")
    if "lineage.json" in found and "export.json" not in found:
        raise UserError(
            f"the export at {uri} is unfinished",
            why="it has no export.json, which an export writes last",
            fix="take another version, or export again",
            reason="model_unsealed",
        )
    if not any(name.endswith(".safetensors") for name in found):
        pickled = [name for name in found if name.endswith(PICKLED)]
        if pickled:
            raise only_pickled(uri, pickled)
    # The name carries what the objects are now: a model replaced under the same address is fetched anew.
    stamp = "\n".join(f"{name} {info.size} {info.etag}" for name, info in sorted(found.items()))
    name = re.sub(r"[^A-Za-z0-9]+", "-", uri)[-60:] + "-" + hashlib.sha256(f"{uri}\n{stamp}".encode()).hexdigest()[:16]
    return fetch_once(cache_dir, name, lambda temp: _download(store, found, temp))


def _download(store: ObjectStore, found: dict[str, ObjectInfo], folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, info in found.items():
        if "/" not in name and not name.endswith(PICKLED):
            store.download(info.key, folder / name)
    seal = folder / "export.json"
    for name, file in json.loads(seal.read_text())["files"].items() if seal.exists() else ():
        with (folder / name).open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != file["sha256"]:
                raise InfraError(
                    f"{found[name].key} is damaged", why="its sha256 is not the export's", reason="model_damaged"
                )


def _from_hub(name: str, revision: str, with_code: bool) -> Path:
    from huggingface_hub import errors, snapshot_download

    try:
        wanted = [*_WANTED, *(["*.py"] if with_code else [])]
        folder = Path(
            snapshot_download(name, revision=revision, allow_patterns=wanted, ignore_patterns=list(_UNWANTED))
        )
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise hub_away(f"hf://{name}", error) from error
    except errors.GatedRepoError as error:
        raise UserError(
            f"hf://{name} is gated",
            why=_first_line(error),
            fix="accept its licence on the hub, and give the job a token: secrets: [{env: HF_TOKEN, from: hf-token}]",
            reason="model_gated",
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise UserError(
            f"the hub has no model {name!r} with revision {revision!r} that you may see",
            why=_first_line(error),
            fix="check the name; a private model needs a token: secrets: [{env: HF_TOKEN, from: hf-token}]",
            reason="model_missing",
        ) from error
    except errors.HfHubHTTPError as error:
        raise InfraError(f"the hub failed on hf://{name}", why=_first_line(error), reason="hub_failed") from error
    if not any(folder.glob("*.safetensors")):
        raise only_pickled(f"hf://{name}", ["other formats than safetensors"])
    return folder


def _first_line(error: Any) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def only_pickled(where: str, files: list[str]) -> UserError:
    """The error for weights that only exist as pickles."""
    return UserError(
        f"{where} has its weights only as {', '.join(files[:3])}",
        why="such a file is a pickle: opening it runs whatever code it carries",
        fix="convert it once where you trust it: `AutoModelForCausalLM.from_pretrained(PATH).save_pretrained(NEW)` "
        "writes safetensors",
        reason="weights_pickled",
    )
