"""The Hugging Face Hub when it does not answer."""

from __future__ import annotations

from warpbeam.errors import InfraError, UserError, WarpbeamError


def hub_away(uri: str, error: BaseException) -> WarpbeamError:
    """What to raise when `uri` could not be fetched: told not to, which no second try changes, or not reached."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    copied = "or copy the model to s3:// or a local folder and write that path"
    if HF_HUB_OFFLINE:
        return UserError(
            f"{uri} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it",
            why="HF_HUB_OFFLINE=1 is set in the environment",
            fix=f"unset HF_HUB_OFFLINE, {copied}",
            reason="hub_offline",
        )
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return InfraError(
        f"{uri} could not be fetched from the Hugging Face Hub",
        why=lines[0],
        fix=f"check the network (HTTPS_PROXY, HF_ENDPOINT), {copied}",
        reason="hub_unreachable",
    )
