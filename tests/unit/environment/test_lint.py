"""Every rule on a setting that it is for, and on the nearest one that is right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.launch.jobs import job
from warpbeam.environment.lint import CHECKS, environment_of, findings, ground_of, lint
from warpbeam.environment.select import Selection
from warpbeam.environment.setting import JOB, POOL, SHELL, Environment, Ground, Level, Setting
from warpbeam.pool import LOCAL_POOL, parse_pool

PODS = Ground(accelerator="H100-SXM", nodes=4, ranks_per_node=8, in_pods=True, rdma=("rdma/hca_shared",))
NODES = replace(PODS, in_pods=False, rdma=None)
HERE = Ground(
    accelerator="cpu",
    nodes=1,
    ranks_per_node=2,
    cores_per_node=2,
    interfaces={"lo": True, "eth0": True, "eth1": False},
    hcas=frozenset({"mlx5_0"}),
)

CASES = [
    # rule, ground, what it finds, what it lets pass
    ("unknown_name", PODS, {"NCCL_SOCKET_IFNAMES": "eth0"}, {"NCCL_SOCKET_IFNAME": "eth0"}),
    ("renamed", PODS, {"NCCL_BLOCKING_WAIT": "0"}, {"TORCH_NCCL_BLOCKING_WAIT": "0"}),
    ("lower_case", PODS, {"nccl_debug": "WARN"}, {"NCCL_DEBUG": "WARN"}),
    ("group_by_hand", PODS, {"MASTER_PORT": "29500"}, {"MASTER_TOKEN": "1"}),
    ("comm_id", PODS, {"NCCL_COMM_ID": "10.0.0.1:1234"}, {}),
    ("visible_devices", PODS, {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    ("nvidia_visible_devices", PODS, {"NVIDIA_VISIBLE_DEVICES": "all"}, {"NVIDIA_DRIVER_CAPABILITIES": "all"}),
    ("library_path", PODS, {"LD_PRELOAD": "libnccl.so"}, {"PATH": "/usr/bin"}),
    ("costly_nccl_debug", PODS, {"NCCL_DEBUG": "info"}, {"NCCL_DEBUG": "WARN"}),
    ("costly_torch_distributed_debug", PODS, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, {"TORCH_DISTRIBUTED_DEBUG": "OFF"}),
    ("costly_nccl_p2p_disable", PODS, {"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "0"}),
    ("costly_nccl_proto", PODS, {"NCCL_PROTO": "LL128"}, {"NCCL_PROTO": "^LL128"}),
    ("costly_torch_fr_buffer_size", PODS, {"TORCH_FR_BUFFER_SIZE": "0"}, {"TORCH_FR_BUFFER_SIZE": "2000"}),
    ("costly_cuda_launch_blocking", PODS, {"CUDA_LAUNCH_BLOCKING": "1"}, {"CUDA_LAUNCH_BLOCKING": "0"}),
    ("quoted", PODS, {"NCCL_SOCKET_IFNAME": '"eth0"'}, {"NCCL_SOCKET_IFNAME": "eth0"}),
    ("wrong_word", PODS, {"NCCL_P2P_LEVEL": "NVLINK"}, {"NCCL_P2P_LEVEL": "5"}),
    ("no_number", PODS, {"NCCL_IB_DISABLE": "true"}, {"NCCL_IB_DISABLE": "0x0"}),
    ("no_number", PODS, {"TORCH_NCCL_ENABLE_MONITORING": "yes"}, {"TORCH_NCCL_ENABLE_MONITORING": "1"}),
    ("other_architecture", PODS, {"TORCH_CUDA_ARCH_LIST": "8.0;8.6"}, {"TORCH_CUDA_ARCH_LIST": "8.0;9.0a"}),
    ("other_accelerator", PODS, {"DS_ACCELERATOR": "cpu"}, {"DS_ACCELERATOR": "cuda"}),
    ("local_interface", NODES, {"NCCL_SOCKET_IFNAME": "docker0"}, {"NCCL_SOCKET_IFNAME": "^docker0,lo"}),
    ("host_interface", PODS, {"NCCL_SOCKET_IFNAME": "ens5"}, {"NCCL_SOCKET_IFNAME": "eth"}),
    ("host_interface", PODS, {"GLOO_SOCKET_IFNAME": "bond0"}, {"GLOO_SOCKET_IFNAME": "eth0"}),
    ("no_such_interface", HERE, {"GLOO_SOCKET_IFNAME": "eth"}, {"GLOO_SOCKET_IFNAME": "eth0"}),
    ("interface_down", HERE, {"GLOO_SOCKET_IFNAME": "eth1"}, {"GLOO_SOCKET_IFNAME": "eth0"}),
    ("no_such_adapter", HERE, {"NCCL_IB_HCA": "=mlx5"}, {"NCCL_IB_HCA": "mlx5_0:1"}),
    ("gloo_syntax", PODS, {"GLOO_SOCKET_IFNAME": "^lo"}, {"NCCL_SOCKET_IFNAME": "^lo"}),
    (
        "two_interfaces",
        NODES,
        {"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "eth0"},
        {"NCCL_SOCKET_IFNAME": "ib", "GLOO_SOCKET_IFNAME": "ib0"},
    ),
    ("fabric_unused", PODS, {"NCCL_IB_DISABLE": "1"}, {"NCCL_IB_DISABLE": "0"}),
    ("contradiction", NODES, {"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5"}, {"NCCL_IB_HCA": "mlx5"}),
    (
        "contradiction",
        PODS,
        {"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "8"},
        {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"},
    ),
    (
        "contradiction",
        PODS,
        {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"},
        {"NCCL_SOCKET_NTHREADS": "8", "NCCL_NSOCKS_PERTHREAD": "8"},
    ),
    ("other_cloud", PODS, {"FI_PROVIDER": "efa"}, {"NCCL_NET_PLUGIN": "aws-ofi"}),
    ("one_log_file", PODS, {"NCCL_DEBUG_FILE": "/tmp/nccl.log"}, {"NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}),
    ("subsystems_alone", PODS, {"NCCL_DEBUG_SUBSYS": "NET"}, {"NCCL_DEBUG_SUBSYS": "NET", "NCCL_DEBUG": "INFO"}),
    ("too_many_threads", HERE, {"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "1"}),
    ("without_gpus", HERE, {"NCCL_SOCKET_IFNAME": "eth0"}, {"GLOO_SOCKET_IFNAME": "eth0"}),
]


def of_pool(values: dict[str, str]) -> Environment:
    return Environment({name: Setting(value, POOL) for name, value in values.items()})


@pytest.mark.parametrize(("rule", "ground", "wrong", "right"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)])
def test_a_rule_finds_what_it_is_for_and_lets_the_nearest_right_thing_pass(
    rule: str, ground: Ground, wrong: dict[str, str], right: dict[str, str]
) -> None:
    assert rule in [finding.rule for finding in lint(of_pool(wrong), ground)]
    assert rule not in [finding.rule for finding in lint(of_pool(right), ground)]


def test_every_finding_says_what_why_and_what_to_do() -> None:
    for _, ground, wrong, _ in CASES:
        for finding in lint(of_pool(wrong), ground):
            assert "" not in (finding.what, finding.why, finding.do)
            assert finding.source == POOL


def test_errors_come_first() -> None:
    found = lint(of_pool({"NCCL_DEBUG": "INFO", "MASTER_ADDR": "10.0.0.1"}), PODS)
    assert [finding.level for finding in found] == [Level.ERROR, Level.WARNING]


def test_the_shipped_pools_and_an_empty_environment_are_fine() -> None:
    assert lint(Environment(), PODS) == []
    assert findings(None, parse_pool(LOCAL_POOL), here=False) == []


def test_the_job_wins_over_the_pool_and_the_pool_over_the_shell() -> None:
    pool = parse_pool(LOCAL_POOL | {"env": {"GLOO_SOCKET_IFNAME": "eth0", "TORCH_LOGS": "a"}})
    got = environment_of(
        job(env={"TORCH_LOGS": "b"}), pool, {"GLOO_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN", "HOME": "/root"}
    ).settings
    assert got == {
        "NCCL_DEBUG": Setting("WARN", SHELL),
        "GLOO_SOCKET_IFNAME": Setting("eth0", POOL),
        "TORCH_LOGS": Setting("b", JOB),
    }


def test_a_pool_elsewhere_does_not_look_at_this_machine() -> None:
    pool = parse_pool(LOCAL_POOL)
    assert ground_of(pool, 2, here=False).interfaces is None
    here = ground_of(pool, 2, here=True)
    assert here.interfaces is not None
    assert "lo" in here.interfaces or "lo0" in here.interfaces


@pytest.mark.parametrize(
    ("value", "takes", "leaves"),
    [
        ("eth", ["eth0", "eth1"], ["ib0"]),
        ("=eth", ["eth"], ["eth0"]),
        ("^docker,lo", ["eth0"], ["docker0", "lo"]),
        ("^=lo", ["lo0"], ["lo"]),
        ("mlx5_0:1,mlx5_3", ["mlx5_0", "mlx5_3"], ["mlx5_1"]),
    ],
)
def test_a_list_is_read_as_nccl_reads_it(value: str, takes: list[str], leaves: list[str]) -> None:
    selection = Selection.parse(value)
    assert [selection.takes(name) for name in takes] == [True] * len(takes)
    assert [selection.takes(name) for name in leaves] == [False] * len(leaves)


def test_no_rule_is_untested() -> None:
    tested = {rule for rule, *_ in CASES}
    found = {finding.rule for _, ground, wrong, _ in CASES for finding in lint(of_pool(wrong), ground)}
    assert found == tested | {rule for rule in found if rule.startswith("costly_")}
    assert len(CHECKS) == 21
