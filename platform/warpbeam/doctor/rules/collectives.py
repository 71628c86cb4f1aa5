"""Collectives that do not meet: other ones on other ranks, or a rank that is not there."""

from __future__ import annotations

from collections.abc import Iterable

from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import NOTHING, Rule
from warpbeam.doctor.signal import HINT, LIKELY, POSSIBLE, SURE, says, told

WATCHDOG = says(
    r"watchdog.{0,40}timeout",
    r"worknccl\(",
    r"timeout on .{0,60}seq \d+",
    r"diststoreerror|wait timeout after \d+ms|got error: socket timeout",
    r"timed out waiting \d+ms for (send|recv)",
    at=HINT,
)
WORK = says(r"worknccl\(seqnum=(?P<seq>\d+), ?optype=(?P<op>\w+)(, ?numelin=(?P<numel>\d+))?", at=HINT)
STACK_OP = says(
    r"(?P<stack>all_?reduce(_coalesced)?|all_?gather(_base|_into_tensor|_coalesced)?|reduce_?scatter(_tensor"
    r"|_base)?|all_?to_?all(_single)?|broadcast|\bbarrier\b|\bsend\b|\brecv\b)",
    at=HINT,
)
BUSY = told(
    r"tokeni[sz]\w*",
    r"evaluat\w*",
    r"\bgenerate\b",
    r"validation",
    r"save_(pretrained|checkpoint|model|state)",
    r"torch\.save",
    r"saving",
    r"state_dict",
    r"\.map\b",
    r"preprocess\w*",
    r"download\w*",
    r"\bmap\b.{0,20}%|running tokenizer",
    r"gc\.collect|garbage collect|cudamalloc retr",
    r"\b(wandb|mlflow|tensorboard)\b",
    r"upload\w*",
    r"export\w*",
    r"index(ing| mapping)",
    r"build(ing)? (index|data ?set|cache|vocab)",
    r"rank ?0[- ]only",
    r"only (on |by )?rank ?0",
    r"is_main_process",
    r"is_global_zero",
    r"rank ?== ?0",
    r"rank\(\) ?== ?0",
    r"main_process_first",
    r"local_main_process",
    at=HINT,
    unless=r"dataloader|_try_get_data|watchdog caught",
)
STACKS_WRITTEN = says(r"^timeout \(\d+:\d\d:\d\d\)!", at=HINT)
BEHIND = told(
    r"\bnot (enqueued|joined|reached|called)\b",
    r"\bno (entry|record) (for|of)\b",
    r"never (joins?|joined|called|enters?|reach\w*)",
    r"\babsent\b",
    r"missing (rank|from)",
    r"\blags?\b",
    r"\bbehind\b",
    r"time\.sleep",
    r"print_trainable",
    r"load(ing)? (dataset|model|data)",
    r"compil\w+",
    at=HINT,
)
RAISED = says(
    r"\b(runtime|value|type|key|index|attribute|assertion|zerodivision|notimplemented|filenotfound|unicode\w*|json\w*)error\b",
    at=HINT,
    unless=(
        r"nccl|dist(backend|network|store)?error|cuda|timed out|connection|watchdog|socket|gloo|broken pipe"
        r"|worker group|childfailed"
    ),
)
FLIGHT_MISMATCH = says(
    r"flight recorder: ranks? .{0,80}(issue|differ)",
    at=0.95,
)
FLIGHT_ABSENT = says(r"flight recorder: rank (?P<absent>\d+) (wrote no dump|lags|is behind)", at=LIKELY)


def _ops_differ(facts: Facts) -> tuple[list[Fact], float]:
    """Ranks that wait for different things: surely when the sequence number is the same, likely when it is not."""
    by_rank: dict[int, Fact] = {}
    for fact in facts.of(WORK):
        if fact.rank is not None:
            by_rank.setdefault(fact.rank, fact)
    by_seq: dict[str, dict[tuple[str, str], Fact]] = {}
    for fact in by_rank.values():
        by_seq.setdefault(fact.words["seq"], {}).setdefault((fact.words["op"], fact.words.get("numel", "")), fact)
    for apart in by_seq.values():
        if len(apart) > 1:
            return list(apart.values()), 0.88
    by_op = {fact.words["op"]: fact for fact in by_rank.values()}
    return (list(by_op.values()), 0.7) if len(by_op) > 1 else NOTHING


def _stacks_differ(facts: Facts) -> tuple[list[Fact], float]:
    """Stacks of several ranks, in different collectives."""
    stacks = [fact for fact in facts.of(STACK_OP) if "stack" in fact.source.where and fact.source.where]
    ops = {_plain(fact.words["stack"]) for fact in stacks}
    places = {fact.source.where for fact in stacks}
    return (stacks, 0.7) if len(ops) > 1 and len(places) > 1 else NOTHING


def _busy_elsewhere(facts: Facts) -> tuple[list[Fact], float]:
    """One rank in other work, the others in a collective or timed out."""
    busy = [fact for fact in facts.of(BUSY) if not WATCHDOG.match(fact.text)]
    waiting = _apart(facts.of(STACK_OP, WATCHDOG), busy)
    return ([*busy, *waiting], 0.75) if busy and waiting else NOTHING


def _behind(facts: Facts) -> tuple[list[Fact], float]:
    """A rank that is said to be somewhere else, without a word of what it does there."""
    behind = facts.of(BEHIND)
    waiting = _apart(facts.of(STACK_OP, WATCHDOG), behind)
    return ([*behind, *waiting], 0.65) if behind and waiting else NOTHING


def _raised_on_some(facts: Facts) -> tuple[list[Fact], float]:
    """An exception of the program on some ranks, timeouts on others: the exception came first, whatever is louder."""
    raised = [fact for fact in facts.of(RAISED) if fact.rank is not None]
    own = {fact.rank for fact in raised}
    waiting = [fact for fact in facts.of(WATCHDOG) if fact.rank not in own]
    return ([*raised, *waiting], 0.7) if raised and waiting else NOTHING


def _silent(facts: Facts) -> tuple[list[Fact], float]:
    """All ranks but one or two report the timeout: the silent ones are the suspects."""
    spoke = facts.ranks_of(WATCHDOG)
    silent = facts.ranks - spoke
    if len(spoke) < 2 or not 0 < len(silent) <= max(1, len(spoke) // 4):
        return NOTHING
    shown = facts.of(WATCHDOG)
    return [_about(shown[0], min(silent)), *shown], POSSIBLE


def _at_a_barrier(facts: Facts) -> tuple[list[Fact], float]:
    """A collective of one element is a barrier; when rank 0 is not among those that wait, it is what they wait for."""
    waits = [fact for fact in facts.of(WORK) if fact.words.get("numel") == "1"]
    ranks = {fact.rank for fact in waits}
    if not waits or ranks & {0, None}:
        return NOTHING
    return [_about(waits[0], 0), *waits], POSSIBLE


def _no_stack(facts: Facts) -> tuple[list[Fact], float]:
    """Ranks that wait wrote their stacks when nothing moved; the one that did not is the suspect."""
    spoke = facts.ranks_of(STACKS_WRITTEN)
    silent = facts.ranks - spoke
    if not spoke or len(silent) != 1:
        return NOTHING
    shown = facts.of(STACKS_WRITTEN)
    return [_about(shown[0], min(silent)), *shown], POSSIBLE


def _about(fact: Fact, rank: int) -> Fact:
    text = f"rank {rank} is silent, its peers report that they wait"
    return Fact(fact.signal, fact.source, text, fact.at_s, rank)


def _apart(facts: Iterable[Fact], others: Iterable[Fact]) -> list[Fact]:
    taken = {(fact.source.where, fact.text) for fact in others}
    return [fact for fact in facts if (fact.source.where, fact.text) not in taken]


def _plain(op: str) -> str:
    return op.lower().replace("_", "").removesuffix("base").removesuffix("intotensor").removesuffix("tensor")


RULES = (
    Rule(
        name="collectives_differ",
        kind=Kind.COLLECTIVE_DIVERGENCE,
        owner="ml",
        cause="ranks issue different collectives, or the same in another order or size",
        do="bring all ranks onto one path: no collective, and no backward, under a condition that only some meet",
        scope="rank",
        signals=(
            told(
                r"rank \d+:? (all_?\w+|reduce\w*|broadcast) .{0,30}rank \d+:? (all_?\w+|reduce\w*|broadcast)", at=LIKELY
            ),
            says(r"is running collective", at=LIKELY),
            told(r"(only on|on) (that|this|one) rank\b", at=LIKELY, unless=r"memory|oom|slow|dump"),
            FLIGHT_MISMATCH,
            says(
                r"detected mismatch between collectives",
                r"mismatch\w* .{0,20}collective",
                r"collectives?.{0,60}(mismatch|diverg|different (order|shapes?|sizes?)|out of order|do not match)",
                at=SURE,
            ),
            says(
                r"disagree\w* between rank ?\d+ and rank ?\d+",
                r"expected to have finished reduction in the prior iteration",
                r"parameters that were not used in producing (the )?loss",
                at=LIKELY,
            ),
            told(
                r"(ranks?|processes?)\b.{0,60}(issue|call|run|execut|enter|launch|fire|wait)\w*.{0,40}(different"
                r"|other|another|fewer|unequal).{0,40}(collective|order|op|number|branch|hooks?|path|group"
                r"|backward)",
                at=LIKELY,
            ),
            told(
                r"(different|divergent|inconsistent|unequal|other) (order|sequence|number) of (collective"
                r"|communicat|all_?\w+|process groups?|backward|hooks|ops)",
                r"(skips?|skipped|missing|extra) .{0,30}(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
                r"|broadcast|collective|barrier)",
                at=LIKELY,
            ),
            told(
                r"(number of|unequal|per-rank|valid).{0,30}(samples|backwards?|tokens|hooks).{0,30}(differs?"
                r"|per rank differ|unequal)",
                r"rank.{0,20}(divergent|dependent) (order|branch|path)",
                r"(unused|frozen|conditional) (param\w*|branch|expert)s?.{0,80}(rank|hang|all_?reduce|reduc)",
                at=LIKELY,
            ),
            says(r"message truncated ?: ?received \d+ bytes instead of", at=POSSIBLE),
        ),
    ),
    Rule(
        name="watchdogs_differ",
        kind=Kind.COLLECTIVE_DIVERGENCE,
        owner="ml",
        cause="the ranks wait for different collectives",
        do="compare the stacks of two such ranks; bring all ranks onto one path",
        scope="rank",
        signals=(WORK,),
        judge=_ops_differ,
    ),
    Rule(
        name="stacks_in_different_collectives",
        kind=Kind.COLLECTIVE_DIVERGENCE,
        owner="ml",
        cause="the ranks' stacks are in different collectives",
        do="compare the two call paths; bring all ranks onto one",
        scope="rank",
        signals=(STACK_OP,),
        judge=_stacks_differ,
    ),
    Rule(
        name="rank_busy_elsewhere",
        kind=Kind.SLOW_OR_ABSENT_RANK,
        owner="ml",
        cause="one rank is busy with other work while the others wait for it in a collective",
        do="do that work on all ranks or before the group forms, or give that phase a longer timeout",
        retry="useless",
        scope="rank",
        signals=(BUSY, STACK_OP, WATCHDOG),
        judge=_busy_elsewhere,
    ),
    Rule(
        name="rank_behind",
        kind=Kind.SLOW_OR_ABSENT_RANK,
        owner="ml",
        cause="one rank has not reached the collective in which the others wait",
        do="look at that rank's own log and stack first",
        retry="may help",
        scope="rank",
        signals=(BEHIND, STACK_OP, WATCHDOG),
        judge=_behind,
    ),
    Rule(
        name="rank_absent",
        kind=Kind.SLOW_OR_ABSENT_RANK,
        owner="ml",
        cause="the other ranks timed out in a collective that one rank never reached",
        do="look at that rank's own log and stack first",
        retry="may help",
        scope="rank",
        signals=(
            told(r"rank \d+ .{0,40}\b(no entry|absent|missing|never|not)\b.{0,60}\bothers?\b.{0,20}wait", at=LIKELY),
            FLIGHT_ABSENT,
        ),
    ),
    Rule(
        name="raised_on_some_ranks",
        kind=Kind.COLLECTIVE_DIVERGENCE,
        owner="ml",
        cause="an exception took some ranks out of the loop; the others wait for their part of the collective",
        do="mend what raised on those ranks: their share of the data or of the model differs from the others'",
        scope="rank",
        signals=(RAISED, WATCHDOG),
        judge=_raised_on_some,
    ),
    Rule(
        name="rank_silent",
        kind=Kind.SLOW_OR_ABSENT_RANK,
        owner="ml",
        cause="all ranks but one report a timeout: that one did not reach the collective",
        do="look at that rank's own log and stack first",
        retry="may help",
        scope="rank",
        signals=(WATCHDOG,),
        judge=_silent,
    ),
    Rule(
        name="barrier_waits_for_rank_0",
        kind=Kind.SLOW_OR_ABSENT_RANK,
        owner="ml",
        cause="ranks timed out at a barrier which rank 0 did not reach: it may tokenise, evaluate or save",
        do="look at what rank 0 does there; do it on all ranks, before the group forms, or under a longer timeout",
        scope="rank",
        signals=(WORK,),
        judge=_at_a_barrier,
    ),
    Rule(
        name="rank_without_stacks",
        kind=Kind.SLOW_OR_ABSENT_RANK,
        owner="ml",
        cause="nothing moved, and all ranks but one wrote where they wait: that one stands still, or is gone",
        do="look at that rank's process and machine; start again, it resumes at the newest checkpoint",
        retry="may help",
        scope="rank",
        signals=(STACKS_WRITTEN,),
        judge=_no_stack,
    ),
)
