from __future__ import annotations

import pytest

from warpbeam.record.phases import Phase, PhaseClock, place_ranks, set_apart


class Hand:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def test_every_second_is_in_exactly_one_bucket() -> None:
    now = Hand()
    clock = PhaseClock("start", now)
    now.at += 3
    clock.switch("compute")
    now.at += 5
    with clock.phase("checkpoint"):
        now.at += 2
        with clock.phase("data_wait"):
            now.at += 1
        now.at += 0.5
    now.at += 4
    totals = clock.totals()
    assert (totals["start"], totals["compute"], totals["checkpoint"], totals["data_wait"]) == (3, 9, 2.5, 1)
    assert sum(totals.values()) == now.at - 100
    assert set(totals) == {phase.value for phase in Phase}


def test_a_block_left_by_an_exception_gives_the_time_back() -> None:
    now = Hand()
    clock = PhaseClock("compute", now)
    with pytest.raises(KeyError), clock.phase("data_wait"):
        raise KeyError
    now.at += 7
    assert clock.current == "compute"
    assert clock.totals()["compute"] == 7


def test_an_unknown_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match="lunch"):
        PhaseClock().switch("lunch")


@pytest.mark.parametrize(("window_s", "before_s"), [(12.0, 0.0), (20.0, 5.0), (5.0, 1.0), (12.0, 99.0)])
def test_ranks_fit_into_the_drivers_window(window_s: float, before_s: float) -> None:
    driver = {"start": 4.0, "prepare": 2.0}
    ranks = [{"compute": 8.0, "data_wait": 4.0}, {"compute": 10.0, "data_wait": 2.0}]
    merged = place_ranks(driver, window_s, before_s, ranks)
    assert sum(merged.values()) == pytest.approx(6 + window_s)
    room_s = window_s - min(before_s, window_s)
    assert merged["compute"] == pytest.approx(9 * min(1, room_s / 12))
    assert merged["start"] == pytest.approx(4 + window_s - room_s)
    assert merged["idle"] == pytest.approx(max(0, room_s - 12))


def test_without_ranks_the_window_is_start() -> None:
    assert place_ranks({}, 9.0, 0.0, [])["start"] == 9.0


def test_time_set_apart_leaves_the_sum() -> None:
    totals = {"compute": 5.0, "idle": 4.0, "start": 1.0}
    assert set_apart(totals, 7.0, Phase.HANG) == {"compute": 0.0, "idle": 2.0, "start": 1.0, "hang": 7.0}
    assert sum(set_apart(totals, 100.0, Phase.HANG).values()) == 10.0
