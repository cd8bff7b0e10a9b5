"""The training loop: select pairs, describe them, compute the loss, update the weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from training.errors import NonFiniteLoss, RecipeError, RunStopped
from training.methods import LossOutput, Pairs
from training.runs.batches import ahead
from training.runs.checkpoint import Checkpoints, write_tensors
from training.runs.directory import FINAL_FILE, FINISHED_FILE
from training.runs.interrupt import StopSignals
from training.runs.kept import keep_best, keep_by_step
from training.runs.lock import only_writer
from training.runs.report import Pace, Reporter
from training.runs.run import Run, open_run
from training.runs.schedule import learning_rate
from training.runs.validation import validate
from training.runtime import distributed
from training.runtime.randomness import Stream, stream_seed, torch_stream


def train(run_dir: Path, run: Run | None = None) -> Path:
    """Train the recipe in `run_dir`, continuing from its newest checkpoint if there is one.

    Raises:
        NonFiniteLoss: the loss or a gradient is not finite; the batch is saved in the run.
        CheckpointError: there are checkpoints, but none can be read.
        RunBusy: another process is training this run.
        RunStopped: Ctrl-C or SIGTERM; a checkpoint of the last complete step is saved.
    """
    with only_writer(run_dir) if distributed.rank() == 0 else nullcontext():
        return _train(run_dir, run or open_run(run_dir))


def _train(run_dir: Path, run: Run) -> Path:
    state, recipe, steps = run.state, run.recipe, run.recipe.run.steps
    checkpoints = Checkpoints(run_dir / "checkpoints")
    first = state.step
    saved_at = time.monotonic()
    pace = Pace(recipe.run.batch, first)
    is_first_rank = distributed.rank() == 0
    with (
        Reporter(run_dir, first=first, steps=steps, is_active=is_first_rank) as reporter,
        StopSignals() as stop,
    ):
        reporter.print(*run.notes)
        for step, patches, waited in ahead(run.prepare, first, steps, workers=recipe.run.workers):
            rate = learning_rate(recipe.optim, step, steps)
            output = train_step(run, step, patches, rate)
            state.step = step + 1
            pace.add_wait(waited)
            if state.step % recipe.run.log_every == 0 or state.step == steps:
                figures = {"lr": rate, **loss_figures(output), **pace.figures(state.step)}
                reporter.log(state.step, figures)
                reporter.advance(state.step, _summary(figures))
            if state.step % recipe.run.validate_every == 0 or state.step == steps:
                with pace.pause():
                    keep_best(run, _validate(run, state.step, output, reporter))
            keep_by_step(run)
            if is_first_rank and (stop.received or _is_save_due(run, saved_at)):
                checkpoints.save(state, run.entries)
                saved_at = time.monotonic()
            if stop.received and state.step < steps:
                raise RunStopped(
                    f"{run_dir}: stopped at step {state.step} of {steps} by {stop.received.name}; "
                    "a checkpoint is saved, and the same command continues"
                )
        if is_first_rank:
            checkpoints.save(state, run.entries)
            write_tensors(run_dir / FINAL_FILE, run.network_tensors(), run.entries)
            (run_dir / FINISHED_FILE).touch()
    return run_dir


def train_step(run: Run, step: int, patches: Tensor, rate: float) -> LossOutput:
    """Train on this process's `patches` (n, K, 1, S, S); return the loss of the whole batch.

    `rate` is the learning rate.
    """
    state, recipe = run.state, run.recipe
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    # Only dropout uses torch's global generator.
    torch.manual_seed(stream_seed(recipe.seed, step, Stream.DROPOUT) + distributed.rank())
    progress = step / recipe.run.steps
    state.net.train()
    choice = torch_stream(recipe.seed, step, Stream.CHOICE)
    selected = state.sampler.select(state.net, run.to_device(patches), choice, progress)
    with torch.autocast(run.device.type, run.amp, enabled=run.amp is not None):
        features = run.features(run.to_device(selected.patches.transpose(0, 1).flatten(0, 1)))
    # Anchors and positives are described in one pass, and gathered separately.
    exact = features.to(torch.get_default_dtype())
    anchors, positives = (distributed.gather(part) for part in exact.chunk(2))
    pairs = Pairs(
        anchors=state.net.apply_head(anchors),
        positives=state.net.apply_head(positives),
        generator=torch_stream(recipe.seed, step, Stream.LOSS),
        progress=progress,
        weights=selected.weights,
        features=torch.cat([anchors, positives]),
    )
    output = state.loss(pairs)
    _check_output(recipe.loss.name, output)
    if _descend(run, output):
        state.sampler.observe(output)
    else:
        _stop(run, step, output, selected.patches)
    return output


def _check_output(name: str, output: object) -> None:
    """Refuse what the loss of a plug-in must not return."""
    if not isinstance(output, LossOutput):
        raise RecipeError(
            f"loss.name: {name!r} returned a {type(output).__name__}, expected a LossOutput"
        )
    if output.loss.ndim:
        raise RecipeError(
            f"loss.name: {name!r} returned a loss of shape {tuple(output.loss.shape)}, "
            "expected one number"
        )


def _descend(run: Run, output: LossOutput) -> bool:
    """Compute the gradient and update the weights; return False if the gradient is not finite.

    An overflow of a float16 gradient only skips the update and reduces the scale of the loss.
    """
    state = run.state
    state.optimizer.zero_grad(set_to_none=True)
    scaled = output.loss if state.scale is None else output.loss * state.scale.value
    scaled.backward()  # type: ignore[no-untyped-call]
    distributed.sum_gradients(state.net.parameters())
    gradients = [p.grad for p in state.net.parameters() if p.grad is not None]
    if state.scale is not None:
        state.scale.unscale(gradients)
    # This sum is finite only if the loss and all gradients are. Nothing else in a step makes the
    # host wait for the device.
    total = torch.stack(torch._foreach_norm(gradients)).sum() + output.loss.detach()
    is_finite = math.isfinite(total.item())
    if is_finite:
        state.optimizer.step()
    if state.scale is None:
        return is_finite
    return state.scale.update(is_finite=is_finite)


def _stop(run: Run, step: int, output: LossOutput, patches: Tensor) -> None:
    """Store the batch and the weights of a step that is not finite, and raise an error."""
    path = run.directory / f"not-finite-step-{step}-rank-{distributed.rank()}.safetensors"
    tensors = {"patches": patches, **{f"net.{k}": v for k, v in run.state.net.state_dict().items()}}
    write_tensors(path, tensors, {**run.entries, "step": step})
    value = output.loss.detach().item()
    advice = "try a smaller optim.lr" if step else "nothing was learned yet: look at the loss"
    raise NonFiniteLoss(
        f"step {step}: the loss ({value}) or its gradient is not finite; the batch and the weights "
        f"are in {path}; {advice}"
    )


def _is_save_due(run: Run, saved_at: float) -> bool:
    options, step = run.recipe.run, run.state.step
    if step == options.steps:
        return False
    by_step = bool(options.checkpoint_steps) and step % options.checkpoint_steps == 0
    return by_step or time.monotonic() - saved_at >= 60 * options.checkpoint_minutes


def _validate(run: Run, step: int, output: LossOutput, reporter: Reporter) -> dict[str, float]:
    if not reporter.is_active:
        return {}
    rates = validate(run.state.net, run.validation, run.device)
    reporter.log(step, {f"fpr95/{name}": value for name, value in rates.items()})
    reporter.histogram(step, "distance/positive", output.positive)
    reporter.histogram(step, "distance/negative", output.negative)
    text = ", ".join(f"{name} {100 * value:.2f} %" for name, value in rates.items())
    reporter.print(
        f"step {step}: FPR95 {text}"
        if text
        else f"step {step}: not validated: the recipe has no validation store"
    )
    return rates


def loss_figures(output: LossOutput) -> dict[str, float]:
    """Return the figures of a step that are written to the log."""
    measured: dict[str, Callable[[], Tensor]] = {
        "loss": lambda: output.loss.detach(),
        "positive/mean": output.positive.mean,
        "positive/std": output.positive.std,
        "negative/mean": output.negative.mean,
        "negative/std": output.negative.std,
        "difference/mean": (output.positive - output.negative).mean,
        "difference/std": (output.positive - output.negative).std,
    }
    figures = {name: value().item() for name, value in measured.items()}
    return figures | {name: value.item() for name, value in output.scalars.items()}


def _summary(figures: dict[str, float]) -> str:
    return f"loss {figures['loss']:.4f}"
