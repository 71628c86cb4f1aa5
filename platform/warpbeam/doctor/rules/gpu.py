"""GPUs, their links and their driver: Xid numbers, ECC, fabric manager, versions that do not fit."""

from __future__ import annotations

import re

from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import NOTHING, Rule
from warpbeam.doctor.signal import HINT, LIKELY, POSSIBLE, SURE, says, told

# Xids that a program can cause by itself (13, 31, 43, 45, 68, 69) are no sign of hardware, and 79 always is one.
HARD_XID = r"xid.{0,60}[ :(](48|62|63|64|74|79|92|94|95|109|110|119|120|121|136|140|143|149|154|155|156|158)\b"
LOST = says(
    r"unable to determine the device handle",
    r"fallen off the bus",
    r"gpu is lost",
    r"gpu (has )?disappeared",
    r"gpu requires reset",
    r"nvrm: gpu at pci.{0,80}(lost|fall)",
    at=SURE,
)

MODULE_AND_LIBRARY = says(
    r"(kernel module|nvrm version|module)\D{0,40}(?P<module>\d{3}\.[\d.]+).{0,60}"
    r"(lib\w+|library|user|nvml)\D{0,40}(?P<library>\d{3}\.[\d.]+)",
    at=HINT,
)
MANAGER_VERSION = says(r"fabric ?manager.{0,60}version.{0,40}(mismatch|match|differ)", at=HINT)


def _differ(facts: Facts) -> tuple[list[Fact], float]:
    """One line that names both versions, and they are not the same."""
    apart = [fact for fact in facts.of(MODULE_AND_LIBRARY) if fact.words["module"] != fact.words["library"]]
    return (apart, 0.85) if apart else NOTHING


FAILURE = told(r"\b(\w*error|fail\w*|crash\w*|hang\w*|hung|killed|aborted)\b", at=HINT)
_ATTEMPT = re.compile(r"\b(attempt|job|run|try) ?#?\d+", re.IGNORECASE)


def _same_node_again(facts: Facts) -> tuple[list[Fact], float]:
    """One node, and no other, on which several attempts failed."""
    failed: dict[str, dict[str, Fact]] = {}
    for fact in facts.of(FAILURE):
        attempt = _ATTEMPT.search(fact.source.where)
        if attempt and fact.node:
            failed.setdefault(fact.node, {}).setdefault(attempt[0].lower(), fact)
    if len(failed) != 1:
        return NOTHING
    (attempts,) = failed.values()
    return (list(attempts.values()), 0.85) if len(attempts) > 1 else NOTHING


RULES = (
    Rule(
        name="gpu_xid",
        kind=Kind.GPU_HARDWARE,
        owner="infra",
        cause="the driver reports a hardware error of a GPU (Xid {xid})",
        do="take the node out, reset the GPU; replace it when the Xid returns. Elsewhere the run continues at once",
        retry="may help",
        scope="node",
        signals=(says(HARD_XID.replace("(48", "(?P<xid>48", 1), at=SURE),),
    ),
    Rule(
        name="gpu_lost",
        kind=Kind.GPU_HARDWARE,
        owner="infra",
        cause="a GPU is gone from the PCIe bus",
        do="take the node out; reseat the GPU, look at the PCIe errors, replace it when it happens again",
        retry="may help",
        scope="node",
        signals=(
            says(r"timeout waiting for rpc from gsp|rminitadapter failed", at=SURE),
            told(r"(shows?|lists?|sees?|finds?|only) \d+ of \d+ gpus?", at=LIKELY),
            LOST,
            says(
                r"(no devices were found|only \d+ of \d+ gpus|gpu.{0,20}missing|\d+ of \d+ gpus? (visible|found"
                r"|detected))",
                at=LIKELY,
            ),
            says(r"aer: .{0,40}(uncorrect|fatal)", r"pcie bus error: severity=uncorrect", at=LIKELY),
            says(r"pcie bus error: severity=corrected", at=POSSIBLE),
        ),
    ),
    Rule(
        name="gpu_memory_errors",
        kind=Kind.GPU_HARDWARE,
        owner="infra",
        cause="a GPU's memory has errors that cannot be corrected",
        do="take the node out, reset the GPU so that rows are remapped; replace it when errors return",
        retry="may help",
        scope="node",
        signals=(
            says(r"remap\w* rows?.{0,20}pending: ?yes|uncorrectable error: ?[1-9]", at=SURE),
            says(
                r"uncorrectable.{0,20}ecc",
                r"ecc.{0,20}(uncorrectable|double.?bit|error encountered)",
                r"double.?bit (ecc )?error",
                r"cudaerroreccuncorrectable",
                r"dbe\b.{0,20}(error|ecc)",
                at=SURE,
            ),
            says(
                r"row.?remap\w*.{0,40}(pending|fail|error)",
                r"remapping fail",
                r"(retired|bad) pages?.{0,30}(pending|double)",
                at=LIKELY,
            ),
            told(r"hbm.{0,30}(error|fault|fail)", at=LIKELY),
        ),
    ),
    Rule(
        name="fabric_manager",
        kind=Kind.GPU_HARDWARE,
        owner="platform",
        cause="the fabric manager of an NVSwitch machine is missing or does not run",
        do="install and enable nvidia-fabricmanager in the driver's version on the node image",
        scope="node",
        signals=(
            says(
                r"error 802\b",
                r"system not yet initialized",
                r"cudaerrorsystemnotready",
                r"cuda_error_system_not_ready",
                at=SURE,
            ),
            says(
                r"fabric ?manager.{0,80}(not (found|installed|running|active|started)|inactive|fail|missing|dead"
                r"|unit)",
                at=SURE,
                unless=r"version.{0,20}(mismatch|match|differ)",
            ),
            says(r"fabric.{0,20}state.{0,20}(in progress|not complete)", at=LIKELY),
        ),
        unless=(MANAGER_VERSION,),
    ),
    Rule(
        name="nvlink_fault",
        kind=Kind.GPU_HARDWARE,
        owner="infra",
        cause="an NVLink or NVSwitch of the node is faulty",
        do="take the node out; `nvidia-smi nvlink -e`, reset, then replace",
        retry="may help",
        scope="node",
        signals=(
            says(
                r"\bsxid\b",
                r"nv(link|switch).{0,60}(error|fatal|fail|fault|inactive|down|replay|crc|degrad)",
                at=LIKELY,
                unless=r"nccl info",
            ),
        ),
    ),
    Rule(
        name="gpu_suspect",
        kind=Kind.GPU_HARDWARE,
        owner="infra",
        cause="the failures follow one node or GPU: hardware, whatever the message says",
        do="exclude that node and start again; run `dcgmi diag -r 3` on it",
        retry="may help",
        scope="node",
        signals=(
            told(
                r"\b(all|every|each|both|always|again|repeatedly)\b.{0,40}(fail|crash|hang|die)\w*"
                r".{0,20} on (the same )?(node|host|gpu)",
                r"(fail|crash|hang|die)\w* on (node|host|gpu)\S* (each|every) (time|attempt)",
                at=LIKELY,
                unless=r"slow",
            ),
            told(
                r"(same|one|single|that|this|particular|specific) (node|host|gpu|machine|device)\b.{0,60}(every"
                r"|each|all|both|always|again|only|fail|attempt|other nodes)",
                at=LIKELY,
                unless=r"one node of|per node|slow|each node",
            ),
            told(
                r"(faulty|bad|defective|broken|damaged) (gpu|node|card|device|hardware)",
                r"hardware (fault|failure|error|defect)",
                r"gpu.{0,20}(replaced|swapped|faulty)",
                at=LIKELY,
            ),
            told(r"(dcgmi?|gpu.burn|memtest|diag\w*).{0,60}\bfail", at=LIKELY),
            told(
                r"(exclud|remov|drain|cordon|replac|without)\w*.{0,20}(node|gpu|host)\S* .{0,40}(works?|fixe[sd]"
                r"|ok|passes|succeed|no (more )?(error|fail|hang))",
                at=LIKELY,
            ),
        ),
    ),
    Rule(
        name="same_node_again",
        kind=Kind.GPU_HARDWARE,
        owner="infra",
        cause="several attempts failed on one and the same node: hardware, whatever the message says",
        do="exclude that node and start again; run `dcgmi diag -r 3` on it",
        retry="may help",
        scope="node",
        signals=(FAILURE,),
        judge=_same_node_again,
    ),
    Rule(
        name="driver_library_mismatch",
        kind=Kind.DRIVER_MISMATCH,
        owner="infra",
        cause="the driver's user libraries and the loaded kernel module have different versions",
        do="reboot the node or reload the module; hold the driver's packages",
        retry="may help",
        scope="node",
        signals=(
            says(r"nvidia-container-cli: .{0,80}(error|failed)", at=LIKELY),
            says(r"no cuda-capable device", at=POSSIBLE),
            says(
                r"forward compatibility was attempted",
                r"error 80[34]\b",
                r"cudaerrorcompatnotsupported",
                r"cudaerrorsystemdrivermismatch",
                r"unsupported display driver",
                at=SURE,
            ),
            says(r"driver/library version mismatch", r"api mismatch: the client has", r"nvrm: api mismatch", at=SURE),
            says(r"(couldn'?t|could not|can'?t|unable to) communicate with the nvidia driver", at=LIKELY),
            says(
                r"fabric ?manager.{0,60}version.{0,40}(mismatch|match|differ)",
                r"version mismatch.{0,40}fabric ?manager",
                at=SURE,
            ),
            says(r"failed to initialize nvml", at=LIKELY),
        ),
    ),
    Rule(
        name="module_and_library_differ",
        kind=Kind.DRIVER_MISMATCH,
        owner="infra",
        cause="the loaded kernel module is {module}, the user library {library}",
        do="reboot the node or reload the module; hold the driver's packages",
        retry="may help",
        scope="node",
        signals=(MODULE_AND_LIBRARY,),
        judge=_differ,
    ),
    Rule(
        name="driver_too_old",
        kind=Kind.DRIVER_MISMATCH,
        owner="infra",
        cause="the node's driver is too old for the CUDA of the image",
        do="a newer driver on the nodes, or an image whose CUDA their driver supports",
        scope="node",
        signals=(
            says(
                r"driver version is insufficient",
                r"driver.{0,30}(is )?too old",
                r"cudaerrorinsufficientdriver",
                r"error 35\b",
                at=SURE,
            ),
            says(
                r"provided ptx was compiled with an unsupported toolchain",
                r"cuda_error_unsupported_ptx_version",
                at=LIKELY,
            ),
            says(r"unsatisfied condition: cuda ?>=", r"requires? (a )?(newer )?(nvidia )?driver", at=LIKELY),
        ),
    ),
)
