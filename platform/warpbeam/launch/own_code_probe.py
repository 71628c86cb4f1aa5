"""Import functions by name and try their signatures; one JSON line tells the parent what is wrong with each.

    python -m warpbeam.launch.own_code_probe my.mod:render 2 my.mod:loss 2

Imports nothing of ours: it starts quickly, and a user's module meets an ordinary interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import inspect
import json
import os
import signal
import sys
from typing import Any

_MOMENTS = {  # as in train.callbacks.base
    "on_start": "on_start(self, ctx)",
    "on_step": "on_step(self, ctx, row)",
    "on_eval": "on_eval(self, ctx, result)",
    "on_checkpoint": "on_checkpoint(self, ctx, saved)",
    "on_end": "on_end(self, ctx, state)",
}


def _problem(target: str, argument_count: int) -> dict[str, str] | None:
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
            install = f"install {error.name!r} in this environment, or mend the import"
            return {"what": "cannot be imported", "why": _where(error), "fix": install}
        looked_in = list(dict.fromkeys(path for path in sys.path if path))[:2]
        return {
            "what": "cannot be imported",
            "why": f"{error} (looked in {', '.join(looked_in)}, ...)",
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
        return {"what": "cannot be called", "why": f"it is of type {type(found).__name__}", "fix": ""}
    if argument_count == 0 and isinstance(found, type) and not any(hasattr(found, moment) for moment in _MOMENTS):
        own = [name for name in vars(found) if not name.startswith("_")]
        return {
            "what": "has none of a callback's methods",
            "why": f"it has {', '.join(own) or 'none'}; a callback has any of {', '.join(_MOMENTS)}",
            "fix": "write one of them, for example: def on_step(self, ctx, row): ...",
        }
    for package in getattr(found, "requires", ()) if argument_count == 0 else ():
        if lacking := _lacking(package, getattr(found, "install", f"install {package!r} in this environment")):
            return lacking
    if misfit := _misfit(found, argument_count):
        return {"what": "does not take its arguments", "why": misfit, "fix": ""}
    if argument_count == 0 and isinstance(found, type):
        for moment, called in _MOMENTS.items():
            method = inspect.getattr_static(found, moment, None)
            if inspect.isfunction(method) and (misfit := _misfit(method, called.count(",") + 1)):
                what = f"has an {moment} that does not take its arguments"
                return {"what": what, "why": misfit, "fix": f"write: def {called}: ..."}
    return None


def _lacking(package: str, install: str) -> dict[str, str] | None:
    """What is wrong with a package that a callback says it `requires`."""
    if importlib.util.find_spec(package) is None:
        return {"what": f"needs {package}, which is not installed", "why": "", "fix": install}
    try:
        importlib.import_module(package)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return {"what": f"needs {package}, which is installed and does not import", "why": why, "fix": "mend it first"}
    return None


def _misfit(function: Any, argument_count: int) -> str:
    """Why it cannot be called with so many positional arguments; nothing where it can."""
    try:
        inspect.signature(function).bind(*[None] * argument_count)
    except TypeError as error:
        return f"{inspect.signature(function)}: {error}"
    except ValueError:
        return ""  # a builtin without a signature
    return ""


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


def _end_with_parent() -> None:
    """A module that never ends its import does not outlive a command that was killed."""
    with contextlib.suppress(OSError, AttributeError):  # no Linux
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main(arguments: list[str]) -> None:
    """Print one JSON line with a problem or null for each (target, argument count)."""
    _end_with_parent()
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    problems = [_problem(target, int(count)) for target, count in pairs]
    print("\n" + json.dumps({"warpbeam-own-code": problems}), flush=True)
    os._exit(0)  # whatever threads the user's modules have started


if __name__ == "__main__":
    main(sys.argv[1:])
