"""Reading published runs, and how well the planner does on them: a change that makes it worse is seen here."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.planner_accuracy import COLUMNS, left_out, main, report
from tests.benchmarks.planner_scores import Scored, coverage, score_row, states_only
from tests.benchmarks.published import DATA, WORDS, Reading, read_row, read_rows
from tests.benchmarks.published_shapes import Sizes, build_shape, published_sizes

with DATA.open(newline="", encoding="utf-8") as _file:
    HEADER = next(csv.reader(_file))


def row(**values: str) -> Reading:
    stated = {"model": "a model", "gpu": "A100-80GB", "gpus": "8", "framework": "DeepSpeed", "notes": "src=x;kind=mem"}
    return read_row(dict.fromkeys(HEADER, "") | stated | values)


@pytest.fixture(scope="module")
def scored() -> list[Scored]:
    return [score_row(reading) for reading in read_rows()]


def test_a_row_becomes_a_setup() -> None:
    found = row(
        hidden="4096",
        layers="32",
        heads="32",
        kv_heads="8",
        ffn="14336",
        vocab="128256",
        params_B="8.03",
        zero_stage_or_sharding="zero3",
        micro_batch="2",
        global_batch="32",
        seq_len="8192",
        act_ckpt="full",
        precision="bf16",
    )
    assert found.setup is not None
    assert found.setup.shape.parameters == pytest.approx(8.03e9, rel=0.001)
    assert (found.setup.layout.sharding, found.setup.layout.stack, found.setup.layout.dp) == ("zero3", "deepspeed", 8)
    assert (found.setup.recipe.checkpointing, found.setup.accumulation) == ("full", 2)
    assert found.complete
    assert not found.assumed


def test_a_row_says_what_is_missing() -> None:
    found = row()
    assert found.setup is None
    assert "params_B" in found.missing
    assert score_row(found).skipped_because == found.missing
    alone = score_row(row(params_B="7", gpu=""))
    assert alone.skipped_because == "fits, speed: the accelerator"
    assert (alone.peak_gib is None, alone.fits, alone.units) == (False, None, None), "memory needs no accelerator"


def test_what_is_no_number_is_not_stated() -> None:
    found = row(params_B="7", tp="n/a", dp="0", seq_len=" 4096.0 ", micro_batch="?")
    assert found.setup is not None
    assert found.setup.recipe.seq_len == 4096
    assert found.setup.layout.tp == 1
    assert "micro_batch" in found.assumed


def test_defaults_are_listed() -> None:
    found = row(params_B="7")
    assert {"hidden", "seq_len", "act_ckpt", "micro_batch"} <= set(found.assumed)
    assert found.guessed
    assert not found.complete


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"framework": "Megatron-LM", "act_ckpt": ""}, "none"),
        ({"framework": "torchtitan FSDP2", "act_ckpt": ""}, "selective"),
        ({"framework": "HF Trainer", "lora": "LoRA", "act_ckpt": ""}, "full"),
        ({"framework": "stanford_alpaca", "act_ckpt": ""}, "none"),
        ({"framework": "HF Trainer", "act_ckpt": "selective"}, "selective"),
    ],
)
def test_unstated_checkpointing_takes_the_frameworks_default(values: dict[str, str], expected: str) -> None:
    found = row(params_B="7", **values)
    assert found.setup is not None
    assert found.setup.recipe.checkpointing == expected


def test_quantised_adapters() -> None:
    found = row(params_B="7", lora="QLoRA r16", precision="bf16+nf4")
    assert found.setup is not None
    assert found.setup.recipe.lora is not None
    assert (found.setup.recipe.lora.base_bits, found.setup.recipe.lora.rank) == (4, 16)


def test_a_name_gives_sizes_and_nothing_else() -> None:
    assert published_sizes("Llama-3.1-8B") == published_sizes("LLAMA3.1_8B (SFT)")
    assert published_sizes("an unknown model") is None
    assert published_sizes("mpt-70b") is None


def test_the_number_of_parameters_decides_what_is_open() -> None:
    gated = build_shape(Sizes(hidden=4096, layers=32, ffn=11008, vocab=32000, parameters=6.738))
    assert gated.gated
    assert not gated.tied
    assert gated.parameters == pytest.approx(6.738e9, rel=0.001)


def test_every_row_is_read() -> None:
    readings = read_rows()
    assert len(readings) == 1024
    without = [reading for reading in readings if reading.setup is None]
    assert len(without) < 0.02 * len(readings)


def test_accuracy_on_the_known_rows(scored: list[Scored]) -> None:
    """Seen rows; what unseen rows give is printed by planner_left_out and is 1 to 2 points worse."""
    found = report(scored, left_out([one.reading for one in scored]))
    assert found["coverage"]["share"] > 0.95
    assert found["memory"]["complete"]["mape"] < 0.10
    assert found["memory"]["mape"] < 0.13
    assert found["memory"]["loso_mape"] < 0.22
    assert found["fit"]["oom_recall"] > 0.84
    assert found["fit"]["fit_recall"] > 0.925
    assert found["fit"]["oom_among_called_fitting"] < 0.05
    assert found["fit"]["oom_among_promised"] < 0.05
    assert found["fit"]["n_promised"] < found["fit"]["n_fit"], "the promise is the wider of the two"
    assert found["speed"]["median_error"] < 0.10


def test_the_states_only_baseline_is_far_behind(scored: list[Scored]) -> None:
    assert states_only(scored)["memory"]["mape"] > 0.5


def test_one_line_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = tmp_path / "few.csv"
    few.write_text("\n".join(DATA.read_text(encoding="utf-8").splitlines()[:40]) + "\n", encoding="utf-8")
    out = tmp_path / "predictions.csv"
    main([str(few), "--json", "--predictions", str(out)])
    assert '"coverage"' in capsys.readouterr().out
    with out.open(newline="", encoding="utf-8") as file:
        lines: list[dict[str, Any]] = list(csv.DictReader(file))
    assert tuple(lines[0]) == COLUMNS
    assert [line["id"] for line in lines] == [reading.id for reading in read_rows(few)]


def test_a_file_without_measurements_prints_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text(",".join(HEADER) + "\n", encoding="utf-8")
    main([str(empty)])
    assert "coverage  0 of 0 rows" in capsys.readouterr().out


def test_no_prediction_is_blank_without_a_reason(scored: list[Scored]) -> None:
    for one in scored:
        blank = one.peak_gib is None or one.fits is None or one.units is None
        assert bool(one.skipped_because) == blank, one.reading.id


def test_what_was_measured_and_not_predicted_is_not_covered() -> None:
    stated = {"params_B": "7", "gpu": "", "measured_step_s": "3"}
    assert not score_row(row(**stated)).covered
    assert score_row(row(**stated | {"gpu": "H100"})).covered
    assert score_row(row(**stated | {"measured_step_s": "", "measured_peak_mem_GiB": "40"})).covered
    assert coverage([score_row(row(**stated))])["share"] == 0


@pytest.mark.parametrize("how", [str.upper, str.lower])
def test_capitals_change_nothing(how: Callable[[str], str], scored: list[Scored]) -> None:
    with DATA.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for before, stated in zip(scored, rows, strict=True):
        names = (*WORDS, "gpu", "model", *(["interconnect_if_known"] if how is str.lower else []))
        after = score_row(read_row(stated | {name: how(stated[name]) for name in names}))
        assert (after.peak_gib, after.fits, after.units) == (before.peak_gib, before.fits, before.units), stated["id"]


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"", "lacks the columns id, model"),
        (b"id,model\n1,a\n", "lacks the columns hidden, layers"),
        (",".join(name for name in HEADER if name != "gpu").encode(), "lacks the column gpu"),
    ],
)
def test_a_file_that_cannot_be_scored_is_told(
    content: bytes | None, wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit) as caught:
        main([str(path)])
    assert caught.value.code == 2
    assert wrong in capsys.readouterr().err


def test_measurements_may_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows to predict whose outcome somebody else keeps."""
    kept = [name for name in HEADER if not name.startswith("measured") and name not in ("fits", "source_url")]
    with DATA.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:20]
    with (tmp_path / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, kept, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    main([str(tmp_path / "rows.csv")])
    assert "20 of 20 rows" in capsys.readouterr().out
