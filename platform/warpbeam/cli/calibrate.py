"""`warpbeam calibrate RUN`: put the next plan on this pool right by what a finished run measured."""

from __future__ import annotations

from warpbeam.cli.options import Json, Pool, RunName, Store, Team, open_runs
from warpbeam.cli.output import print_json, say


def calibrate(run: RunName, team: Team = None, pool: Pool = None, store: Store = None, json: Json = False) -> None:
    """Learn from a finished run: its peak memory and step time correct the next plans on the same pool.

    The correction is kept in WARPBEAM_HOME/calibration/POOL.json; remove the file to forget it.
    """
    from warpbeam.launch.calibrate import calibrate as learn_from
    from warpbeam.plan.words import seconds
    from warpbeam.pool import load_pool
    from warpbeam.record.view import find_run

    found = learn_from(find_run(open_runs(pool, store), run, team), load_pool(pool).pool)
    if json:
        print_json(found.to_dict())
        return
    measured, before, correction = found.measured, found.before, found.correction
    say(f"  run         {measured.run}, {measured.steps} steps")
    say(f"  compared    {_compared(found)}")
    say(f"  memory      measured {measured.peak_gib:.2f} GiB, planned {before.memory_gib:.2f} GiB a rank")
    wait = f", of it {seconds(measured.data_wait_s)} waiting for data" if measured.data_wait_s > 1e-4 else ""
    say(f"  step        measured {seconds(measured.step_s)}{wait}, planned {seconds(before.step_s)}")
    say(f"  from now    pool {correction.pool}: step time x {correction.time_factor:.3g}, memory {_memory(found)}")
    say(f"  learned by  {', '.join(correction.runs)}; kept in {found.path}")


def _compared(found: object) -> str:
    """What was predicted, and where the run's own model is another."""
    from warpbeam.launch.calibrate import Calibrated
    from warpbeam.plan.report import described
    from warpbeam.plan.words import count_words, plural

    assert isinstance(found, Calibrated)
    recipe, planned = found.compared.recipe, found.before.parameters
    text = f"{described(found.before)}; {plural(recipe.global_batch, 'row')} of {recipe.seq_len}"
    text += f"; {count_words(planned)} parameters, as it was planned"
    if found.trained not in (None, planned):
        text += f" (the run's model has {count_words(found.trained or 0)}: another vocabulary than was asked for)"
    return text


def _memory(found: object) -> str:
    from warpbeam.launch.calibrate import Calibrated

    assert isinstance(found, Calibrated)
    correction = found.correction
    if correction.memory_offset_gib:
        return f"{correction.memory_offset_gib:+.2f} GiB a process"
    return f"besides the states x {correction.memory_factor:.3g}"
