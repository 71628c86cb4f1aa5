"""Workers that wait for a failure: processes with the engine imported, beside the ranks of a run that has come far.

Most of a recovery is Python: a new worker imports torch, transformers and DeepSpeed, and competes for the cores with
its neighbours that do the same. Ray gives a new actor an idle worker of the same job and runtime environment where
there is one, and a raylet starts such workers when it is asked to. So the ranks run in an environment whose set-up hook
imports, and once a run has lasted, each machine's raylet is asked for as many more: the next attempt begins warm.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Mapping
from typing import Any

import psutil

KEPT_S = 30 * 24 * 3600
MEMORY_EACH = 1 << 30  # of a worker with everything imported: about 0.6 GB of its own
MODULES_VARIABLE = "WARPBEAM_IMPORT_AHEAD"
# How Ray tells a worker its `worker_process_setup_hook`; that key itself is for whole jobs only.
_HOOK_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"


def runtime_env(strategy: str, *, on_cpu: bool, env: Mapping[str, str]) -> dict[str, Any]:
    """Of the ranks: with a hook that imports the engine.

    Args:
        env: the job's plain settings; libraries read some of them (HF_HOME) when they are imported.
    """
    modules = ["ray.train.torch", "transformers.modeling_utils"]
    if on_cpu:  # on GPUs DeepSpeed may look at the devices before Ray has said which of them are this rank's
        modules += ["warpbeam.train.worker", *(["deepspeed"] if strategy.startswith("zero") else [])]
    hook = f"{warm_up.__module__}.{warm_up.__name__}"
    return {"env_vars": {**env, _HOOK_VARIABLE: hook, MODULES_VARIABLE: ",".join(modules)}}


def warm_up() -> None:
    """Ray's set-up hook in each worker of a rank. What fails here fails again, and is told, where it is needed."""
    for name in os.environ[MODULES_VARIABLE].split(","):
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def keep_spares(after_s: float | None) -> None:
    """From a rank: have a spare for each rank of this machine once the run has lasted `after_s`. Returns at once."""
    if after_s is None or os.environ["LOCAL_RANK"] != "0":
        return
    timer = threading.Timer(after_s, _keep, [int(os.environ["LOCAL_WORLD_SIZE"])])
    timer.daemon = True
    timer.start()


def _keep(count: int) -> None:
    if _free_bytes() < 4 * count * MEMORY_EACH:
        return
    try:
        _ask_raylet(count)
    except Exception as error:  # a release of Ray whose raylet does not know the question, say
        print(f"no spare workers, a recovery will take longer: {type(error).__name__}: {error}", flush=True)


def _free_bytes() -> int:
    """Of this machine, or of this container where it has a limit."""
    from ray._common.utils import get_system_memory
    from ray._private.utils import get_used_memory

    return min(int(psutil.virtual_memory().available), int(get_system_memory()) - int(get_used_memory()))


def _ask_raylet(count: int) -> None:
    """Have this machine's raylet start idle workers. Ray has no Python function for it, only the remote call."""
    import ray
    from ray._private import worker
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc

    here = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == here)
    request = node_manager_pb2.PrestartWorkersRequest(
        language=common_pb2.PYTHON,
        job_id=worker.global_worker.current_job_id.binary(),
        keep_alive_duration_secs=KEPT_S,
        num_workers=count,
    )
    request.runtime_env_info.serialized_runtime_env = worker.global_worker.runtime_env
    channel = init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
    node_manager_pb2_grpc.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=30)
