"""A step on a device: no tensor of the host among those of the device, one wait, mixed precision.

The `meta` device has no values: an operation that mixes it with host tensors fails as on CUDA, and
every read of a value by the host can be counted.
"""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.training.tiny_runs import new_run
from training.errors import NonFiniteLoss, RecipeError
from training.methods import METHODS, SAMPLERS
from training.runs.checkpoint import read_tensors, write_tensors
from training.runs.directory import read_recipe
from training.runs.loop import train_step
from training.runs.precision import LossScale, amp_type
from training.runs.run import Run, choose_device, open_run
from training.runs.schedule import build_optimizer
from training.runtime import distributed

META = torch.device("meta")


class HostReads(TorchDispatchMode):
    """Lists the lines of ours that read a value of the device, and gives 0 for it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if name == "aten::_local_scalar_dense" and args[0].device == META:
            self._note()
            return 0
        target = (kwargs or {}).get("device")
        if name == "aten::_to_copy" and target is not None and torch.device(target).type == "cpu":
            self._note()
        return func(*args, **(kwargs or {}))

    def _note(self) -> None:
        ours = [f for f in traceback.extract_stack() if "/training/" in f.filename]
        own = [f for f in ours if "/tests/" not in f.filename]
        self.lines.append(f"{Path(own[-1].filename).name}: {own[-1].line}")


def on_meta(tmp_path: Path, **changes: Any) -> Run:
    run = open_run(new_run(tmp_path, **changes))
    run.device = META
    for part in (run.state.net, run.state.loss, run.state.sampler):
        part.to(META)
    run.state.optimizer = build_optimizer(run.recipe.optim, run.state.net.parameters())
    run.features = run.state.net.features
    return run


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_step_waits_for_the_device_once(
    method: str, sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Autocast does not know the meta device; it is off here in any case.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    head = METHODS[method].heads[0]
    run = on_meta(
        tmp_path, loss={"name": method}, sampler={"name": sampler}, network={"head": head}
    )
    reads = HostReads()
    for step in range(2):
        with reads:
            train_step(run, step, run.batches.prepare(step), 1e-3)
    assert reads.lines == ["loop.py: is_finite = math.isfinite(total.item())"] * 2


@pytest.mark.parametrize("amp", [torch.bfloat16, torch.float16])
def test_mixed_precision_trains_as_float32_does(amp: torch.dtype, tmp_path: Path) -> None:
    losses = {}
    for name, chosen in (("exact", None), ("mixed", amp)):
        run = open_run(new_run(tmp_path / name, network={"dropout": 0.0}))
        run.amp = chosen
        if chosen == torch.float16:
            run.state.scale = LossScale(1024.0)
        outputs = [train_step(run, s, run.prepare(s), 1e-2) for s in range(4)]
        losses[name] = [output.loss.detach().item() for output in outputs]
        kept = {p.dtype for p in run.state.net.parameters()}
        assert kept == {torch.float32}, "weights stay in float32"
    assert losses["mixed"] != losses["exact"]
    assert losses["mixed"] == pytest.approx(losses["exact"], rel=0.05)


def test_gradients_that_overflow_are_left_out(tmp_path: Path) -> None:
    run = open_run(new_run(tmp_path))
    run.amp, run.state.scale = torch.float16, LossScale(2.0**40)
    before = {k: v.clone() for k, v in run.state.net.named_parameters()}
    steps = 0
    while float(run.state.scale.value) == 2.0 ** (40 - steps):
        assert all(torch.equal(before[k], v) for k, v in run.state.net.named_parameters())
        train_step(run, steps, run.prepare(steps), 1e-2)
        steps += 1
        assert steps < 40
    assert steps > 1, "the first scale was small enough"
    assert any(not torch.equal(before[k], v) for k, v in run.state.net.named_parameters())


def test_a_loss_that_no_scale_helps_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(new_run(tmp_path))
    run.state.scale = LossScale(4.0)
    broken = run.state.loss

    def infinite(pairs: Any) -> Any:
        output = broken(pairs)
        return type(output)(output.loss * float("inf"), output.positive, output.negative)

    monkeypatch.setattr(run.state, "loss", infinite)
    for step in range(2):
        train_step(run, step, run.prepare(step), 1e-2)
    with pytest.raises(NonFiniteLoss):
        train_step(run, 2, run.prepare(2), 1e-2)


def test_the_scale_doubles_after_its_interval_and_is_saved(tmp_path: Path) -> None:
    run = open_run(new_run(tmp_path))
    run.state.scale = scale = LossScale(8.0, interval=3)
    grown = []
    for _ in range(7):
        scale.update(is_finite=True)
        grown.append(float(scale.value))
    assert grown == [8, 8, 16, 16, 16, 32, 32]
    write_tensors(tmp_path / "state", run.state.tensors(), {})
    run.state.scale = LossScale(interval=3)
    run.state.restore(read_tensors(tmp_path / "state").tensors, 7)
    assert run.state.scale.state_dict() == scale.state_dict()


def fake_cuda(monkeypatch: pytest.MonkeyPatch, *, devices: int, has_bfloat16: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: has_bfloat16)


def recipe(tmp_path: Path, **options: Any) -> Any:
    return read_recipe(new_run(tmp_path, run=options))


def test_a_device_is_chosen_or_its_absence_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_cuda(monkeypatch, devices=0)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(RecipeError, match="built without CUDA"):
        choose_device(recipe(tmp_path, device="cuda"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(RecipeError, match="finds no device"):
        choose_device(recipe(tmp_path, device="cuda"))
    fake_cuda(monkeypatch, devices=1)
    assert choose_device(recipe(tmp_path, device="auto")) == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(RecipeError, match="at most 1"):
        choose_device(recipe(tmp_path, device="cuda"))


def test_devices_without_bfloat16_use_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, devices=1)
    assert amp_type(torch.device("cuda")) == torch.bfloat16
    fake_cuda(monkeypatch, devices=1, has_bfloat16=False)
    assert amp_type(torch.device("cuda")) == torch.float16


def test_processes_on_devices_meet_by_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []
    monkeypatch.setattr(
        torch.distributed,
        "init_process_group",
        lambda backend, **options: calls.append((backend, options["device_id"])),
    )
    monkeypatch.setattr(distributed, "rendezvous", lambda *_, **__: iter([(HashStore(), 0, 1)]))
    monkeypatch.setattr(distributed, "_set_pg_timeout", lambda _: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    distributed.start(torch.device("cuda", 1))
    distributed.start(torch.device("cpu"))
    assert calls == [("nccl", torch.device("cuda", 1)), ("gloo", None)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_compiled_network_gives_the_same_loss(tmp_path: Path) -> None:
    losses = []
    for compiled in (False, True):
        run = open_run(
            new_run(tmp_path / str(compiled), run={"compile": compiled}, network={"dropout": 0.0})
        )
        losses.append(train_step(run, 0, run.prepare(0), 1e-2).loss.detach().item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
