"""Names, addresses and ports: how ranks find each other, and why they do not."""

from __future__ import annotations

from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import NOTHING, Rule
from warpbeam.doctor.signal import HINT, LIKELY, POSSIBLE, SURE, says, state, told

OTHER_SERVICE = (
    r"huggingface|hf\.co|/api/(datasets|models)|amazonaws|s3[.:-]|\bs3\b|pypi|github\.com|registry|docker\.io"
    r"|wandb|ibv_|storage\.googleapis|pull"
)
"""Names of services that other rules answer for."""

NO_NAME = says(
    r"name or service not known",
    r"temporary failure in name resolution",
    r"host not found",
    r"nodename nor servname",
    r"gai error: ?-\d",
    r"getaddrinfo.{0,60}(fail|error)",
    r"no such host",
    r"nxdomain",
    r"unknownhostexception",
    r"server misbehaving",
    r"could ?n[o']t (be )?resolve",
    r"(cannot|failed to|can't|unable to) resolve",
    r"not resolv(able|ed)",
    r"does not resolve",
    r"unresolvable",
    r"no address associated with hostname",
    r"name resolution (fail|error)",
    at=SURE,
    unless=OTHER_SERVICE + r"|resolve reference|401|unauthorized",
)
WAITS_FOR_GCS = says(r"wait-gcs-ready", r"wait(ing)? for gcs to be ready", at=POSSIBLE)
CLUSTER_DOMAIN = says(r"cluster[ -_]?domain", r"svc\.cluster\.local", at=HINT)

REFUSED = says(
    r"(connect|connection|socket\w*|tcpstore|bind)\b.{0,100}(no route to host|network is unreachable"
    r"|connection refused|connection timed out|operation timed out|etimedout|ehostunreach|unreachable)",
    at=POSSIBLE,
    unless=OTHER_SERVICE + r"|:6379|gcs|redis|etcd|127\.0\.0\.1|localhost|exclude_resources",
)
LOOPBACK_LINE = says(
    r"(bootstrap|net/socket) ?: ?using (\[\d+\])?(lo|docker\d*|virbr\d*|br-\w+|cni\d*|flannel\S*|veth\w*)\b\S*",
    r"(bootstrap|net/socket) ?: ?using \S*:?(127\.|172\.17\.)",
    at=LIKELY,
)

EQUAL_ROUTES = state(
    r"(two|both|several|multiple|equal|overlapping|duplicate|asymmetric|same) .{0,30}(default )?(routes?|subnets?)\b",
    r"\brp_filter\b",
    r"policy routing",
    at=LIKELY,
)
ROUTE = state(
    r"(?P<network>default|\d+\.\d+\.\d+\.\d+/\d+) (via \S+ )?dev (?P<device>\S+)(.* metric (?P<metric>\d+))?",
    at=HINT,
    unless=r"docker|cni|veth",
)


def _same_network_twice(facts: Facts) -> tuple[list[Fact], float]:
    """One routing table that names one network on two devices with one metric."""
    told = facts.of(EQUAL_ROUTES)
    devices: dict[tuple[str, str, str | None], Fact] = {}
    for fact in facts.of(ROUTE):
        key = (fact.source.where, fact.words["network"], fact.words.get("metric"))
        other = devices.setdefault(key, fact)
        if other.words["device"] != fact.words["device"]:
            return [other, fact], 0.88
    return (told, told[0].signal.confidence) if told else NOTHING


RULES = (
    Rule(
        name="name_not_resolved",
        kind=Kind.RENDEZVOUS_DNS,
        owner="platform",
        cause="a rank cannot resolve the name of the head or of rank 0",
        do="wait for the name before the ranks start (init container), publish not-ready addresses; then start again",
        retry="may help",
        scope="rank",
        signals=(NO_NAME,),
    ),
    Rule(
        name="wrong_cluster_domain",
        kind=Kind.RENDEZVOUS_DNS,
        owner="platform",
        cause="workers wait for the head under a name that this cluster's DNS does not serve",
        do="set the operator's cluster domain to that of /etc/resolv.conf in the pods",
        scope="pod",
        signals=(WAITS_FOR_GCS,),
        needs=(CLUSTER_DOMAIN,),
    ),
    Rule(
        name="head_service_not_found",
        kind=Kind.RENDEZVOUS_DNS,
        owner="platform",
        cause="the service or record of the head is missing, or points to nothing",
        do="compare the service's selector with the head's labels, and its endpoints with the head's address",
        scope="pod",
        signals=(
            told(
                r"(headless )?service\S* .{0,60}(no endpoints|not found|missing|has no|without endpoints)",
                at=LIKELY,
                unless=r"modulenotfound|aws|s3",
            ),
            told(
                r"(dns|coredns|hostname|host name|fqdn).{0,80}(fail|not (yet )?(ready|published|resolv|known"
                r"|exist|found)|wrong|timeout|mismatch|missing)",
                at=LIKELY,
                unless=OTHER_SERVICE,
            ),
            told(r"(truncat\w+|longer than|exceed\w*).{0,40}(63|64|50) char", at=LIKELY),
        ),
    ),
    Rule(
        name="port_taken",
        kind=Kind.PORT_COLLISION,
        owner="ml",
        cause="the master's port is taken by another process on that host",
        do=(
            "end what an earlier attempt left behind, or let the launcher choose a free port (--master-port "
            "0, another MASTER_PORT)"
        ),
        retry="may help",
        scope="rank",
        signals=(
            says(r"failed to listen on any local network address", at=0.85),
            told(r"port\W{0,2}\d{2,5} (is |was )?(used|taken|held|occupied|busy)", at=LIKELY),
            says(
                r"address already in use",
                r"eaddrinuse",
                r"errno:? ?98\b",
                r"code: -98",
                at=SURE,
                unless=r"ray (start|head|dashboard)|attempt \d|retrying",
            ),
            says(
                r"port .{0,40}(is |was )?(already )?(taken|occupied|(already )?(in use|used|bound|allocated))",
                at=LIKELY,
            ),
            says(r"(failed|unable|cannot) to (bind|listen).{0,60}port", r"same (master_?)?port", at=POSSIBLE),
        ),
        unless=(
            says(
                r"(ray start|gcs|raylet|dashboard|worker_ports|node.manager|object.manager|hostnetwork|hostport)"
                r".{0,160}(port|in use|used)",
                at=HINT,
            ),
        ),
    ),
    Rule(
        name="service_port_taken",
        kind=Kind.PORT_COLLISION,
        owner="platform",
        cause="two services of one host want the same port",
        do="give Ray's services and workers ranges that do not overlap; no fixed ports on a shared host network",
        scope="node",
        signals=(
            says(
                r"(ray start|gcs|raylet|dashboard|worker_ports|node.manager|object.manager|agent)"
                r".{0,160}(address already in use|port .{0,60}(in use|used|occupied|taken|conflict))",
                at=SURE,
                unless=r"attempt \d|retrying|stay alive|unexpected error or",
            ),
            says(
                r"(component|port) .{0,60}trying to use a port (number )?that is used",
                r"port (collision|clash)",
                r"port conflict on",
                at=SURE,
            ),
            says(r"free ports? for the requested pod ports", r"host ?port.{0,60}(conflict|in use|allocated)", at=SURE),
        ),
    ),
    Rule(
        name="loopback_interface",
        kind=Kind.RANK_UNREACHABLE,
        owner="platform",
        cause="a rank offers its peers a loopback or container-bridge address, which only its own host can reach",
        do="name the interface for the workers (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME) in the pool's env",
        scope="node",
        signals=(
            told(r"master_addr\W{1,3}(localhost|127\.)", at=LIKELY),
            told(r"\b127\.0\.1\.1\b", at=LIKELY),
            LOOPBACK_LINE,
            says(
                r"(connect(s|ing)?( to)?|advertis\w+|resolv\w+|listening|gloo|address|master_addr|hostname)"
                r".{0,30}\b127\.0\.1\.1\b",
                at=LIKELY,
                unless=r"dashboard|8265|redis|refused.{0,40}:(22|6379)",
            ),
        ),
    ),
    Rule(
        name="bridge_address_offered",
        kind=Kind.RANK_UNREACHABLE,
        owner="platform",
        cause="a rank is told to connect to an address of a container bridge or of one link only",
        do="name the interface for the workers (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME) in the pool's env",
        scope="node",
        signals=(
            says(
                r"connect\w*\b.{0,60}\b(172\.1[78]\.0\.|192\.168\.122\.|169\.254\.|fe80:)", at=0.82, unless=r"gid|ibv_"
            ),
        ),
    ),
    Rule(
        name="peer_refuses",
        kind=Kind.RANK_UNREACHABLE,
        owner="platform",
        cause="a rank connects to an address where no rank listens: another interface, or another host of that name",
        do="compare the `Bootstrap : Using` lines of all ranks; name the interface in the pool's env",
        retry="may help",
        scope="rank",
        signals=(
            says(
                r"(socketstartconnect|connect to \S+ failed|gloo|tcpstore|client socket)\b.{0,120}connection refused",
                at=0.7,
                unless=OTHER_SERVICE + r"|:6379|gcs|redis|127\.0\.0\.1|localhost",
            ),
        ),
        unless=(NO_NAME,),
    ),
    Rule(
        name="interface_unknown",
        kind=Kind.RANK_UNREACHABLE,
        owner="platform",
        cause="the interface that a rank was told to use does not exist, or has no address",
        do="compare NCCL_SOCKET_IFNAME / GLOO_SOCKET_IFNAME with `ip -br addr` in every worker",
        scope="node",
        signals=(
            says(
                r"no socket interface found",
                r"unable to find address for",
                r"no interface found with",
                r"no usable interface",
                at=SURE,
            ),
            told(
                r"(socket_ifname|interface).{0,60}(not (found|exist|present)|does not exist|unknown"
                r"|no such device|mismatch|missing|wrong)",
                at=LIKELY,
            ),
            told(
                r"(differ\w*|different|wrong|another|unexpected|incorrect|several|two|dual"
                r"|multiple) (network )?(interface|nic|subnet)s?",
                at=POSSIBLE,
                unless=r"hca|mlx5|mtu",
            ),
        ),
    ),
    Rule(
        name="interface_of_the_shell_only",
        kind=Kind.RANK_UNREACHABLE,
        owner="platform",
        cause="the network interface was named in the driver's shell, where the workers do not see it",
        do="set the NCCL and GLOO variables where `ray start` runs on every node, or in runtime_env",
        scope="node",
        signals=(
            told(
                r"(nccl|gloo|tp)_socket_ifname\S*.{0,60}(exported|set|only).{0,60}(shell|driver|head|rank 0"
                r"|master).{0,20}(only)?",
                at=POSSIBLE,
            ),
        ),
    ),
    Rule(
        name="address_not_routed",
        kind=Kind.RANK_UNREACHABLE,
        owner="platform",
        cause="a node announces an address that its peers have no route to",
        do="name the right address when the node joins (`ray start --node-ip-address`, the host's IP variable)",
        scope="node",
        signals=(
            told(
                r"not routable",
                r"unroutable",
                r"not reachable from",
                r"unreachable from",
                at=LIKELY,
                unless=OTHER_SERVICE,
            ),
            says(r"local node ip: ?\S+", at=HINT),
            told(r"(node|host)[ _]?ip.{0,40}(mismatch|wrong|differ|inconsistent)", at=LIKELY),
        ),
    ),
    Rule(
        name="two_equal_routes",
        kind=Kind.RANK_UNREACHABLE,
        owner="infra",
        cause="two interfaces of a node have equal routes to the same network, so traffic may leave by the wrong one",
        do="give the interfaces distinct subnets, or one route a larger metric",
        scope="node",
        signals=(
            ROUTE,
            EQUAL_ROUTES,
        ),
        judge=_same_network_twice,
    ),
    Rule(
        name="firewall",
        kind=Kind.RANK_UNREACHABLE,
        owner="infra",
        cause="a firewall or network policy drops the connections between ranks",
        do="open all ports between the nodes of a job; a listening port answers `nc -vz` from every worker",
        scope="node",
        signals=(
            told(r"\bistio\b|\benvoy\b|service mesh|\bmtls\b", at=LIKELY),
            told(r"network ?polic(y|ies)|deny (all )?(ingress|egress)|default[- ]deny", at=LIKELY),
            told(
                r"firewall",
                r"iptables",
                r"nftables",
                r"\bufw\b",
                r"networkpolic",
                r"security group",
                r"selinux.{0,40}denied",
                at=LIKELY,
            ),
            told(
                r"(ports?|traffic|packets|connections?).{0,60}\b(blocked|dropped|filtered|not open|closed)\b",
                at=POSSIBLE,
                unless=r"by peer|closed (port )?on shutdown",
            ),
        ),
    ),
    Rule(
        name="peer_not_reached",
        kind=Kind.RANK_UNREACHABLE,
        owner="infra",
        cause="a rank cannot open a connection to another one",
        do="`ip route get PEER` and `nc -vz PEER PORT` from that worker: interface, route or firewall",
        scope="rank",
        signals=(
            says(r"connection timed out to|timed out connecting", at=POSSIBLE, unless=OTHER_SERVICE),
            REFUSED,
            says(r"gloo.{0,60}connectfullmesh", r"connectfullmesh failed", r"gloo connect", at=POSSIBLE),
            says(
                r"socketstartconnect",
                r"call to connect (to \S+ )?.{0,80}failed",
                r"connect to \S+ failed ?: ?(no route|network|connection)",
                at=LIKELY,
                unless=r"connection refused",
            ),
            says(r"no route to host", at=LIKELY, unless=OTHER_SERVICE),
            says(
                r"timed out (after \d+ \w+ )?(trying to connect|waiting for clients)",
                r"failed to connect to any network address",
                at=POSSIBLE,
            ),
        ),
        unless=(NO_NAME,),
    ),
)
