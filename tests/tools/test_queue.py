"""`tools.bench queue`: its figures, its plot, and its worker on tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloud_gateway.core.requests.request import Usage
from cloud_gateway.engine.loop import Engine
from edgespec.core.errors import ModelError
from tests.support.engines import engine_settings
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import make_tiny_target
from tools.bench import queue
from tools.bench.__main__ import main
from tools.bench.queue_writer import VIEW, Writer
from tools.doubles.engines import TableTarget


def usage(rounds: int, seconds: float) -> Usage:
    return Usage(
        completion_tokens=11,
        rounds=rounds,
        drafted={"answers": 20},
        accepted={"answers": 11 - rounds},
        decode_s=seconds,
    )


def test_the_speed_up_is_the_median_of_each_prompts_own() -> None:
    plain = [usage(11, 1.0), usage(11, 2.0), usage(11, 4.0)]
    row = queue.row("n = 2", [usage(5, 0.5), usage(6, 0.5), usage(4, 4.0)], plain)
    assert (row["speed-up"], row["least"], row["most"]) == (2.0, 1.0, 4.0)
    assert row["tokens / round"] == 2.2 and row["accepted / drafted"] == 0.3


def test_the_plot_shows_numbers_and_loads(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arms = [
        {"arm": name, "tokens / round": value, "speed-up": value, "least": 1.0, "most": 2.0}
        for name, value in (("plain", 1.0), ("n = 1", 1.5))
    ]
    load = [{"arm": "plain", "requests": 1, "tokens / s": 9.0}, {"arm": "plain", "requests": 4, "tokens / s": 8.0}]
    for report in ({"number": arms, "load": load}, {"number": arms, "load": []}):
        queue.plot(report, tmp_path / "out.json")
        assert (tmp_path / "out.png").stat().st_size > 1000 and (tmp_path / "out.svg").exists()


@pytest.mark.parametrize("temperature", ["0", "0.9"])
def test_a_worker_writes_in_arms_of_its_own(temperature: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "TEXTS", {"chat": ("hello there", "good morning")})
    folder, out = make_tiny_target(tmp_path / "target", vocab=320), tmp_path / "out.json"
    draft = make_tiny_gguf(tmp_path / "draft.gguf", vocab=320)
    models = ["--target", str(folder), "--draft", str(draft), "--worker", "--json", str(out)]
    assert (
        main(["queue", *models, "--answers", "1", "--load", "2", "--max-tokens", "8", "--temperature", temperature])
        == 0
    ), "one text"
    report = json.loads(out.read_text())
    rows = {row["arm"]: row for row in report["number"]}
    assert list(rows) == ["plain", "prompt n-grams", "n = 1", "n = 1, by a worker"]
    local, worker = rows["n = 1"], rows["n = 1, by a worker"]
    assert local["draft passes"] > 0 == local["frames"] and worker["frames"] > 0 == worker["draft passes"]
    assert [row["arm"] for row in report["load"]] == ["plain", "n = 1", "a worker, n = 0", "a worker, n = 1"]


def test_a_request_that_fails_ends_the_workers_link(tmp_path: Path) -> None:
    writer = Writer(str(make_tiny_gguf(tmp_path / "draft.gguf", vocab=320)), 64, 1)
    engine = Engine(TableTarget(slots=1), None, engine_settings(), writer)
    try:
        with pytest.raises(ModelError), writer.linked_to(engine):
            assert list(writer.linked()) == [VIEW.id]
            raise ModelError("The request failed.")
        assert not writer.linked()
    finally:
        writer.stop()
