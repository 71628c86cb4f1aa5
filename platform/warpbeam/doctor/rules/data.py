"""Data: loaders that stand still, ranks that run out of batches before the others."""

from __future__ import annotations

from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import NOTHING, Rule
from warpbeam.doctor.signal import HINT, LIKELY, POSSIBLE, says, told

IN_LOADER = says(
    r"_try_get_data",
    r"_get_data\b",
    r"_next_data\b",
    r"dataloader\.py\S*.{0,40}(__next__|_poll|_shutdown|_get)",
    r"worker_loop",
    r"child of fork",
    r"__getitem__",
    r"(dataloader|data loader|loader|prefetch\w*)\b.{0,60}(queue|stack|blocked|stuck|waiting|hang|hung|deadlock)",
    r"(blocked|stuck|waiting|hangs?|hung|deadlock\w*)\b.{0,60}(dataloader|data loader|\bloader\b|next batch"
    r"|fetch\w*|__getitem__|queue\.get|worker process)",
    r"next\((data|train|loader)\w*\)",
    r"queue\.(py|get)\b",
    at=HINT,
)
IN_COLLECTIVE = told(
    r"all_?reduce",
    r"all_?gather",
    r"reduce_?scatter",
    r"all_?to_?all",
    r"broadcast",
    r"\bbarrier\b",
    r"(in|nccl) (nccl|kernel|collective|wait|timeout|hang)",
    r"collective",
    r"other (ranks|gpus|processes)",
    r"wait(s|ing) for (rank|the)",
    at=HINT,
)
WAITS = says(
    r"watchdog.{0,40}timeout",
    r"timed out waiting \d+ms",
    r"nccl timeout",
    r"distributed_c10d\.py.{0,60}(all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|barrier)",
    at=HINT,
)
FINISHED = says(
    r"(data ?set|loader|iterator|shard)\w* (has )?ended",
    r"(training|loop) (is |was |has )?(finished|ended|complete\w*)( after \d+| at step)",
    r"epoch (\d+ )?(is |was )?(finished|done|complete\w*|ended)",
    r"finished (its |the )?(epoch|data|training)",
    r"exit(s|ed)? (the )?(dataloader|data|training|epoch) ?loop",
    r"left the (loop|epoch)",
    r"^(\[rank\d+\]:? ?)?stopiteration\b",
    r"(data ?set|data ?loader|iterator|generator|data|shard)\w* (is |was |are )?exhausted",
    r"no more (data|batches|samples)",
    r"ran out of (data|batches|samples)",
    r"(reached|at) (the )?end of (its |the )?(epoch|data\w*|loader|shard)",
    at=HINT,
)
UNEQUAL = (
    r"(uneven|unequal|different|differing|fewer|one (more|less|fewer)|mismatch\w*|not (the same|equal)|inconsistent)"
)
DIFFER = r"(differ|uneven|unequal|not equal|mismatch|fewer|diverge)"
UNEVEN = told(
    UNEQUAL + r".{0,40}(number of |amount of )?(batches|steps|iterations|lengths?|shards?|micro-?batches|inputs)",
    r"(batches|steps|iterations|len\(\w+\)|shards?)\b.{0,60}" + DIFFER,
    unless=r"generation|backward hook|process group",
)
UNEVEN_SAMPLES = told(
    UNEQUAL + r".{0,40}(samples|examples|rows)",
    r"(samples|examples|rows)\b.{0,60}" + DIFFER,
    at=POSSIBLE,
    unless=r"generation|hook",
)
COUNTED = says(
    r"\b(?P<batches>\d[\d,]*) (batches|samples|steps|iterations|examples)\b",
    r"(data ?loader|data ?set|sampler|epoch) (length|size|len)[ :=]+(?P<size>\d+)",
    r"len\(\w*(loader|dataset|sampler)\w*\) ?[=:]+ ?(?P<length>\d+)",
    at=HINT,
)


def _loader_stands_still(facts: Facts) -> tuple[list[Fact], float]:
    """One rank in its loader while the others are in a collective; or the loader alone, on few ranks."""
    loading, joint = facts.of(IN_LOADER), facts.of(IN_COLLECTIVE, WAITS)
    apart = [fact for fact in loading if fact.text not in {other.text for other in joint}]
    if loading and joint:
        return [*loading, *joint], 0.82 if apart else 0.7
    return (loading, POSSIBLE) if loading else NOTHING


def _left_the_loop(facts: Facts) -> tuple[list[Fact], float]:
    """A rank that finished its epoch while others still wait in a collective."""
    done, joint = facts.of(FINISHED), facts.of(IN_COLLECTIVE, WAITS)
    return ([*done, *joint], 0.82) if done and joint else NOTHING


def _counts_differ(facts: Facts) -> tuple[list[Fact], float]:
    """Ranks that print different numbers of batches."""
    counted = [fact for fact in facts.of(COUNTED) if fact.rank is not None]
    by_rank = {fact.rank: next(iter(fact.words.values())) for fact in counted}
    return (counted, 0.75) if len(by_rank) > 1 and len(set(by_rank.values())) > 1 else NOTHING


RULES = (
    Rule(
        name="loader_stands_still",
        kind=Kind.DATA_LOADER_HANG,
        owner="ml",
        cause="one rank waits for its data loader, all others for that rank",
        do="a timeout on the loader, no fork after threads, no worker processes where they are not needed",
        retry="may help",
        scope="rank",
        signals=(IN_LOADER, IN_COLLECTIVE, WAITS),
        judge=_loader_stands_still,
        unless=(FINISHED, UNEVEN),
    ),
    Rule(
        name="loader_says_so",
        kind=Kind.DATA_LOADER_HANG,
        owner="ml",
        cause="a data loader's worker stands still or died",
        do="a timeout on the loader, no fork after threads; look at what its workers read",
        retry="may help",
        scope="rank",
        signals=(
            says(
                r"dataloader timed out",
                r"dataloader worker .{0,60}(exited unexpectedly|deadlock|hang|stuck|killed)",
                at=LIKELY,
                unless=r"bus error|killed by signal: killed|aborted",
            ),
            told(
                r"(fork|forked|multiprocess\w*|persistent_workers|num_workers|pin_memory|prefetch\w*)\b"
                r".{0,80}(deadlock|hang|stuck|freez|hung)",
                r"(deadlock|hang|stuck|hung)\w*.{0,60}(num_workers|forked?\b|loader worker|data ?loader"
                r"|persistent_workers)",
                at=LIKELY,
            ),
            says(r"(received 0 items of ancdata|too many open files)", at=POSSIBLE),
            told(r"num_workers ?= ?0 .{0,40}(works?|runs?|fix|no hang|helps)", at=LIKELY),
        ),
        unless=(FINISHED,),
    ),
    Rule(
        name="rank_ran_out_of_data",
        kind=Kind.DATA_EXHAUSTION,
        owner="ml",
        cause="a rank has fewer batches than the others and left the loop; the rest wait for it",
        do="equal shares for all ranks (drop the last, pad), or a join at the end of the epoch",
        scope="rank",
        signals=(FINISHED, IN_COLLECTIVE, WAITS),
        judge=_left_the_loop,
    ),
    Rule(
        name="batches_differ",
        kind=Kind.DATA_EXHAUSTION,
        owner="ml",
        cause="the ranks have different numbers of batches",
        do="equal shares for all ranks (drop the last, pad), or a join at the end of the epoch",
        scope="rank",
        signals=(UNEVEN, UNEVEN_SAMPLES),
    ),
    Rule(
        name="counted_batches_differ",
        kind=Kind.DATA_EXHAUSTION,
        owner="ml",
        cause="the ranks print different numbers of batches",
        do="equal shares for all ranks (drop the last, pad), or a join at the end of the epoch",
        scope="rank",
        signals=(COUNTED,),
        judge=_counts_differ,
    ),
)
