"""Check the user's own functions before anything is spent: do they import, and can they be called as we will call them?

The check runs in a process of its own: what a user's module does at import (threads, GPUs, prints, exit) must not
happen to the driver. `python -m warpbeam.launch.own_code ROOT NAME ARGUMENTS ...` is that process.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpbeam.errors import UserError
from warpbeam.job import Job

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
    command = [sys.executable, "-m", "warpbeam.launch.own_code", *arguments]
    paths = [*python_path(root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False, cwd=os.getcwd()
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"importing your own code took longer than {TIMEOUT_S:.0f} s: {', '.join(hook.target for hook in found)}",
            fix="move work from the module's top level into the functions",
            reason="own_code_slow",
        ) from error
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


def _read_answer(stdout: str) -> list[dict[str, str] | None] | None:
    last = stdout.strip().rpartition("\n")[2]
    try:
        answer: list[dict[str, str] | None] = json.loads(last)["warpbeam-own-code"]
    except (ValueError, KeyError, TypeError):
        return None
    return answer


def _problem(target: str, argument_count: int) -> dict[str, str] | None:
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        return {
            "what": "cannot be imported",
            "why": f"{error} (looked in {', '.join(sys.path[:3])}, ...)",
            "fix": "name the module as seen from the job file's folder or from the folder of this command",
        }
    except BaseException as error:
        return {"what": "cannot be imported", "why": _where(error), "fix": "mend the module, then run this again"}
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        names = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        return {
            "what": "does not exist",
            "why": f"{module_name} has: {', '.join(names) or 'nothing'}",
            "fix": "",
        }
    if not callable(found):
        return {"what": "cannot be called", "why": f"it is a {type(found).__name__}", "fix": ""}
    try:
        inspect.signature(found).bind(*[None] * argument_count)
    except TypeError as error:
        return {"what": "does not take its arguments", "why": f"{inspect.signature(found)}: {error}", "fix": ""}
    except ValueError:
        return None  # a builtin without a signature
    return None


def _where(error: BaseException) -> str:
    """Kind, text and the place in the user's own file."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    place = ""
    trace = error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if "importlib" not in filename and filename != __file__:
            place = f"{filename}:{trace.tb_lineno}: "
        trace = trace.tb_next
    return f"{place}{type(error).__name__}: {error}"


def main(arguments: list[str]) -> None:
    """Print one JSON line with a problem or null for each (target, argument count)."""
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    problems = [_problem(target, int(count)) for target, count in pairs]
    print("\n" + json.dumps({"warpbeam-own-code": problems}), flush=True)
    os._exit(0)  # whatever threads the user's modules have started


if __name__ == "__main__":
    main(sys.argv[1:])
