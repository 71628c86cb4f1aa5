"""From what was measured and what was promised to a table, a verdict, and the one who is to blame. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from warpbeam.preflight import judge_links, judge_machines, judge_ranks
from warpbeam.preflight.expected import Expected
from warpbeam.preflight.judge_links import Blame
from warpbeam.preflight.measured import Measured
from warpbeam.preflight.verdict import Level, Row, Suspect, Verdict, rank_words


def judge(measured: Measured, promise: Expected) -> Verdict:
    """The first suspects are those whose fault explains the others'."""
    ranks = measured.by_rank()
    gone = judge_ranks.lost(measured.lost, ranks)
    devices, bare = judge_machines.devices(measured.ranks, promise)
    figures = Expected(kind=promise.kind) if bare else promise  # cores are no measure of a GPU's promise
    parts = [
        ([_who_came(measured)], gone),
        (devices, bare),
        judge_machines.versions(measured.machine, promise),
        _rendezvous(measured),
        (judge_machines.limits(measured, promise), []),
        judge_machines.clocks(measured.clocks, ranks),
        judge_machines.names(measured.machine, ranks),
        judge_machines.storage(measured),
        judge_ranks.speeds(measured, figures),
        _links(measured),
        judge_ranks.collectives(measured, figures),
        (judge_ranks.programs(measured, figures), []),
        _errors(measured),
    ]
    rows = [row for part, _ in parts for row in part]
    rows += [Row(skip.what, "not measured", "", Level.INFO, "", skip.why) for skip in measured.skipped]
    return Verdict(tuple(rows), tuple(_in_order([suspect for _, part in parts for suspect in part])))


def _who_came(measured: Measured) -> Row:
    nodes = len(measured.nodes())
    text = f"{len(measured.ranks)} of {measured.wanted} ranks on {nodes} node{'s' if nodes != 1 else ''}"
    where = rank_words([one.rank for one in measured.lost]) if measured.lost else ""
    return Row("ranks", text, f"{measured.wanted}", Level.FAIL if measured.lost else Level.OK, where)


def _rendezvous(measured: Measured) -> tuple[list[Row], list[Suspect]]:
    """All ranks reach rank 0's store, as a job's must. Who cannot is blamed by the links, which know both ends."""
    if not measured.rendezvous:
        return [], []
    away = {rank: why for rank, why in measured.rendezvous.items() if why}
    if not away:
        return [Row("rendezvous", f"{len(measured.rendezvous)} ranks reached rank 0")], []
    first = min(away)
    row = Row("rendezvous", away[first], "", Level.FAIL, rank_words(list(away)))
    if any(link.dead for link in measured.links):
        return [row], []
    ranks = measured.by_rank()
    what = f"cannot reach rank 0 on node {ranks[0].node}: {away[first]}"
    nodes = tuple(sorted({ranks[rank].node for rank in away}))
    do = "look at firewalls, and at the interface the ranks' addresses belong to"
    return [row], [Suspect(rank_words(list(away)), what, "infra", tuple(away), nodes, do)]


def _links(measured: Measured) -> tuple[list[Row], list[Suspect]]:
    ranks, links = measured.by_rank(), measured.links
    if not links:
        return [], []
    broken = [link for link in links if link.dead]
    rows = [
        Row("links", f"{len(links) - len(broken)} of {len(links)} alive", "all", Level.FAIL if broken else Level.OK)
    ]
    speeds = sorted((link.bandwidth, link.one, link.other) for link in links if link.bandwidth is not None)
    known = set(judge_ranks.suspected(measured.speeds))  # a rank that is slow itself has slow links
    slow = [blame for blame in judge_links.slow(links, ranks) if not known & set(blame.ranks)]
    slow = [] if measured.crowded() else slow
    if speeds:
        value, one, other = speeds[0]
        text = f"{value / 1e9:.3g} ... {speeds[-1][0] / 1e9:.3g} GB/s"
        where = f"ranks {one} and {other}" if slow else ""
        if measured.crowded():
            rows.append(Row("link bandwidth", text, "", Level.INFO, "", "more ranks than cores: not judged"))
        else:
            rows.append(Row("link bandwidth", text, "alike", Level.FAIL if slow else Level.OK, where))
        delays = [(link.latency_s, link.one, link.other) for link in links if link.latency_s is not None]
        delay, one, other = max(delays)
        rows.append(Row("link latency", f"{delay * 1e6:,.0f} us at most", "", Level.INFO, f"ranks {one} and {other}"))
    if len(links) > 1 and len(broken) == len(links):
        what = f"no two ranks reach each other: {broken[0].error}"
        do = "the interface is wrong or a firewall is in between: `warpbeam lint-env`, GLOO_/NCCL_SOCKET_IFNAME"
        return rows, [Suspect("job", what, "platform", (), (), do)]
    suspects = [_suspect(blame, f"nothing arrives: {blame.links[0].error}") for blame in judge_links.dead(links, ranks)]
    suspects += [_suspect(blame, _slow_words(blame)) for blame in slow]
    return rows, suspects


def _slow_words(blame: Blame) -> str:
    lowest = min(link.bandwidth or 0.0 for link in blame.links)
    return f"only {lowest / 1e9:.3g} GB/s, less than a third of the others' median"


def _suspect(blame: Blame, what: str) -> Suspect:
    ranks, nodes = blame.ranks, blame.nodes
    if len(ranks) == 2:
        between = f" (nodes {nodes[0]} and {nodes[1]})" if len(nodes) == 2 else f" (node {nodes[0]})"
        return Suspect(rank_words(ranks), f"{what}{between}", "infra", ranks, nodes, "look at the way between the two")
    if len(ranks) == 1:
        what = f"{what}, with {len(blame.links)} others alike"
        return Suspect(f"rank {ranks[0]}", what, "infra", ranks, nodes, "look at its node's interface")
    touched = tuple(sorted({rank for link in blame.links for rank in (link.one, link.other)}))
    if len(nodes) == 2:
        do = "look at cables, switch ports and firewalls between the two"
        return Suspect(f"nodes {nodes[0]} and {nodes[1]}", what, "infra", touched, nodes, do)
    return Suspect(f"node {nodes[0]}", what, "infra", touched, nodes, "look at its network interface, cable and port")


def _errors(measured: Measured) -> tuple[list[Row], list[Suspect]]:
    """Probes that failed in ranks which went on; beside a lost rank or a dead link they are consequences."""
    explained = bool(measured.lost) or any(link.dead for link in measured.links)
    level, note = (Level.INFO, "a consequence") if explained else (Level.FAIL, "")
    rows = [Row(phase, text, "", level, f"rank {rank}", note) for phase, rank, text in measured.errors]
    if explained or not rows:
        return rows, []
    phase, _, text = measured.errors[0]
    failed = tuple(sorted({rank for _, rank, _ in measured.errors}))
    ranks = measured.by_rank()
    alone = len(failed) < len(measured.ranks)
    nodes = tuple(sorted({ranks[rank].node for rank in failed})) if alone else ()
    where = rank_words(failed) if alone else "job"
    return rows, [Suspect(where, f"{phase}: {text}", "unknown", failed if alone else (), nodes, "read its error")]


def _in_order(suspects: Sequence[Suspect]) -> list[Suspect]:
    """One sentence about each, in the order of the phases."""
    found: dict[str, Suspect] = {}
    for suspect in suspects:
        found.setdefault(suspect.where, suspect)
    return list(found.values())
