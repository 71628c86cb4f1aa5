"""Rules about the network: interfaces and adapters that are not there, settings of another cluster, contradictions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from warpbeam.environment.select import Selection, gloo_names
from warpbeam.environment.setting import Check, Environment, Finding, Ground, Level

_NCCL_IF: Final = "NCCL_SOCKET_IFNAME"
_GLOO_IF: Final = "GLOO_SOCKET_IFNAME"
_HCA: Final = "NCCL_IB_HCA"
_LOCAL_ONLY: Final = re.compile(r"lo$|docker|br-|virbr|veth|cni|cali|flannel|tailscale|tun|kube-ipvs")
"""Interfaces over which another machine is never reached."""
_POD_INTERFACE: Final = "eth0"
_SOCKETS_AT_MOST: Final = 64
_CLOUDS: Final = (
    (re.compile(r"FI_(PROVIDER|EFA_\w+)"), "AWS' EFA", "efa"),
    (re.compile(r"NCCL_(GPUDIRECTTCPX|FASTRAK)_\w+"), "Google Cloud's GPUDirect-TCP", "gke"),
)


def chosen_interfaces(env: Environment) -> list[tuple[str, list[str]]]:
    """Each variable that names interfaces, with the names; exclusions name none."""
    nccl, gloo = env.get(_NCCL_IF), env.get(_GLOO_IF)
    found = []
    if nccl is not None:
        selection = Selection.parse(nccl)
        found.append((_NCCL_IF, [] if selection.excluding else list(selection.names)))
    if gloo is not None:
        found.append((_GLOO_IF, list(gloo_names(gloo))))
    return found


def local_interface(env: Environment, ground: Ground) -> Iterator[Finding]:
    """The ranks of several nodes cannot meet on an interface that stays inside one."""
    if ground.nodes < 2:
        return
    for variable, names in chosen_interfaces(env):
        wrong = [name for name in names if _LOCAL_ONLY.match(name)]
        if wrong:
            yield env.finding(
                "local_interface",
                Level.ERROR,
                variable,
                f"names {wrong[0]}, which does not leave the machine",
                why=f"the pool has {ground.nodes} nodes: their ranks would wait for each other until the time-out",
                do="name the interface that the nodes reach each other by (`ip route get` another node's address)",
            )


def host_interface_in_pods(env: Environment, ground: Ground) -> Iterator[Finding]:
    """A node's interface does not exist in a pod."""
    if not ground.in_pods:
        return
    theirs = [_POD_INTERFACE, *(f"net{n}" for n in range(1, 1 + len(ground.networks)))]
    for variable, names in chosen_interfaces(env):
        if not names or any(_LOCAL_ONLY.match(name) for name in names):
            continue
        selection = Selection.parse(env.get(variable) or "")
        if variable == _GLOO_IF:
            selection = Selection(tuple(names), exact=True, excluding=False)
        if any(selection.takes(name) for name in theirs):
            continue
        more = "" if ground.networks else ", or name the secondary networks in the pool's kubernetes.fabric.networks"
        yield env.finding(
            "host_interface",
            Level.ERROR,
            variable,
            f"names {names[0]}; the pods have {', '.join(theirs)}",
            why="a pod has interfaces of its own, whatever those of its node are called",
            do=f"write {_POD_INTERFACE}{more}",
        )


def absent_here(env: Environment, ground: Ground) -> Iterator[Finding]:
    """An interface or adapter that this machine does not have, or that is down."""
    if ground.interfaces is not None:
        for variable, names in chosen_interfaces(env):
            there = sorted(ground.interfaces)
            missing = Selection.parse(env.get(variable) or "").misses(there)
            if variable == _GLOO_IF:
                missing = [name for name in names if name not in ground.interfaces and name[:1] not in "^="]
            if missing:
                yield env.finding(
                    "no_such_interface",
                    Level.ERROR,
                    variable,
                    f"names {missing[0]}, which this machine does not have",
                    why="gloo ends with `Unable to find address`; NCCL with `no socket interface found`",
                    do=f"there are {', '.join(there)}",
                )
            down = [name for name in names if ground.interfaces.get(name) is False]
            if down:
                yield env.finding(
                    "interface_down",
                    Level.ERROR,
                    variable,
                    f"names {down[0]}, which is down",
                    why="ranks bind to it and nobody answers",
                    do=f"`ip link set {down[0]} up`, or name another one",
                )
    adapters = env.get(_HCA)
    if ground.hcas is not None and adapters is not None and (missing := Selection.parse(adapters).misses(ground.hcas)):
        devices = ", ".join(sorted(ground.hcas)) or "none"
        yield env.finding(
            "no_such_adapter",
            Level.ERROR,
            _HCA,
            f"names {missing[0]}; RDMA devices here: {devices}",
            why="NCCL falls back to sockets without a word above INFO: a tenth of the speed",
            do="name what `ibv_devices` lists" if ground.hcas else "leave it out; there is no RDMA device",
        )


def gloo_syntax(env: Environment, _: Ground) -> Iterator[Finding]:
    """NCCL's `^` and `=` mean nothing to gloo."""
    value = env.get(_GLOO_IF)
    if value is not None and value.startswith(("^", "=")):
        yield env.finding(
            "gloo_syntax",
            Level.ERROR,
            _GLOO_IF,
            "uses NCCL's way to write a list",
            why="gloo takes whole names only and looks for an interface of exactly this name",
            do="write the interface's whole name",
        )


def two_interfaces(env: Environment, ground: Ground) -> Iterator[Finding]:
    """gloo and NCCL over interfaces of which one may not reach the other nodes."""
    nccl, gloo = env.get(_NCCL_IF), env.get(_GLOO_IF)
    if ground.nodes < 2 or nccl is None or gloo is None or gloo.startswith(("^", "=")):
        return
    selection = Selection.parse(nccl)
    if not any(selection.takes(name) for name in gloo_names(gloo)):
        yield env.finding(
            "two_interfaces",
            Level.WARNING,
            _GLOO_IF,
            f"is another interface than NCCL's ({nccl})",
            why="when one of the two networks has a fault, half of the job hangs and the other half does not",
            do="name the same one, unless the networks are separate on purpose",
        )


def fabric_unused(env: Environment, ground: Ground) -> Iterator[Finding]:
    """RDMA is there, or named, and turned off."""
    by_sockets = (env.get("NCCL_NET") or "").lower() == "socket"
    off = "NCCL_IB_DISABLE" if env.number("NCCL_IB_DISABLE") else "NCCL_NET" if by_sockets else None
    if off is None:
        return
    tuned = sorted(name for name in env.settings if name.startswith(("NCCL_IB_", "NCCL_NET_GDR")) and name != off)
    if tuned:
        yield env.finding(
            "contradiction",
            Level.WARNING,
            off,
            f"turns RDMA off, and {tuned[0]} tunes it",
            why="one of the two was copied from somewhere",
            do=f"leave {off} out, or {', '.join(tuned)}",
        )
    elif ground.rdma:
        yield env.finding(
            "fabric_unused",
            Level.WARNING,
            off,
            f"turns RDMA off, and the pool gives its pods {ground.rdma[0]}",
            why="nodes then talk over sockets, at a tenth of the speed",
            do="leave it out",
        )


def other_cloud(env: Environment, ground: Ground) -> Iterator[Finding]:
    """Settings that came along from another cluster."""
    for name in env.settings:
        for pattern, owner, resource in _CLOUDS:
            if pattern.fullmatch(name) and ground.rdma is not None and not any(resource in r for r in ground.rdma):
                yield env.finding(
                    "other_cloud",
                    Level.WARNING,
                    name,
                    f"belongs to {owner}, and this pool gives its pods no resource of that",
                    why="settings that were copied from another cluster do nothing at best",
                    do="leave it out, or name the resource in the pool's kubernetes.fabric.resources",
                )


def limits(env: Environment, _: Ground) -> Iterator[Finding]:
    """Pairs of numbers that contradict each other."""
    for low, high in (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")):
        least, most = env.number(low), env.number(high)
        if least is not None and most is not None and least > most:
            yield env.finding(
                "contradiction",
                Level.WARNING,
                low,
                f"is more than {high} ({most})",
                why="one of the two is ignored",
                do="keep one of the two",
            )
    threads, sockets = env.number("NCCL_SOCKET_NTHREADS"), env.number("NCCL_NSOCKS_PERTHREAD")
    if threads and sockets and threads * sockets > _SOCKETS_AT_MOST:
        yield env.finding(
            "contradiction",
            Level.WARNING,
            "NCCL_NSOCKS_PERTHREAD",
            f"makes {threads * sockets} sockets with NCCL_SOCKET_NTHREADS",
            why=f"NCCL takes {_SOCKETS_AT_MOST} for a connection at most, and lowers it",
            do=f"write numbers whose product is {_SOCKETS_AT_MOST} or less",
        )


def logs_in_one_file(env: Environment, ground: Ground) -> Iterator[Finding]:
    """All ranks write over each other."""
    path, subsystems = env.get("NCCL_DEBUG_FILE"), env.get("NCCL_DEBUG_SUBSYS")
    if path is not None and "%p" not in path and ground.nodes * ground.ranks_per_node > 1:
        yield env.finding(
            "one_log_file",
            Level.WARNING,
            "NCCL_DEBUG_FILE",
            "is one file for all ranks of a node",
            why="each rank begins it anew: the last to start is the only one that can be read",
            do="put %h (host) and %p (process) into the name",
        )
    if subsystems is not None and (env.get("NCCL_DEBUG") or "").upper() not in ("INFO", "TRACE"):
        yield env.finding(
            "subsystems_alone",
            Level.WARNING,
            "NCCL_DEBUG_SUBSYS",
            "has no effect without NCCL_DEBUG=INFO",
            why="it chooses among lines of the level INFO",
            do="leave it out",
        )


def too_many_threads(env: Environment, ground: Ground) -> Iterator[Finding]:
    """CPU ranks that fight for the cores."""
    threads = env.number("OMP_NUM_THREADS")
    if ground.on_gpu or threads is None or ground.cores_per_node is None:
        return
    wanted = threads * ground.ranks_per_node
    if wanted > ground.cores_per_node:
        yield env.finding(
            "too_many_threads",
            Level.WARNING,
            "OMP_NUM_THREADS",
            f"makes {wanted} threads of {ground.ranks_per_node} ranks on {ground.cores_per_node:g} cores",
            why="threads that wait for each other's core are slower than fewer threads",
            do=f"write {max(1, int(ground.cores_per_node / ground.ranks_per_node))}, or leave it out",
        )


def without_gpus(env: Environment, ground: Ground) -> Iterator[Finding]:
    """NCCL's settings where gloo does the work."""
    names = sorted(name for name in env.settings if name.startswith("NCCL_"))
    if not ground.on_gpu and names:
        yield env.finding(
            "without_gpus",
            Level.WARNING,
            names[0],
            "has no effect: ranks on CPUs use gloo",
            why="NCCL is not loaded there",
            do="for the interface, gloo reads GLOO_SOCKET_IFNAME",
        )


CHECKS: Final[tuple[Check, ...]] = (
    local_interface,
    host_interface_in_pods,
    absent_here,
    gloo_syntax,
    two_interfaces,
    fabric_unused,
    other_cloud,
    limits,
    logs_in_one_file,
    too_many_threads,
    without_gpus,
)
