"""A run that goes on keeps what its first plan chose, where the job still leaves it open. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpbeam.job import Job, parse_job


def as_chosen(job: Job, plan: Mapping[str, Any], world_size: int) -> Job:
    """`job` with the open keys filled in from the run's earlier `plan` (as the record has it).

    The same object where nothing is open, or where the number of ranks is another: then the plan chooses anew.
    """
    if plan["world_size"] != world_size or plan["global_batch"] != job.train.global_batch:
        return job
    content = job.to_dict()
    before = dict(content["parallelism"])
    for key in ("strategy", "offload", "micro_batch"):
        if content["parallelism"].get(key) is None:
            content["parallelism"][key] = plan[key]
    is_open = job.train.activation_checkpointing is None
    if is_open:  # older versions recomputed only where a job said so, and did not write it down
        content["train"]["activation_checkpointing"] = plan.get("activation_checkpointing", False)
    if content["parallelism"] == before and not is_open:
        return job
    return parse_job(content, name=f"the job of run {job.name}")
