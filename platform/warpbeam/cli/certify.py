"""`warpbeam certify JOB.yaml`: proof that this very job, killed and resized, is the run it would have been."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpbeam.cli.options import JobFile, Json, Pool, open_runs
from warpbeam.cli.output import note, print_json, say

if TYPE_CHECKING:
    from warpbeam.launch.certify import Certified


def certify(
    job: JobFile,
    pool: Pool = None,
    kills: Annotated[int, typer.Option("--kills", min=1, help="How many processes to kill.")] = 3,
    worlds: Annotated[
        str | None, typer.Option("--worlds", metavar="2,1,2", help="Numbers of ranks, one after the other.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=8, help="Optimizer steps of each of the two runs.")] = 40,
    seed: Annotated[int, typer.Option("--seed", help="Decides after which steps something is killed.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where the certificate goes. Default: NAME-certificate.")
    ] = None,
    json: Json = False,
) -> None:
    """Run a job twice, short: undisturbed, and killed at random steps. Compare every step, write a certificate.

    Exit code 0: equal; 1: not, with the first step that differs. Bit for bit at the same number of ranks.
    """
    from warpbeam.job import load_job
    from warpbeam.launch.certificate import SCHEMA
    from warpbeam.launch.certify import certify as prove
    from warpbeam.launch.certify import settle
    from warpbeam.plan.plan import asked_world_size
    from warpbeam.pool import load_pool
    from warpbeam.spec_file import placing
    from warpbeam.versions import installed_versions

    loaded = load_job(job)
    with placing(job):
        ranks = asked_world_size(loaded.job, load_pool(pool).pool)
        asked = settle(loaded, ranks, kills, _numbers(worlds), steps, seed)
    found = prove(loaded, open_runs(pool, loaded.job.checkpoint.store), pool, asked, lambda text: note(text))
    folder = out or Path(f"{loaded.job.name}-certificate")
    document = {
        "schema": SCHEMA,
        "job": loaded.job.name,
        "job_digest": loaded.digest,
        **found.to_dict(),
        "versions": installed_versions(),
    }
    _write(folder, loaded.job.name, found, document)
    if json:
        print_json(document)
    else:
        for line in _lines(found):
            say(line)
        say(f"  $ less {folder}/certificate.md")
    raise typer.Exit(0 if found.verdict.equal else 1)


def _numbers(text: str | None) -> list[int]:
    from warpbeam.errors import UserError

    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UserError(f"--worlds {text}: not numbers of ranks", fix="for example --worlds 2,1,2", reason="bad_worlds")
    return [int(part) for part in parts]


def _lines(found: Certified) -> list[str]:
    """The result in a few lines; the certificate's page has the same."""
    verdict = found.verdict
    killed = ", ".join(f"{kill.role} after step {kill.step}" for kill in found.kills) or "nothing"
    lines = [
        f"{'equal' if verdict.equal else 'NOT equal'}: {verdict.compared} rows of {verdict.steps} steps compared",
        f"  killed      {killed}; {found.attempts} attempts",
        f"  ranks       {', '.join(map(str, found.asked.worlds))}",
        f"  bit for bit up to step {min(verdict.bitwise_to, verdict.steps)} of {verdict.steps}",
    ]
    if verdict.missing:
        lines.append(f"  lost rows   of steps {', '.join(map(str, verdict.missing))}, with the processes that had them")
    if verdict.difference is not None:
        first = verdict.difference
        lines.append(f"  differs     step {first.step}, {first.what}: {first.undisturbed} and {first.disturbed}")
    return lines


def _write(folder: Path, name: str, found: Certified, document: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "certificate.json").write_text(json_module.dumps(document, indent=1) + "\n")
    page = [f"# {name}: {'certified' if found.verdict.equal else 'not certified'}", ""]
    page += ["```", *_lines(found), "```", "", "![loss](loss.png)", ""]
    page += [
        "Samples are compared by the sum of their ids' crc32, loss and gradient norm as the record has them. After the",
        "first step on another number of ranks the sums have another order: within "
        f"{json_module.dumps(document['verdict']['tolerances'])} then.",
    ]
    (folder / "certificate.md").write_text("\n".join(page) + "\n")
    _draw(folder / "loss.png", name, found)


def _draw(path: Path, name: str, found: Certified) -> None:
    from matplotlib.figure import Figure

    from warpbeam.launch.certificate import LOSS

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for rows, style, label in ((found.undisturbed, "-", "undisturbed"), (found.disturbed, "x", "killed and resumed")):
        points = [(row["step"], row[LOSS]) for row in rows if LOSS in row]
        axes.plot(*zip(*points, strict=True), style, label=label, markersize=5, linewidth=1.2)
    for kill in found.kills:
        axes.axvline(kill.step + 0.5, color="0.6", linewidth=0.8, linestyle="--")
    axes.set(xlabel="step", ylabel="loss per token", title=f"{name}: what was killed, and what it cost")
    axes.legend()
    figure.savefig(path, dpi=110)
