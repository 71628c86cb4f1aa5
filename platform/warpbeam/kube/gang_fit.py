"""Does a whole gang fit now? Counted as the scheduler counts: what nodes can give, less what pods on them asked for.

The answer is all or nothing, and who came first goes first: a later gang never takes what an earlier one waits for,
unless the earlier one could not start on an empty cluster either. Packing is best fit, largest pods first; a tight
mixture of shapes may be told to wait although some cleverer packing exists, never the reverse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from warpbeam.kube.quantities import amount, in_words

Amounts = Mapping[str, Decimal]
Taint = Mapping[str, Any]
ONE_POD: Final = {"pods": Decimal(1)}
_OVER: Final = ("Succeeded", "Failed")
_KEEPS_OUT: Final = ("NoSchedule", "NoExecute")


@dataclass(frozen=True)
class Room:
    """One node: what it could give to pods, and what it still has."""

    node: str
    total: Amounts
    free: Amounts
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Taint] = ()

    def emptied(self) -> Room:
        """The same node without any pod."""
        return Room(self.node, self.total, self.total, self.labels, self.taints)

    def without(self, asked: Amounts) -> Room:
        """The same node with one more pod on it."""
        left = {name: free - asked.get(name, Decimal(0)) for name, free in self.free.items()}
        return Room(self.node, self.total, left, self.labels, self.taints)

    def takes(self, pods: Pods) -> bool:
        """Whether one of these pods may and can be here."""
        if any(self.labels.get(key) != value for key, value in pods.node_selector.items()):
            return False
        if any(_keeps_out(taint) and not _tolerated(taint, pods.tolerations) for taint in self.taints):
            return False
        return all(self.free.get(name, Decimal(0)) >= wanted for name, wanted in pods.asked.items())


@dataclass(frozen=True)
class Pods:
    """Alike pods of a gang; `asked` is what one of them asks for, its own place among a node's pods included."""

    name: str
    count: int
    asked: Amounts
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Taint] = ()


@dataclass(frozen=True)
class Gang:
    """Pods that start together.

    Args:
        created: when it was asked for, as text that sorts (RFC 3339).
    """

    name: str
    pods: tuple[Pods, ...]
    created: str = ""
    priority: int = 0


@dataclass(frozen=True)
class Decision:
    """What the doorkeeper does with one gang: let it in, or say why not."""

    gang: str
    enters: bool
    why: str = ""


def rooms(nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> list[Room]:
    """Nodes that pods may go to, from the API's own objects. Pods that have ended hold nothing; those that are on no
    node yet hold nothing either."""
    held: dict[str, list[Amounts]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and pod.get("status", {}).get("phase") not in _OVER:
            held.setdefault(node, []).append(requests(pod["spec"]))
    return [_room(node, held.get(node["metadata"]["name"], [])) for node in nodes if _is_open(node)]


def requests(spec: Mapping[str, Any]) -> Amounts:
    """What a pod's spec asks for: its containers together, or its largest init container where that is more."""
    total: dict[str, Decimal] = dict(ONE_POD)
    for container in spec["containers"]:
        for name, wanted in _container(container).items():
            total[name] = total.get(name, Decimal(0)) + wanted
    for container in spec.get("initContainers", []):
        for name, wanted in _container(container).items():
            total[name] = max(total.get(name, Decimal(0)), wanted)
    for name, more in spec.get("overhead", {}).items():
        total[name] = total.get(name, Decimal(0)) + amount(more)
    return total


def pods_of(name: str, count: int, spec: Mapping[str, Any]) -> Pods:
    """Pods made from a template's spec."""
    return Pods(name, count, requests(spec), spec.get("nodeSelector", {}), spec.get("tolerations", []))


def place(gang: Gang, there: Sequence[Room]) -> list[Room] | None:
    """The rooms with the whole gang in them; None where it does not fit, and then nothing is taken."""
    now = {room.node: room for room in there}
    for pods in sorted(gang.pods, key=_size, reverse=True):
        for _ in range(pods.count):
            able = [room for room in now.values() if room.takes(pods)]
            if not able:
                return None
            tightest = min(able, key=lambda room: (_left(room, pods), room.node))
            now[tightest.node] = tightest.without(pods.asked)
    return list(now.values())


def decide(gangs: Iterable[Gang], there: Sequence[Room]) -> list[Decision]:
    """Who enters, in the order of priority and age. Pure: whoever asks again gets the same answer."""
    decisions = []
    blocked: str | None = None
    empty = [room.emptied() for room in there]
    for gang in sorted(gangs, key=lambda gang: (-gang.priority, gang.created, gang.name)):
        if place(gang, empty) is None:
            decisions.append(
                Decision(gang.name, False, f"would not fit into the empty cluster: {shortage(gang, empty)}")
            )
        elif blocked is not None:
            decisions.append(Decision(gang.name, False, f"waits behind {blocked}"))
        elif (after := place(gang, there)) is None:
            decisions.append(Decision(gang.name, False, shortage(gang, there)))
            blocked = gang.name
        else:
            decisions.append(Decision(gang.name, True))
            there = after
    return decisions


def shortage(gang: Gang, there: Sequence[Room]) -> str:
    """One sentence: what is wanted, what is free on nodes that these pods may go to, what is missing."""
    now = list(there)
    for pods in sorted(gang.pods, key=_size, reverse=True):
        alone = Gang(gang.name, (Pods(pods.name, 1, pods.asked, pods.node_selector, pods.tolerations),))
        for number in range(pods.count):
            after = place(alone, now)
            if after is None:
                return f"{pods.count - number} of {pods.count} {pods.name} pods have no place: {_missing(pods, now)}"
            now = after
    return ""


def _missing(pods: Pods, there: Sequence[Room]) -> str:
    eligible = [room for room in there if Room(room.node, {}, dict(pods.asked), room.labels, room.taints).takes(pods)]
    if not eligible:
        return f"none of {len(there)} nodes has the labels and taints that they accept"
    for name in sorted(pods.asked, key=lambda name: ("/" not in name, name)):
        wanted = pods.asked[name]
        best = max(eligible, key=lambda room: room.free.get(name, Decimal(0)))
        free = best.free.get(name, Decimal(0))
        if free < wanted:
            short, most = in_words(name, wanted - free), in_words(name, free).removesuffix(f" {name}")
            return f"each needs {in_words(name, wanted)}, the most that is free is {most} on {best.node}, {short} short"
    return "no single node has all that one of them needs"


def _room(node: Mapping[str, Any], held: Sequence[Amounts]) -> Room:
    total = {name: amount(there) for name, there in node["status"]["allocatable"].items()}
    free = {
        name: there - sum((asked.get(name, Decimal(0)) for asked in held), Decimal(0)) for name, there in total.items()
    }
    return Room(
        node["metadata"]["name"],
        total,
        free,
        node["metadata"].get("labels", {}),
        tuple(node.get("spec", {}).get("taints", ())),
    )


def _is_open(node: Mapping[str, Any]) -> bool:
    ready = any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in node["status"].get("conditions", [])
    )
    return ready and not node.get("spec", {}).get("unschedulable", False)


def _container(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources", {})
    asked = resources.get("limits", {}) | resources.get("requests", {})  # a limit alone is a request too
    return {name: amount(wanted) for name, wanted in asked.items()}


def _size(pods: Pods) -> tuple[Decimal, ...]:
    """Accelerators first: they are what is scarce."""
    extended = sum((wanted for name, wanted in pods.asked.items() if "/" in name), Decimal(0))
    return (extended, pods.asked.get("memory", Decimal(0)), pods.asked.get("cpu", Decimal(0)))


def _left(room: Room, pods: Pods) -> tuple[Decimal, ...]:
    """What would stay free, of the scarce first: the tightest node takes the pod."""
    left = room.without(pods.asked).free
    extended = sum((free for name, free in left.items() if "/" in name), Decimal(0))
    return (extended, left.get("memory", Decimal(0)), left.get("cpu", Decimal(0)))


def _keeps_out(taint: Taint) -> bool:
    return taint["effect"] in _KEEPS_OUT


def _tolerated(taint: Taint, tolerations: Sequence[Taint]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Taint, taint: Taint) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
