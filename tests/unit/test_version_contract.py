from __future__ import annotations

import pytest

from tests.unit.kube.orders import pool
from warpbeam.errors import PlatformError
from warpbeam.pool import Image
from warpbeam.version_contract import broken, hold_to, refuse_other_versions

DECLARED = {"python": "3.11.9", "ray": "2.58.0", "torch": "2.13.0", "cuda": "13.0", "driver": "580"}
INSTALLED = {"python": "3.11.9", "ray": "2.58.0", "torch": "2.13.0+cu130", "cuda": "13.0", "driver": "585.12"}


def test_what_is_as_declared_passes() -> None:
    assert broken(DECLARED, INSTALLED) == []
    assert broken({"python": "3.11"}, {"python": "3.11.14"}) == []
    hold_to(DECLARED, INSTALLED, "this pod")


@pytest.mark.parametrize(
    ("name", "here", "words"),
    [
        ("ray", "2.57.0", "ray: the pool says 2.58.0, here is 2.57.0"),
        ("torch", "2.13.1", "torch: the pool says 2.13.0, here is 2.13.1"),
        ("python", "3.11.10", "python: the pool says 3.11.9, here is 3.11.10"),
        ("driver", "570.1", "driver: the pool says 580 or newer, here is 570.1"),
        ("ray", None, "ray: the pool says 2.58.0, and it is not installed"),
        ("ray", "nightly", "ray: the pool says 2.58.0, here is nightly"),
    ],
)
def test_what_is_not_is_refused_with_both_values(name: str, here: str | None, words: str) -> None:
    installed = {key: value for key, value in {**INSTALLED, name: here}.items() if value is not None}
    assert broken(DECLARED, installed) == [words]
    with pytest.raises(PlatformError, match="rank 3's pod does not hold what the pool says") as caught:
        hold_to(DECLARED, installed, "rank 3's pod")
    assert words in caught.value.what
    assert caught.value.reason == "version_contract"


def test_a_machine_without_an_accelerator_has_no_driver() -> None:
    assert broken({"driver": "580"}, {}) == []


def test_all_that_differs_is_told() -> None:
    with pytest.raises(PlatformError) as caught:
        hold_to(DECLARED, {**INSTALLED, "ray": "1", "cuda": "12.8"}, "this pod")
    assert "(and 1 more)" in caught.value.what
    assert caught.value.why is not None
    assert "cuda: the pool says 13.0, here is 12.8" in caught.value.why


def test_a_laptop_of_another_version_sends_nothing() -> None:
    image = Image(ref="a", versions={"warpbeam": "0.2.0"})
    other = pool().model_copy(update={"image": image})
    refuse_other_versions(other, {"warpbeam": "0.2.0"})
    refuse_other_versions(other.model_copy(update={"image": None}), {"warpbeam": "0.1.0"})
    with pytest.raises(PlatformError, match=r"warpbeam 0\.1\.0, and the image of pool `.*` has 0\.2\.0"):
        refuse_other_versions(other, {"warpbeam": "0.1.0"})
