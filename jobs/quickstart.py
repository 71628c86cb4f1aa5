"""`make quickstart`: the whole main job on this machine, by the commands that a user types.

    python -m jobs.quickstart

It makes a real data set (`jobs.pydocs`), puts it in the embedded S3 server, then runs one after another `warpbeam run`,
`export` and `deploy`, asks the served model a question, and shows what happened. Run again, it finds its own results.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from jobs import pydocs
from warpbeam.pool import load_pool
from warpbeam.storage import open_store

JOB = "jobs/sft/job.yaml"
RUN, TEAM = "quickstart-sft", "quickstart"
QUESTION = "What does the Python function `json.dumps(obj)` do?"

console = Console(highlight=False, soft_wrap=True)  # a command must stay on its line


def main() -> int:
    """The steps, in order; the first that fails ends it with its own exit code and message."""
    started = time.monotonic()
    put_data()
    warpbeam("run", JOB, "--yes")
    warpbeam("export", RUN, "--team", TEAM, "--checkpoint", "best", "--name", RUN)
    warpbeam("deploy", RUN, "--team", TEAM)
    answer = json.loads(warpbeam("chat", RUN, "--message", QUESTION, "--json", capture=True))
    show(answer, elapsed_s=time.monotonic() - started)
    return 0


def put_data() -> None:
    """The documentation of the standard library as questions and answers, in s3://warpbeam/quickstart/."""
    store = open_store(load_pool(None).pool.storage_config())
    with tempfile.TemporaryDirectory() as folder:
        train, held_out = pydocs.write(Path(folder))
        for path in sorted(Path(folder).rglob("*.jsonl")):
            store.put_if_absent(f"quickstart/{path.relative_to(folder).as_posix()}", path.read_bytes())
    console.print(f"data: {train} questions and answers to train on, {held_out} held out, in {store.uri}/quickstart/")


def warpbeam(*arguments: str, capture: bool = False) -> str:
    """Run one command of the command line; its output is shown unless captured."""
    console.print(f"\n[bold]$ warpbeam {escape(' '.join(arguments))}[/bold]")
    command = [sys.executable, "-m", "warpbeam.cli.main", *arguments]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE if capture else None, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return done.stdout or ""


def show(answer: dict[str, str], *, elapsed_s: float) -> None:
    """The question, the answer, the held-out loss before and after, and what to try next."""
    status = json.loads(warpbeam("status", RUN, "--team", TEAM, "--json", capture=True))
    console.print(f"\nquestion: {escape(QUESTION)}")
    console.print(f"answer:   {escape(answer['content'])}   (finish_reason: {answer['finish_reason']})")
    before, after = status["eval_loss_first"], status["eval_loss_last"]
    console.print(f"held-out loss: {before:.3f} before, {after:.3f} after; the whole took {elapsed_s:.0f} s")
    console.print(
        "\nNext, on your own data (`source .venv/bin/activate` puts warpbeam on this shell's PATH):\n"
        "  warpbeam init mine --data my.jsonl     # looks at the data, writes mine/job.yaml\n"
        "  warpbeam run mine/job.yaml             # the same command resumes after an interruption\n"
        "  warpbeam export mine --name mine && warpbeam deploy mine    # then `warpbeam chat mine`\n"
        f"`warpbeam chat {RUN}` talks to the model that was just trained; `warpbeam down` stops the servers"
    )


if __name__ == "__main__":
    sys.exit(main())
