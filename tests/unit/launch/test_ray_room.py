from __future__ import annotations

from warpbeam.launch.ray_room import sentence


def test_what_is_short_is_said() -> None:
    text = sentence({"CPU": 1, "GPU": 8}, {"CPU": 32, "GPU": 4}, {"CPU": 30})
    assert text == "waiting for 8 GPU (4 in the cluster, 0 free)"


def test_enough_in_sum_but_not_on_one_node() -> None:
    assert sentence({"GPU": 2}, {"GPU": 4}, {"GPU": 2}) == "waiting for room on a single node"
