"""InfiniBand, RoCE and the PCIe paths between GPUs and NICs: what the work completions' numbers mean."""

from __future__ import annotations

from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import NOTHING, Rule
from warpbeam.doctor.signal import HINT, LIKELY, POSSIBLE, SURE, says, state, told

MTU = says(r"mtu\b[^0-9]{0,20}(?P<mtu>\d{3,5})", at=HINT)
COMPLETION = r"(got completion|completion (with|error)|wc|work completion).{0,120}(error|status) ?[=:]? ?"


def _mtu_differs(facts: Facts) -> tuple[list[Fact], float]:
    """Two ports of one job with different MTU."""
    ports = facts.of(MTU)
    return (ports, 0.9) if len({fact.words["mtu"] for fact in ports}) > 1 else NOTHING


RULES = (
    Rule(
        name="mtu_differs",
        kind=Kind.IB_ROCE,
        owner="infra",
        cause="the RDMA ports of the job's nodes have different MTU",
        do="set one MTU on all RDMA ports and their switches",
        scope="node",
        signals=(MTU,),
        judge=_mtu_differs,
    ),
    Rule(
        name="rdma_retries_exhausted",
        kind=Kind.IB_ROCE,
        owner="infra",
        cause=(
            "RDMA packets to a peer are not answered: GID index or HCA that is not routed (at start), or a "
            "lost link (mid-run)"
        ),
        do=(
            "compare `show_gids` of the pair and set the routable index in the pool's env; mid-run: look "
            "at the link's counters"
        ),
        retry="may help",
        scope="rank",
        signals=(
            says(
                COMPLETION + "12\\b|ibv_wc_retry_exc_err|vendor err(or)? 129|transport retry counter exceeded", at=SURE
            ),
            says(COMPLETION + "(13|10)\\b|rnr retry counter|rnr_retry_exc|ibv_wc_rem_access_err", at=LIKELY),
            says(r"ibv_modify_qp.{0,80}(fail|error|timed out)", at=SURE, unless=r"invalid argument.{0,40}p2p"),
            told(
                r"gid[ _]?(index|table|\d).{0,80}(link-local|not rout|wrong|invalid|change|fail|mismatch|empty|null)",
                at=LIKELY,
            ),
            says(r"failed to (get|query) gid", r"ibv_query_gid.{0,40}fail", r"no (valid )?gid", at=LIKELY),
        ),
    ),
    Rule(
        name="rdma_length_error",
        kind=Kind.IB_ROCE,
        owner="infra",
        cause="an RDMA work request ends with a length or access error: the two sides disagree, typically in their MTU",
        do="compare `ibv_devinfo | grep mtu` on both nodes; make them equal",
        scope="rank",
        signals=(
            says(COMPLETION + "1\\b|ibv_wc_loc_len_err|local length error", at=SURE),
            says(r"local access violation", r"ibv_wc_loc_access_err", at=LIKELY),
            says(
                r"mtu.{0,30}(mismatch|differ|not equal|unequal|inconsistent)",
                r"(mismatch|differ)\w*.{0,20}\bmtu",
                at=SURE,
            ),
        ),
    ),
    Rule(
        name="memory_not_lockable",
        kind=Kind.IB_ROCE,
        owner="infra",
        cause="the process may not lock the memory that RDMA needs (memlock limit)",
        do="unlimited memlock where the ranks are really started: container, service unit or job scheduler",
        scope="rank",
        signals=(
            says(r"ibv_(reg_mr|create_cq|create_qp|reg_mr_iova2)\S*.{0,120}(cannot allocate memory|enomem)", at=SURE),
            says(r"(max locked memory|memlock|ulimit -l)[^a-z]{0,20}\d+", at=LIKELY),
            says(r"memlock.{0,60}(limit|low|small|not unlimited)", r"rlimit_memlock", at=LIKELY),
        ),
    ),
    Rule(
        name="rdma_link_down",
        kind=Kind.IB_ROCE,
        owner="infra",
        cause="an InfiniBand or RoCE link is down, flapping or mis-trained",
        do="take the node out; reseat or replace cable and transceiver, look at the switch port's errors",
        retry="may help",
        scope="node",
        signals=(
            says(r"poll_health|device health|async event.{0,40}(fatal|error)", at=LIKELY),
            says(
                r"got async event.{0,60}(port|link|gid|fatal|device)", r"ibv_event_(port_err|device_fatal)", at=LIKELY
            ),
            says(
                r"(mlx[45]\w*|ib\d|bnxt\w*|hca|infiniband|roce|rdma|port \d).{0,80}(link (is )?(down|flap)"
                r"|port (is )?down|port_down|link went down|state: ?down|lost link)",
                at=SURE,
            ),
            says(
                r"(state|physical state|phys_state): ?(down|polling|disabled|init)\w*",
                r"port_(down|init)\b",
                r"linkup.{0,20}initializ",
                at=LIKELY,
            ),
            says(
                r"link[ -]?(flap|down)\w*",
                r"symbol ?error\w*",
                r"link_?(error_recovery|downed)",
                r"(bad|faulty|broken|loose) (cable|transceiver|optic|switch port)",
                at=LIKELY,
                unless=r"nvlink|ethernet eno|docker|veth",
            ),
        ),
    ),
    Rule(
        name="hca_choice",
        kind=Kind.IB_ROCE,
        owner="infra",
        cause="NCCL uses, or is told to use, an HCA that cannot reach the peers or does not exist here",
        do=(
            "list the compute HCAs in the pool's env (NCCL_IB_HCA, with = for exact names), without "
            "storage and management NICs"
        ),
        scope="node",
        signals=(
            told(r"no (ib|infiniband|rdma) devices?\b|rdma/\S+ .{0,20}(missing|absent|not)", at=LIKELY),
            told(
                r"(nccl_ib_hca|\bhca\b).{0,80}(wrong|not found|unknown|mismatch|storage|differ|exclude"
                r"|unreachable|missing|prefix)",
                at=LIKELY,
                unless=r"gdr|gpu direct",
            ),
            says(
                r"(mismatched|different|incompatible).{0,20}link layer",
                r"ibv_open_device.{0,40}fail",
                r"unable to open device",
                at=LIKELY,
            ),
            told(r"subnet manager", r"opensm", r"\bpkey\b", r"partition key", r"\bsm_lid: ?0\b", at=LIKELY),
            state(r"(pfc|ecn|dcqcn|traffic class|nccl_ib_tc|priority flow)", at=POSSIBLE),
        ),
    ),
    Rule(
        name="gpudirect_protection_error",
        kind=Kind.GPUDIRECT_P2P_PCIE,
        owner="infra",
        cause="the NIC may not reach GPU memory over PCIe (ACS or IOMMU redirects peer-to-peer traffic)",
        do=(
            "switch ACS off on the PCIe switches and the IOMMU to passthrough; until then "
            "NCCL_NET_GDR_LEVEL=0 works, slowly"
        ),
        scope="rank",
        signals=(
            says(COMPLETION + "4\\b|ibv_wc_loc_prot_err|local protection error", at=SURE),
            says(r"vendor err(or)? 81\b", at=LIKELY),
            says(r"ibv_(reg_mr|reg_dmabuf_mr)\S*.{0,80}(bad address|efault|invalid argument)", at=LIKELY),
        ),
    ),
    Rule(
        name="iommu_or_acs",
        kind=Kind.GPUDIRECT_P2P_PCIE,
        owner="infra",
        cause="IOMMU or ACS stands between the GPUs: peer-to-peer transfers hang or are corrupted",
        do="boot with iommu=pt or off, ACS off; until then NCCL_P2P_DISABLE=1",
        scope="node",
        signals=(
            says(r"missing .?iommu=pt", at=SURE),
            says(r"(intel|amd)_iommu=on\b", at=LIKELY, unless=r"iommu=pt"),
            says(
                r"acsctl.{0,20}srcvalid\+",
                r"\bacs\b.{0,40}(enabled|on\b|redirect|active)",
                r"(enabled|disable) acs\b",
                at=LIKELY,
            ),
            says(
                r"dmar:.{0,60}fault",
                r"amd-vi:.{0,60}(io_page_fault|event)",
                r"iommu.{0,60}(fault|page fault|enabled|translation)",
                r"vt-d.{0,30}enabled",
                at=LIKELY,
            ),
        ),
    ),
    Rule(
        name="peer_memory_missing",
        kind=Kind.GPUDIRECT_P2P_PCIE,
        owner="infra",
        cause="the kernel module for GPU peer memory is not loaded",
        do="load nvidia-peermem (or use DMA-BUF) on every node of the pool",
        scope="node",
        signals=(
            says(
                r"(nvidia[_-]peermem|nv_peer_mem|peermem).{0,60}(not (loaded|found|installed|available)|missing"
                r"|fail|disabled|invalid argument|could not)",
                at=LIKELY,
            ),
            says(r"(no module|could not|failed to|modprobe:?).{0,60}(nvidia[_-]peermem|nv_peer_mem)", at=LIKELY),
        ),
    ),
    Rule(
        name="peer_access_fails",
        kind=Kind.GPUDIRECT_P2P_PCIE,
        owner="infra",
        cause="two GPUs of a node cannot reach each other's memory, or do so wrongly",
        do="`nvidia-smi topo -p2p r` and p2pBandwidthLatencyTest; mend the PCIe path, until then NCCL_P2P_DISABLE=1",
        scope="node",
        signals=(
            says(
                r"cannot access peer",
                r"peer access (is )?not supported",
                r"cudaerrorpeeraccess",
                r"peer access .{0,30}(fail|disabled|error)",
                at=LIKELY,
            ),
            told(r"nccl_p2p_disable=1.{0,60}(works?|runs?|ok|fixes|helps|passes|solves|no hang|makes)", at=LIKELY),
            told(
                r"(works?|runs?|ok|fixed|solved|passes).{0,40}(with|after|by) .{0,20}nccl_p2p_(disable=1|level)",
                at=LIKELY,
            ),
            told(
                r"p2p.{0,40}(hang|corrupt|fail|broken|wrong|stall|bad data)",
                r"(hang|stall)\w*.{0,30}\bp2p\b",
                at=LIKELY,
            ),
            says(r"doesn'?t support faster communication (broadband|bandwidth)", at=LIKELY),
            told(r"(gpu ?direct|\bgdr\b).{0,60}(hang|corrupt|fail|fault|wrong data)", at=LIKELY),
        ),
    ),
)
