"""A preflight's answer for people: a table, the collectives by size, who is to blame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from warpbeam.cli.output import out, print_table, say
from warpbeam.preflight.busbw import Op
from warpbeam.preflight.judge_ranks import size_words
from warpbeam.preflight.verdict import Level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warpbeam.preflight.launch import Result
    from warpbeam.preflight.measured import Collective, Measured

COLOURS = {Level.OK: "green", Level.INFO: "dim", Level.WARN: "yellow", Level.FAIL: "bold red"}
WIDTH = 10


def show(result: Result) -> None:
    """Everything, the verdict last."""
    verdict = result.verdict
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("check", "", "measured", "wanted", "where", "note"):
        table.add_column(name, overflow="fold")
    for row in verdict.rows:
        cells = (row.measured, row.wanted, row.where, row.note)
        table.add_row(Text(row.check), Text(row.level.value, style=COLOURS[row.level]), *map(Text, cells))
    out.print(table, soft_wrap=False)
    for scope, title in (("inside", "inside nodes"), ("all", "all ranks")):
        _sizes(result.measured, scope, title)
    say("")
    for suspect in verdict.suspects:
        for label, text in (
            ("who", suspect.where),
            ("what", suspect.what),
            ("nodes", ", ".join(suspect.nodes)),
            ("owner", suspect.owner),
            ("do", suspect.do),
        ):
            if text:
                say(f"{label:<{WIDTH}}{text}")
        say("")
    spent = sum(result.measured.seconds.values())
    say(f"preflight {verdict.sentence} ({spent:.0f} s)", style="green" if verdict.passed else "bold red")


def _sizes(measured: Measured, scope: str, title: str) -> None:
    """Bus bandwidth by size, as nccl-tests prints it; operations that share out round the size to whole shares."""
    found = [one for one in measured.collectives if one.scope == scope]
    if not found:
        return
    columns = {op: [one for one in found if one.op is op] for op in Op}
    longest = max(columns.values(), key=len)
    rows = [
        (size_words(longest[place].size_bytes), *(_cell(columns[op][place : place + 1]) for op in Op))
        for place in range(len(longest))
    ]
    say("")
    say(f"busbw in GB/s, {found[0].ranks} ranks, {title}", style="bold")
    names = ("size", *(op.words for op in Op))
    print_table(names, rows, right=names)


def _cell(found: Sequence[Collective]) -> str:
    return f"{found[0].busbw / 1e9:.3g}" if found else ""
