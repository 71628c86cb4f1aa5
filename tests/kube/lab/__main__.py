"""The laboratory by hand: python -m tests.kube.lab up | down | status | exec | kill | start | nodes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.kube.lab import cgroups
from tests.kube.lab.laboratory import Laboratory
from tests.kube.lab.layout import default_place
from tests.kube.lab.programs import built_folder
from tests.kube.lab.sandbox import LabError


def main() -> int:
    """Do what was asked; exit code 1 where it cannot be done, that of the command for `exec`."""
    asked = _parser().parse_args()
    lab = Laboratory(default_place())
    try:
        return int(asked.does(lab, asked) or 0)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.kube.lab", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start it")
    up.add_argument("--nodes", type=int, default=3, help="real ones, 3 unless said otherwise")
    up.add_argument("--gpus", type=int, default=8, help="that each of them pretends to have")
    up.add_argument("--fake", type=int, default=0, help="nodes without machines (KWOK)")
    up.add_argument("--kueue", action="store_true")
    up.set_defaults(does=_up)
    verbs.add_parser("down", help="end all of it").set_defaults(does=lambda lab, _: lab.down())
    verbs.add_parser("status", help="parts, nodes and pods").set_defaults(does=_status)
    inside = verbs.add_parser("exec", help="run a command inside: exec -- kubectl get pods")
    inside.add_argument("command", nargs=argparse.REMAINDER)
    inside.set_defaults(does=_exec)
    for verb, does in (("kill", Laboratory.kill), ("start", Laboratory.start)):
        part = verbs.add_parser(verb, help=f"{verb} one part, for example kubelet-node2")
        part.add_argument("part")
        part.set_defaults(does=lambda lab, asked, does=does: does(lab, asked.part))
    for verb, of in (("lose", Laboratory.lose_node), ("find", Laboratory.find_node)):
        node = verbs.add_parser(verb, help=f"{verb} a node, by its number")
        node.add_argument("node", type=int)
        node.set_defaults(does=lambda lab, asked, of=of: of(lab, asked.node))
    fake = verbs.add_parser("fake", help="add nodes without machines")
    fake.add_argument("count", type=int)
    fake.set_defaults(does=lambda lab, asked: print(f"{len(lab.add_fake_nodes(asked.count))} fake nodes"))
    return parser


def _up(lab: Laboratory, asked: argparse.Namespace) -> None:
    if lab.is_up:
        raise LabError(f"one runs already in {lab.place.root}")
    if lab.place.root.exists():
        print("the last one did not end well: what it left is removed")
        lab.down()
    try:
        lab.up(real_nodes=asked.nodes, gpus=asked.gpus, with_kueue=asked.kueue)
        if asked.fake:
            lab.add_fake_nodes(asked.fake)
    except BaseException:
        if not asked_to_keep():
            lab.down()
        raise
    print(f"export KUBECONFIG={lab.place.outside_kubeconfig}")


def asked_to_keep() -> bool:
    """WARPBEAM_KUBE_LAB_KEEP: leave a laboratory that did not start, so that its logs can be read."""
    return bool(os.environ.get("WARPBEAM_KUBE_LAB_KEEP"))


def _status(lab: Laboratory, _: argparse.Namespace) -> int:
    if not lab.place.root.exists():
        print(f"there is none in {lab.place.root}")
        return 1
    for name in lab.sandbox.started():
        print(f"{name:24} {'runs' if lab.sandbox.runs(name) else 'has ended'}")
    return _inside(lab, ["kubectl", "get", "nodes,rayjobs,rayclusters,pods", "--all-namespaces"])


def _exec(lab: Laboratory, asked: argparse.Namespace) -> int:
    words = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
    if not words:
        raise LabError("which command? exec -- kubectl get pods")
    return _inside(lab, words)


def _inside(lab: Laboratory, words: list[str]) -> int:
    path = f"{built_folder() / 'bin'}:{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "KUBECONFIG": str(lab.place.kubeconfig("admin")), "PATH": path}
    groups = lab.place.groups
    return subprocess.run(
        lab.sandbox.command("env", "--chdir", Path.cwd(), *words),
        env=environment,
        preexec_fn=lambda: cgroups.join(groups),
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
