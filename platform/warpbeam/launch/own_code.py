"""Check the user's own functions before anything is spent: do they import, and can they be called as we will call them?

The check runs in a process of its own (`own_code_probe`): what a user's module does at import (threads, GPUs, prints,
exit) must not happen to the driver.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from warpbeam.errors import UserError
from warpbeam.job import Job

PATIENCE_S = 10.0
TIMEOUT_S = 180.0
_SIGNATURES = {
    "recipe": "train(ctx)",
    "code.render": "render(record, tokenizer)",
    "code.loss": "loss(outputs, batch)",
    "code.model": "model(job)",
    "code.callbacks": "Callback()",
}


@dataclass(frozen=True)
class Hook:
    """One function of the user's: the job's key, `module:name`, and how it will be called."""

    key: str
    target: str
    signature: str

    @property
    def argument_count(self) -> int:
        """Positional arguments of the call."""
        inside = self.signature.partition("(")[2].rstrip(")")
        return len([name for name in inside.split(",") if name.strip()])


def hooks(job: Job) -> list[Hook]:
    """Everything of the user's own that a job names."""
    named = [
        ("recipe", job.recipe),
        ("code.render", job.code.render),
        ("code.loss", job.code.loss),
        ("code.model", job.code.model),
        *(("code.callbacks", callback) for callback in job.code.callbacks),
    ]
    return [Hook(key, target, _SIGNATURES[key]) for key, target in named if target]


def python_path(root: Path) -> tuple[str, ...]:
    """Where own code is imported from: the job file's folder, then the folder of the command (the bundle's root)."""
    return tuple(dict.fromkeys((str(root), os.getcwd())))


def check_own_code(job: Job, root: Path) -> None:
    """Raise UserError for the first hook that does not import or does not take its arguments."""
    found = hooks(job)
    if not found:
        return
    arguments = [text for hook in found for text in (hook.target, str(hook.argument_count))]
    command = [sys.executable, "-m", "warpbeam.launch.own_code_probe", *arguments]
    paths = [*python_path(root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    names = ", ".join(hook.target for hook in found)
    slow = threading.Timer(PATIENCE_S, _say_slow, [names])
    slow.start()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False, cwd=os.getcwd()
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"importing your own code took longer than {TIMEOUT_S:.0f} s: {names}",
            fix="move work from the module's top level into the functions",
            reason="own_code_slow",
        ) from error
    finally:
        slow.cancel()
    problems = _read_answer(done.stdout)
    if problems is None:
        raise UserError(
            f"importing your own code ended the process (exit code {done.returncode})",
            why=done.stderr.strip()[-2000:] or done.stdout.strip()[-2000:],
            fix=f"try it: PYTHONPATH={root} python -c 'import {found[0].target.partition(':')[0]}'",
            reason="own_code_import",
        )
    for hook, problem in zip(found, problems, strict=True):
        if problem:
            raise UserError(
                f"{hook.key}: {hook.target!r} {problem['what']}",
                why=problem["why"],
                fix=problem["fix"] or f"it is called as {hook.signature}",
                reason="own_code",
            )


def _say_slow(names: str) -> None:
    print(f"still importing your own code ({names}), for at most {TIMEOUT_S:.0f} s", file=sys.stderr, flush=True)


def _read_answer(stdout: str) -> list[dict[str, str] | None] | None:
    last = stdout.strip().rpartition("\n")[2]
    try:
        answer: list[dict[str, str] | None] = json.loads(last)["warpbeam-own-code"]
    except (ValueError, KeyError, TypeError):
        return None
    return answer
