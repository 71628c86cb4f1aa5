"""The communication stack's versions: unequal between ranks, or defective in themselves."""

from __future__ import annotations

from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import NOTHING, Rule
from warpbeam.doctor.signal import HINT, LIKELY, POSSIBLE, SURE, says, told

NCCL_VERSION = says(r"(nccl|rccl)[ _]version:? ?=?v?\(?(?P<version>\d+[., ]+\d+[., ]*\d*)", at=HINT)
PLUGIN_LOADED = says(
    r"(plugin path|net/plugin: (using|loaded|plugin name)|using network (sharp|aws libfabric|ofi|ib_sharp))", at=HINT
)
PLUGIN_ABSENT = says(r"could not find: \S*libnccl-net", r"no plugin found", r"using internal network plugin", at=HINT)


COMPONENT = says(
    r"\b(?P<component>libfabric|efa|ofed|mlnx_ofed|ucx|openmpi|hpc-?x|aws-ofi-nccl|pytorch|torch|firmware|fw_ver)\b"
    r"[^0-9\n]{0,12}(?P<release>\d+\.\d+[\w.+]*)",
    at=HINT,
)


def _versions_differ(facts: Facts) -> tuple[list[Fact], float]:
    """Lines of several ranks or nodes that name different versions of NCCL."""
    seen = facts.of(NCCL_VERSION)
    places = {fact.source.where for fact in seen}
    versions = {fact.words["version"].replace(" ", "") for fact in seen}
    return (seen, 0.85) if len(versions) > 1 and len(places) > 1 else NOTHING


def _components_differ(facts: Facts) -> tuple[list[Fact], float]:
    """One component of the stack that two places name with different versions."""
    first: dict[str, Fact] = {}
    for fact in facts.of(COMPONENT):
        other = first.setdefault(fact.words["component"].lower(), fact)
        if other.source.where != fact.source.where and other.words["release"] != fact.words["release"]:
            return [other, fact], 0.8
    return NOTHING


def _plugin_on_a_part(facts: Facts) -> tuple[list[Fact], float]:
    """A network plugin that some nodes load and others do not find: they cannot talk."""
    loaded, absent = facts.of(PLUGIN_LOADED), facts.of(PLUGIN_ABSENT)
    apart = {fact.source.where for fact in loaded} - {fact.source.where for fact in absent}
    return ([*absent, *loaded], 0.9) if apart and absent else NOTHING


IN_NCCL = (
    r"(nccl[A-Z_]\w+ ?\(|libnccl\.so|librccl\.so|nccl(comm|group|topo|proxy|launch|transport|async|kernel|dev)\w*)"
)
CRASH = says(r"segmentation fault|sigsegv|signal 11\b|illegal memory access|misaligned address", at=HINT)
FRAME = says(IN_NCCL, at=HINT)


def _crash_in_nccl(facts: Facts) -> tuple[list[Fact], float]:
    """A crash, and a native stack with NCCL's functions."""
    crash, frames = facts.of(CRASH), facts.of(FRAME)
    return ([*crash, *frames], 0.75) if crash and frames else NOTHING


RULES = (
    Rule(
        name="nccl_versions_differ",
        kind=Kind.VERSION_MISMATCH,
        owner="platform",
        cause="ranks run different versions of NCCL",
        do="the same image by digest on every node, and no NCCL mounted from the host",
        scope="node",
        signals=(NCCL_VERSION,),
        judge=_versions_differ,
    ),
    Rule(
        name="network_plugin_on_a_part",
        kind=Kind.VERSION_MISMATCH,
        owner="platform",
        cause="a part of the nodes loads a NCCL network plugin, the others do not find it",
        do="install the plugin on every node, or switch it off on all (NCCL_NET_PLUGIN=none)",
        scope="node",
        signals=(PLUGIN_ABSENT, PLUGIN_LOADED),
        judge=_plugin_on_a_part,
    ),
    Rule(
        name="components_differ",
        kind=Kind.VERSION_MISMATCH,
        owner="platform",
        cause="two nodes have different versions of {component}",
        do="the same image by digest, and the same firmware, on every node",
        scope="node",
        signals=(COMPONENT,),
        judge=_components_differ,
    ),
    Rule(
        name="stack_versions_differ",
        kind=Kind.VERSION_MISMATCH,
        owner="platform",
        cause="ranks or nodes run different versions of the communication stack",
        do="the same image by digest on every node",
        scope="node",
        signals=(
            told(
                r"(older|newer|another|different) (torch|nccl|image|cuda|libfabric|plugin)\b",
                at=0.76,
                unless=r"works?|fine|passes|fix",
            ),
            says(
                r"mismatch\w* nccl version",
                r"nccl version mismatch",
                r"nccl.{0,40}(different|incompatible) version",
                at=SURE,
            ),
            told(
                r"(different|unequal|inconsistent|differing|mixed|mismatch\w*) (versions? of )?(nccl|rccl|torch"
                r"|pytorch|libfabric|efa|ofi|ucx|mpi|images?|cuda|plugin)( version)?",
                at=LIKELY,
                unless=r"compiled with|ray:|driver",
            ),
            told(
                r"(nccl|rccl|torch|pytorch|libfabric|efa|ofi|ucx|mpi|plugin|image)\b.{0,40}versions? "
                r".{0,40}(differ|mismatch|not (match|equal|the same)|unequal|inconsistent)",
                at=LIKELY,
                unless=r"compiled with|ray:|driver",
            ),
        ),
    ),
    Rule(
        name="nccl_internal_error",
        kind=Kind.NCCL_BUG,
        owner="platform",
        cause="NCCL fails inside itself, which another version mends",
        do="move the image to an NCCL release that mends it; until then switch the faulty path off",
        signals=(
            told(r"\b(leak|race|deadlock) in \w+|(patch\w*|fixed|merged) upstream|xml.{0,20}(parse|fail)", at=POSSIBLE),
            says(r"(proxy|topo|nvls|channel|transport)\w* .{0,60}internal error", at=LIKELY),
            told(
                r"\bbug (of|in) (this|the|that) (nccl |rccl )?version",
                r"\b2\.\d+(\.\d+)? (is|was|works?|runs?) (fine|ok|good|well|without)",
                r"(race|deadlock|bug|leak|defect|regression)\b.{0,20}\b(in|of) [nr]ccl\w*",
                r"(fix|patch)\w* in (nccl |rccl )?v?2\.\d+",
                at=LIKELY,
            ),
            says(r"please report this issue to the nccl developers", at=POSSIBLE),
            says(
                r"(internal error|ncclinternalerror).{0,80}(topo|graph|xml|search|nvls|proxy|channel|plugin)", at=LIKELY
            ),
            told(
                r"(fixed|solved|mended|resolved|regression|introduced|known (bug|issue|defect)|\bbug)"
                r".{0,60}\bn?r?ccl ?(version )?v?\d\.\d+",
                r"nccl ?(version )?v?\d\.\d+\S* .{0,60}(fixes|fixed|solves|works|does not|no longer|has the fix"
                r"|bug|regression|older|passes|fine)",
                at=LIKELY,
            ),
            told(
                r"(older|newer|earlier|later|previous|other|next) (nccl|rccl|build|release|version).{0,30}(works?"
                r"|fine|ok|passes|fix\w*)",
                r"(works?|fine|ok|passes|fixed|no hang) (with|on|in|by|since) (nccl |rccl )?v?2\.\d+",
                at=POSSIBLE,
            ),
            told(
                r"(upgrad|downgrad)\w* (of |to |from )?(nccl|rccl).{0,60}(fix|work|solv|help|resolv|gone|disappear)",
                r"(fix|work|solv|resolv|disappear|gone|vanish|pass)\w*.{0,40}(upgrad|downgrad|switch"
                r"|mov)\w* (to )?(nccl|rccl)",
                at=LIKELY,
            ),
            told(
                r"nccl_(nvls_enable|cumem_enable|cumem_host_enable|graph_\w+|algo|proto|launch_mode|mnnvl_enable"
                r"|dmabuf_enable|shm_disable|net_shared_comms|runtime_connect|pxn_disable|local_register"
                r"|collnet_enable)=\w+.{0,60}(works?|runs?|fix|helps|avoids|passes|solves|makes|no)",
                at=LIKELY,
            ),
            says(
                r"transport/nvls\.cc",
                r"graph/(topo|search|xml|tuning|connect)\.cc.{0,80}(warn|error|assert)",
                r"misc/cudawrap",
                r"nccl.{0,40}(nvls|cumem|mnnvl).{0,60}(fail|invalid argument|error|hang)",
                at=POSSIBLE,
            ),
            says(
                r"xml max nodes",
                r"topology.{0,20}(too large|parse error)",
                r"attribute \w+ of node \w+ not found",
                at=LIKELY,
            ),
        ),
    ),
    Rule(
        name="crash_inside_nccl",
        kind=Kind.NCCL_BUG,
        owner="platform",
        cause="a process crashed inside NCCL's own code",
        do="move the image to another NCCL release; keep the core file for a report",
        retry="may help",
        scope="rank",
        signals=(
            says(
                r"(segfault|segmentation fault|sigsegv|signal 11|sigabrt|assert\w*|double free|corrupt\w*).{0,120}"
                + IN_NCCL,
                at=LIKELY,
            ),
            told(
                r"(deadlock|race|leak|use.after.free|overflow|segfault).{0,80}(\bin (nccl|rccl)\b|nccl proxy)",
                at=LIKELY,
            ),
            says(
                r"(libnccl\.so\S*|librccl\.so\S*).{0,80}(segfault|error \d|sigsegv)",
                r"segfault at .{0,120}lib[nr]ccl",
                at=LIKELY,
            ),
            told(r"(deadlock|race|hang|bug|defect)\w* (in|inside|of|within) (the )?(nccl|rccl)\b", at=LIKELY),
        ),
    ),
    Rule(
        name="crash_with_nccl_on_the_stack",
        kind=Kind.NCCL_BUG,
        owner="platform",
        cause="a process crashed with NCCL's own code on top of its stack",
        do="move the image to another NCCL release; keep the core file for a report",
        retry="may help",
        scope="rank",
        signals=(CRASH, FRAME),
        judge=_crash_in_nccl,
    ),
)
