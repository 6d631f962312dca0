"""The training loop: deterministic given the seed, and continued bit for bit after any interruption."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from calibcli.core.errors import InputError, UsageError
from calibcli.core.files import Lines, atomic
from calibcli.lab.training import _evaluation as evaluation
from calibcli.lab.training import _state as state
from calibcli.lab.training import recipes
from calibcli.lab.training._evaluation import EvaluationPlan
from calibcli.lab.training.batches import Batches, Loader, last_linear, train_mode
from calibcli.lab.training.options import Progress
from calibcli.lab.training.recipes import Recipe
from calibcli.networks import device, inference, losses
from calibcli.networks.device import Signals, Stopping, held_signals


@dataclass
class Pace:
    """The rate of rows since the run began or was continued, for the progress line."""

    began: float = field(default_factory=time.monotonic)
    rows: int = 0

    def text(self, epoch: str, loss: float | None, rows: int) -> str:
        """`epoch 3 of 20, loss 0.412, 5,300 rows a second`, with `rows` more.

        >>> import time
        >>> Pace(time.monotonic() - 2).text("epoch 1 of 2", 0.4123, 200)
        'epoch 1 of 2, loss 0.412, 100 rows a second'
        """
        self.rows += rows
        spent = time.monotonic() - self.began
        parts = [epoch, "" if loss is None else f"loss {loss:.3g}"]
        parts.append(f"{self.rows / spent:,.0f} rows a second" if spent > 0 else "")
        return ", ".join(filter(None, parts))


AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
FLUSH = 50  # steps between reads of the loss on an accelerator, as every read waits for the device


@dataclass(eq=False)
class Trainer:
    """One run of a recipe on a model.

    Attributes:
        model: on its device, in its dtype; trained in place.
        train, validation: loaders; without validation there is no per-epoch calibration.
        folder: where `state.pt`, `log.jsonl` and `steps.jsonl` go, or None to write nothing.
        identity: recipe, architecture and data, which must be the same when the run is continued.
        save_every: steps between saved states (and one at the end).
        evaluations: which further rows to evaluate, and when.
        curvature_every: epochs between measurements of λmax and trace of cross-entropy's Hessian.
        curvature_rows: on at most so many validation rows; 0 for all.
    """

    model: nn.Module
    recipe: Recipe
    train: Loader
    validation: Loader | None = None
    _: KW_ONLY
    folder: Path | None = None
    identity: dict[str, Any] = field(default_factory=dict)
    save_every: int = 500
    curvature_every: int = 0
    curvature_rows: int = 256
    evaluations: EvaluationPlan = EvaluationPlan()  # noqa: RUF009
    progress: Progress = lambda fraction, text: None

    def __post_init__(self) -> None:
        model, recipe, train, validation = self.model, self.recipe, self.train, self.validation
        self.identity = {"recipe": recipe.as_dict(), **self.identity}
        self.device = train.device
        self.objective = losses.objective(recipe.loss).to(self.device)
        if validation is None and (recipe.keep == "best" or recipe.patience or self.objective.loss.needs_validation):
            raise UsageError(
                "--keep best, --patience and adafocal need validation rows", "pass --validation or --val-fraction 0.1"
            )
        if self.evaluations.every > 1 and (recipe.keep == "best" or recipe.patience):
            problem = (
                f"--log-every {self.evaluations.every} leaves out epochs that --keep best and --patience choose among"
            )
            raise UsageError(problem, "leave it out")
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError("every parameter is frozen", "loosen --freeze")
        self.optimizer, self.ascent = recipes.build(recipe.optimizer, self.parameters, recipe.lr)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.amp == "fp16")
        self.batches = Batches(len(train), recipe.batch_size, recipe.seed, device.world())
        self.augment = recipes.pipeline(recipe.augment, train.shape)
        self.mixup = recipes.mixing(recipe.augment)
        if self.mixup is not None and self.objective.penalties:
            raise UsageError("mixup gives a row two labels, and penalties take one", "leave mixup or the penalty out")
        self.generator = torch.Generator(self.device).manual_seed(recipe.seed * 1_000_003 + 1 + device.rank())
        self.position = state.Position()
        kept = {"optimizer": self.optimizer, "scaler": self.scaler, "loss": self.objective.loss}
        path = self.folder and self.folder / state.FILE
        self.state = None if path is None else state.TrainingState(path, self.identity, kept, model, self.generator)
        self.last_layer = last_linear(model)
        self._pending: list[tuple[int, Tensor, int]] = []
        self._steps: Lines | None = None
        self._log: Lines | None = None
        self._curved = any(p.order > 1 for p in self.objective.penalties)

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return self.recipe.epochs * self.batches.steps

    def resume(self) -> None:
        """Continue from the state saved in the folder.

        Raises:
            InputError, UsageError: as `TrainingState.load`.
        """
        assert self.state is not None
        self.position = self.state.load(self._lengthen)

    def _lengthen(self, before: Mapping[str, Any], position: state.Position) -> None:
        """Let a run go on for another number of epochs than it was begun with, if that would not change its past.

        Raises:
            UsageError: the learning rate or the loss of a step that was taken depends on the number of epochs.
        """
        recipe, anew = self.recipe, f"train on from its weights: calib fit {self.folder}/model.safetensors --save OTHER"
        old = dataclasses.replace(recipe, **{name: before[name] for name in state.LENGTH})
        if position.finished and position.epoch < old.epochs:
            by = f"--stop-nll {recipe.stop_nll:g}" if recipe.patience is None else f"--patience {recipe.patience}"
            raise UsageError(f"the run ended after {position.epoch} epochs by {by}", anew)
        was = old.epochs * self.batches.steps
        for number in range(position.epoch * self.batches.steps + position.step):
            rates = old.learning_rate(number, was, old.epochs), recipe.learning_rate(number, self.total, recipe.epochs)
            if rates[0] != rates[1]:
                epoch = number // self.batches.steps + 1
                problem = f"the learning rate of epoch {epoch} was {rates[0]:.3g}, and would be {rates[1]:.3g}"
                raise UsageError(problem, self._same_past(old) or anew)
        loss = copy.deepcopy(self.objective.loss)  # γ that follows the validation rows takes no notice of the end
        for epoch in () if loss.needs_validation else range(position.epoch + (position.step > 0)):
            states = []
            for epochs in (old.epochs, recipe.epochs):
                loss.start_epoch(epoch, epochs)
                states.append(repr(loss.state_dict()))
            if states[0] != states[1]:
                problem = f"{recipe.loss} would have been another loss in epoch {epoch + 1} of {recipe.epochs}"
                raise UsageError(problem, anew)
        position.finished = position.epoch >= recipe.epochs

    def _same_past(self, old: Recipe) -> str:
        """Write the options with which learning rates are what they were, over other epochs; "" where none do that."""
        schedule, epochs, spec = recipes.SCHEDULES.choose(old.schedule), self.recipe.epochs, old.schedule
        if schedule.name == "cosine":
            return ""
        if schedule.name == "step":
            at = "/".join(f"{min(round(f * old.epochs) / epochs, 1):.6g}" for f in schedule.options["at"])
            spec = f"step:at={at},factor={schedule.options['factor']:g}"
        return f"pass --schedule {spec}" + (f" --warmup {old.warmup * old.epochs / epochs:.6g}" if old.warmup else "")

    def save(self) -> None:
        """Write the state; nothing without a folder."""
        self._flush()
        if self.state is not None:
            self.state.save(self.position)

    def run(self) -> list[dict[str, Any]]:
        """Train to the end and return the log. The model ends with the weights that the recipe keeps.

        A signal is acted on after the step is whole and the state saved.

        Raises:
            InputError: the loss is not finite, or memory ran out; the last saved state stays.
        """
        if self.position == state.Position():
            torch.manual_seed(self.recipe.seed * 1_000_003 + 2 + device.rank())  # for dropout
            state.agree(self.model)
        self._pace = Pace()
        with held_signals() as signals, self._logs():
            try:
                while not self.position.finished:
                    self._epoch(signals)
            except Stopping:
                self.save()
                signals.release()
            except (RuntimeError, MemoryError) as error:
                if not device.is_out_of_memory(error):
                    raise
                raise InputError(
                    f"out of memory at batch size {self.recipe.batch_size}",
                    f"pass --batch-size {max(1, self.recipe.batch_size // 2)}{self._where()}",
                ) from None
        if self.position.best is not None and self.recipe.keep == "best":
            self.model.load_state_dict(self.position.best["weights"])
        return self.position.history

    def logits(self, loader: Loader, check: Callable[[], None] = lambda: None) -> tuple[Tensor, Tensor]:
        """Compute logits `(N, K)` in eval mode and full precision; return them with the labels, both on the CPU."""
        self.model.eval()
        parts = []
        with torch.no_grad(), device.full_float32():
            for rows in torch.split(torch.arange(len(loader)), max(256, self.recipe.batch_size)):
                check()
                parts.append(inference.logits(self.model, loader(rows)[0]).cpu())
        return torch.cat(parts), loader.labels.cpu()

    # one epoch -----------------------------------------------------------------------------------------------------

    def _epoch(self, signals: Signals) -> None:
        position, loss = self.position, self.objective.loss
        if position.step == 0:
            needs = position.epoch > 0 and loss.needs_validation and self.validation is not None
            loss.start_epoch(position.epoch, self.recipe.epochs, self._validate(signals) if needs else None)
        order = self.batches.epoch(position.epoch)
        train_mode(self.model)
        with sdpa_kernel(SDPBackend.MATH) if self._curved else contextlib.nullcontext():
            while position.step < self.batches.steps:
                stop = self._step(self.batches.batch(order, position.step), signals)
                position.step += 1
                number = position.epoch * self.batches.steps + position.step
                if stop:
                    signals.received = signals.received or 15
                    raise Stopping
                if number % self.save_every == 0:
                    self.save()
                mean = position.loss_sum / position.rows if position.rows else None
                epoch = f"epoch {position.epoch + 1} of {self.recipe.epochs}"
                self.progress(number / self.total, self._pace.text(epoch, mean, self.recipe.batch_size))
        self._flush()
        self._end_epoch(signals)
        if position.finished:
            self.save()

    def _step(self, rows: Tensor, signals: Signals) -> bool:
        recipe, position = self.recipe, self.position
        number = position.epoch * self.batches.steps + position.step
        local_rows = state.share(rows)
        inputs, labels = self.train(local_rows)
        if self.augment is not None and isinstance(inputs, Tensor):
            inputs = self.augment(inputs, self.generator)
        mixed = [(1.0, labels)]
        if self.mixup is not None:
            inputs, mixed = self.mixup(inputs, labels, self.generator, (recipe.seed, number))
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.learning_rate(number, self.total, recipe.epochs)
        value, stop = self._gradients(number, rows, inputs, mixed, signals)
        self._record(number, value, len(rows))
        for penalty in self.objective.penalties:
            if penalty.due(number) and penalty.realised is not None:
                name = f"penalty_{type(penalty).__name__.lower()}"
                total, count = position.penalties.get(name, [0.0, 0])
                position.penalties[name] = [total + float(penalty.realised), count + 1]
        if self.ascent is not None:
            with self.ascent.moved(self.model):
                _, again = self._gradients(number, rows, inputs, mixed, signals)
            stop = stop or again
        if recipe.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, recipe.clip_norm)
        if position.step == self.batches.steps - 1 and self.last_layer is not None:
            gradient = self.last_layer.weight.grad
            scale = 1.0 if recipe.clip_norm is not None else self.scaler.get_scale()
            position.gradient_norm = None if gradient is None else float(gradient.norm()) / scale
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return stop

    def _gradients(
        self, number: int, rows: Tensor, inputs: Any, mixed: list[tuple[float, Tensor]], signals: Signals
    ) -> tuple[Tensor, bool]:
        """Compute the loss of a batch whose labels have the shares in `mixed`; leave gradients in the parameters."""
        self.optimizer.zero_grad(set_to_none=True)
        amp = AUTOCAST.get(self.recipe.amp)
        autocast = torch.autocast(self.device.type, amp) if amp else contextlib.nullcontext()
        with autocast, self.objective.around(self.model, number, self.generator):
            logits = inference.logits(self.model, inputs)
        parts = []
        for share, labels in mixed:
            part = self.objective(
                losses.Batch(self.model, logits, labels, number, self.generator), self.recipe.reduction
            )
            if device.world() > 1:
                part = part * self._share(rows, logits, labels)
            parts.append(part if share == 1 else share * part)
        value = parts[0] if len(parts) == 1 else torch.stack(parts).sum()
        if not value.requires_grad:
            problem = "the model's output does not depend on its trainable parameters"
            raise InputError(problem, "leave torch.no_grad() and detach() out of its forward pass")
        self.scaler.scale(value).backward()  # type: ignore[no-untyped-call]
        return state.sum_gradients(self.parameters, value.detach(), signals.received is not None)

    def _share(self, rows: Tensor, logits: Tensor, labels: Tensor) -> Tensor | float:
        """Return this process's share of the mean over the whole batch."""
        if self.recipe.reduction == "sum":
            return 1.0
        loss = self.objective.loss
        if loss.alpha is None:
            return len(labels) / len(rows)
        everyone = self.train.labels[rows.to(self.device)]
        return loss.weights(logits, labels).sum() / loss.weights(logits, everyone).sum()

    def _end_epoch(self, signals: Signals) -> None:
        position, recipe, loss = self.position, self.recipe, self.objective.loss
        state.agree(self.model, buffers_only=True)
        record: dict[str, Any] = {
            "epoch": position.epoch + 1,
            "lr": recipe.learning_rate((position.epoch + 1) * self.batches.steps - 1, self.total, recipe.epochs),
            "train_loss": position.loss_sum / max(position.rows, 1),
            "gamma": loss.gamma_text,
        }
        record.update({name: total / count for name, (total, count) in position.penalties.items()})
        if self.last_layer is not None:
            record["last_weight_norm"] = float(self.last_layer.weight.detach().norm())
            record["last_gradient_norm"] = position.gradient_norm
        if self.validation is not None and self.evaluations.due(position.epoch + 1, recipe.epochs):
            logits, labels = self._validate(signals)
            if not bool(torch.isfinite(logits).all()):
                raise self._diverged(f"the validation logits of epoch {position.epoch + 1} are not finite")
            with torch.no_grad():
                on_device = logits.to(self.device), labels.to(self.device)
                record["loss"] = float(self.objective.reduce(loss(*on_device), *on_device))
                gammas = loss.gammas(*on_device)
            record["gamma_mean"] = None if gammas is None else float(gammas.mean())
            record.update(evaluation.epoch_numbers(logits.numpy(), labels.numpy()))
            if self.curvature_every and (position.epoch + 1) % self.curvature_every == 0:
                record.update(evaluation.curvature(self.model, self.validation, recipe.seed, self.curvature_rows))
            if recipe.keep == "best" or recipe.patience is not None:
                value = float(record[recipe.select])
                position.since_best += 1
                if position.best is None or value < position.best["value"]:
                    kept = state.weights(self.model) if recipe.keep == "best" else {}
                    position.best = {"value": value, "epoch": position.epoch + 1, "weights": kept}
                    position.since_best = 0
        fitted = False
        if recipe.stop_nll is not None:
            record["train_nll"] = float(functional.cross_entropy(*self.logits(self.train, signals.check)))
            fitted = record["train_nll"] <= recipe.stop_nll
        here = (lambda rows: self.logits(rows, signals.check)), self.validation, self.model, loss
        record |= self.evaluations.record(position.epoch + 1, recipe.epochs, *here)
        position.history.append(record)
        position.epoch, position.step = position.epoch + 1, 0
        position.loss_sum, position.rows, position.penalties = 0.0, 0, {}
        out_of_patience = recipe.patience is not None and position.since_best >= recipe.patience
        position.finished = position.epoch >= recipe.epochs or out_of_patience or fitted
        if self._log is not None:
            self._log.write(json.dumps(record))
        if position.epoch in self.evaluations.snapshots:
            self.evaluations.keep(position.epoch)

    def _validate(self, signals: Signals) -> tuple[Tensor, Tensor]:
        assert self.validation is not None
        return self.logits(self.validation, signals.check)

    # the log of steps ----------------------------------------------------------------------------------------------

    def _record(self, number: int, value: Tensor, rows: int) -> None:
        """Keep a step's loss; on an accelerator it is read only now and then, as every read waits for the device."""
        self._pending.append((number, value, rows))
        if self.device.type == "cpu" or len(self._pending) >= FLUSH:
            self._flush()

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        values = torch.stack([value for _, value, _ in pending]).tolist() if pending else []  # one wait for all
        for (number, _, rows), value in zip(pending, values):
            if not math.isfinite(value):
                what = "not a number" if math.isnan(value) else "infinite"
                raise self._diverged(f"the loss became {what} at step {number}")
            self.position.loss_sum += value if self.recipe.reduction == "sum" else value * rows
            self.position.rows += rows
            if self._steps is not None:
                self._steps.write(f'{{"step": {number}, "loss": {value:.9g}}}')

    @contextlib.contextmanager
    def _logs(self) -> Iterator[None]:
        if self.folder is None or device.rank():
            yield
            return
        log = self.folder / "log.jsonl"
        with atomic(log) as temporary:  # epochs after the saved state will be logged again
            temporary.write_text("".join(json.dumps(record) + "\n" for record in self.position.history))
        with Lines(self.folder / "steps.jsonl") as self._steps, Lines(log) as self._log:
            start = self.position.epoch * self.batches.steps + self.position.step
            self._steps.write(f'{{"start": {start}}}')
            yield
        self._steps = self._log = None

    def _diverged(self, problem: str) -> InputError:
        fix = f"lower --lr (now {self.recipe.lr:g}), or pass --clip-norm 1 or --warmup 0.1"
        return InputError(problem, fix + self._where())

    def _where(self) -> str:
        kept = self.state is not None and self.state.path.exists()
        return f"; the last good state is kept in {self.folder}" if kept else ""
