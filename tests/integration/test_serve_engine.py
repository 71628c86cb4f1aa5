"""The transformers engine itself, in process: the tokens of `generate`, one seed's tokens, cancelling, dying."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.integration.serve_model import PADDED_ROWS, build_model
from warpbeam.errors import UserError
from warpbeam.serve.engine import EngineDead, SamplingParams
from warpbeam.serve.engine_options import EngineOptions
from warpbeam.serve.model_folder import ModelFolder, open_model_folder
from warpbeam.serve.sampling import choose_tokens
from warpbeam.serve.transformers_engine import TransformersEngine

GREEDY = SamplingParams(max_tokens=24, temperature=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return open_model_folder(build_model(tmp_path_factory.mktemp("model"), steps=0))


def with_engine(folder: ModelFolder, scenario: Any, threads: int = 1, **options: Any) -> None:
    async def run() -> None:
        engine = TransformersEngine(folder, EngineOptions(threads=threads, **options))
        await engine.start()
        try:
            await asyncio.wait_for(scenario(engine), 60)
        finally:
            await engine.stop()

    asyncio.run(run())


async def collect(
    engine: TransformersEngine, prompt: Sequence[int], params: SamplingParams, name: str
) -> tuple[list[int], str]:
    ids: list[int] = []
    reason = ""
    async for chunk in engine.generate(prompt, params, name):
        ids += chunk.token_ids
        reason = chunk.finish_reason or ""
    return ids, reason


def prompts(count: int, longest: int = 200) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, longest, (count,), generator=generator)
    return [torch.randint(3, 300, (int(length),), generator=generator).tolist() for length in lengths]


def test_greedy_tokens_are_those_of_generate(folder: ModelFolder) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder.path).eval()
    expected = [
        model.generate(
            torch.tensor([prompt]),
            max_new_tokens=24,
            do_sample=False,
            suppress_tokens=folder.never_sampled(),
            eos_token_id=list(folder.end_ids),
        )[0, len(prompt) :].tolist()
        for prompt in prompts(20)
    ]

    async def scenario(engine: TransformersEngine) -> None:
        # Twenty at once on eight slots: some wait, long prompts are read in parts beside others' answers.
        answers: list[Coroutine[Any, Any, tuple[list[int], str]]] = [
            collect(engine, prompt, GREEDY, f"r{index}") for index, prompt in enumerate(prompts(20))
        ]
        assert [ids for ids, _ in await asyncio.gather(*answers)] == expected

    with_engine(folder, scenario, batch_requests=8)


def test_a_seed_repeats_alone_and_in_a_batch_and_padding_rows_stay_out(folder: ModelFolder) -> None:
    async def scenario(engine: TransformersEngine) -> None:
        seeded = SamplingParams(max_tokens=40, temperature=2.0, seed=7)
        free = SamplingParams(max_tokens=40, temperature=2.0)
        prompt = prompts(1)[0]
        alone, _ = await collect(engine, prompt, seeded, "alone")
        batch = await asyncio.gather(
            collect(engine, prompt, seeded, "seeded"),
            *(collect(engine, other, free, f"free-{index}") for index, other in enumerate(prompts(8))),
        )
        assert batch[0][0] == alone
        assert all(token < len(folder.tokenizer) < PADDED_ROWS for ids, _ in batch for token in ids)
        other = await collect(engine, prompt, free, "other")
        assert other[0] != alone

    with_engine(folder, scenario)


def test_more_than_the_cache_holds_waits_and_ends_right(folder: ModelFolder) -> None:
    """The budget holds about two of the eight requests: some are put back and read again."""

    async def scenario(engine: TransformersEngine) -> None:
        asked = prompts(8, longest=120)
        seeded = SamplingParams(max_tokens=60, temperature=1.0, seed=3)
        together = await asyncio.gather(
            *(collect(engine, prompt, seeded, f"t{index}") for index, prompt in enumerate(asked))
        )
        for index, prompt in enumerate(asked):
            assert await collect(engine, prompt, seeded, f"s{index}") == together[index]

    with_engine(folder, scenario, context_tokens=192, cache_gib=450 * 3100 / 2**30)


def test_a_cancelled_request_leaves_nothing_behind(folder: ModelFolder) -> None:
    async def scenario(engine: TransformersEngine) -> None:
        answer = engine.generate([5, 6], SamplingParams(max_tokens=500, temperature=2.0, seed=1), "gone")
        await anext(answer)
        await answer.aclose()
        assert engine.stats().requests == 0
        before = engine.stats().generated_tokens
        await collect(engine, [5], GREEDY, "next")
        assert engine.stats().generated_tokens - before <= 24 + 2
        assert not engine._manager.batch_processor.scheduler.active_requests
        assert not engine._manager.output_router.result_handlers
        while not engine._manager.output_router.output_queue.empty():
            await asyncio.sleep(0.05)

    with_engine(folder, scenario)


def test_a_dead_generation_thread_fails_its_requests_and_is_unhealthy(folder: ModelFolder) -> None:
    async def scenario(engine: TransformersEngine) -> None:
        assert engine.healthy()
        answer = engine.generate([5, 6], SamplingParams(max_tokens=500, temperature=2.0, seed=1), "cut")
        await anext(answer)
        engine._manager.batch_processor.scheduler.schedule_batch = None  # calling it ends the thread
        with pytest.raises(EngineDead):
            async for _ in answer:
                pass
        while engine.healthy():
            await asyncio.sleep(0.05)
        with pytest.raises(EngineDead):
            await collect(engine, [5], GREEDY, "late")

    with_engine(folder, scenario)


def test_a_generation_thread_that_dies_at_once_is_said_and_not_waited_for(
    folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deadly(threads: int, manager: Any) -> None:
        manager._run_generation_loop = lambda **_: None

    monkeypatch.setattr("warpbeam.serve.transformers_engine._compute_with", deadly)
    with pytest.raises(EngineDead):
        with_engine(folder, lambda engine: asyncio.sleep(0))


def test_it_computes_with_the_threads_it_is_given(folder: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()

    def spy(*arguments: Any) -> torch.Tensor:
        seen.add(torch.get_num_threads())
        return choose_tokens(*arguments)

    monkeypatch.setattr("warpbeam.serve.transformers_engine.choose_tokens", spy)
    with_engine(folder, lambda engine: collect(engine, [5], GREEDY, "one"), threads=3)
    assert seen == {3}


def test_weights_of_another_shape_are_the_models_fault(tmp_path: Path) -> None:
    path = build_model(tmp_path, steps=0)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "hidden_size": 128}))
    with pytest.raises(UserError, match="cannot be loaded"):
        with_engine(open_model_folder(path), lambda engine: asyncio.sleep(0))
