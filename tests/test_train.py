"""The training loop: resumed runs are the same runs, recipes do what they say, bad input says so."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crashing import Crash, Crashing
from torch import Tensor, nn

import calibcli
from calibcli.core.errors import InputError, UsageError
from calibcli.lab.training import _state as state
from calibcli.lab.training import batches as head
from calibcli.lab.training import recipes as augmentations
from calibcli.lab.training._loop import Trainer
from calibcli.lab.training.batches import Batches, Loader, Split, open_parts, standardised
from calibcli.lab.training.recipes import Recipe
from calibcli.networks import dataset, losses

torch.set_num_threads(1)


class Net(nn.Module):
    """Everything with a state of its own: batch statistics, dropout, a last linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.drop, self.linear = nn.Dropout(0.3), nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.drop(self.body(x)))  # type: ignore[no-any-return]


def rows(n: int = 60, seed: int = 0) -> tuple[Loader, Loader]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n + 30, 1, 6, 6, generator=generator)
    y = (x.mean((1, 2, 3)) * 12 + torch.randn(n + 30, generator=generator)).clamp(-1, 1).round().long() + 1
    return Loader.holding(x[:n], y[:n]), Loader.holding(x[n:], y[n:])


def trainer(recipe: Recipe, folder: Path | None = None, kind: type[Trainer] = Trainer, **options: Any) -> Trainer:
    torch.manual_seed(0)
    return kind(Net(), recipe, *rows(), folder=folder, **options)


def content(model: nn.Module) -> bytes:
    return b"".join(t.detach().numpy().tobytes() for t in model.state_dict().values())


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(epochs=3, batch_size=16, augment="crop:pad=1+flip"),
        Recipe(loss="adafocal", epochs=3, batch_size=16, keep="best", patience=3, clip_norm=1.0),
        Recipe(loss="fls-531", epochs=3, batch_size=16, optimizer="adamw", lr=0.01, schedule="cosine", warmup=0.2),
        Recipe(loss="focal:gamma=2+trace:weight=0.01,every=2+mmce:weight=1", epochs=3, batch_size=16, amp="bf16"),
        Recipe(loss="ce+trace:weight=0.01,kind=ggn,every=2", epochs=3, batch_size=16),
        Recipe(loss="dual_focal:gamma=5+trace:weight=0.01,kind=ggn", epochs=3, batch_size=16, amp="bf16"),
        Recipe(loss="ce+trace:weight=0.001,probes=2", epochs=3, batch_size=16),
        Recipe(epochs=3, batch_size=16, optimizer="sgd+sam:rho=0.1", augment="flip+mixup:alpha=0.4"),
        Recipe(epochs=3, batch_size=16, optimizer="adam+sam", loss="ce+mbls:margin=1+mdca+cpc", lr=0.01),
        Recipe(epochs=3, batch_size=16, optimizer="adagrad", loss="logit_norm:tau=1"),
    ],
    ids=["augmented", "adafocal", "scheduled", "penalties", "ggn", "ggn-bf16", "hessian", "sam", "adam", "adagrad"],
)
@pytest.mark.one_in(7)
def test_resumed_is_uninterrupted(recipe: Recipe, tmp_path: Path) -> None:
    whole = trainer(recipe)
    history = whole.run()
    for crash_at in range(len(repr(recipe)) % 3, 12, 3):  # each third moment, of other recipes another third
        folder = tmp_path / str(crash_at)
        folder.mkdir()
        Crashing.after = crash_at
        with pytest.raises(Crash):
            trainer(recipe, folder, Crashing, save_every=2).run()
        again = trainer(recipe, folder, save_every=2)
        if (folder / state.FILE).exists():
            again.resume()
        assert again.run() == history
        assert content(again.model) == content(whole.model)
        steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
        done = [s["step"] for s in steps if "step" in s]
        assert sorted(set(done)) == list(range(12))
        assert len(done) - 12 <= 2
        log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        assert log == history


def test_state_of_another_run_is_refused(tmp_path: Path) -> None:
    trainer(Recipe(epochs=1), tmp_path).run()
    with pytest.raises(UsageError, match="another run"):
        trainer(Recipe(epochs=1, lr=0.2), tmp_path).resume()
    (tmp_path / state.FILE).write_bytes(b"not a state")
    with pytest.raises(InputError, match="not the state of a run"):
        trainer(Recipe(epochs=1), tmp_path).resume()


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"schedule": "constant"}, {"schedule": "constant"}),
        ({"schedule": "step:at=0.5"}, {"schedule": "step:at=0.25/0.75"}),
        ({"schedule": "constant", "warmup": 0.5}, {"schedule": "constant", "warmup": 0.25}),
        ({"schedule": "constant", "loss": "adafocal", "keep": "best"}, {"schedule": "constant"}),
    ],
)
def test_a_finished_run_goes_on_for_more_epochs(short: dict[str, Any], long: dict[str, Any], tmp_path: Path) -> None:
    """It ends with the bytes of a run that had as many from the start."""
    whole = trainer(Recipe(epochs=4, batch_size=16, **{**short, **long}))
    history = whole.run()
    trainer(Recipe(epochs=2, batch_size=16, **short), tmp_path).run()
    longer = trainer(Recipe(epochs=4, batch_size=16, **{**short, **long}), tmp_path)
    longer.resume()
    assert longer.position.epoch == 2
    assert longer.run() == history
    assert content(longer.model) == content(whole.model)
    assert trainer(Recipe(epochs=4, batch_size=16, **{**short, **long}), tmp_path).resume() is None


@pytest.mark.parametrize(
    ("short", "problem", "fix"),
    [
        ({"schedule": "cosine"}, "the learning rate of epoch 1 was", "train on from its weights: calib fit"),
        ({"schedule": "step:at=0.5"}, "of epoch 2 was 0.01, and would be 0.1", "--schedule step:at=0.25,factor=0.1"),
        ({"schedule": "constant", "warmup": 0.5}, "of epoch 1 was", "--schedule constant --warmup 0.25"),
        ({"schedule": "constant", "loss": "fls-531"}, "another loss in epoch 3 of 4", "train on from its weights"),
        ({"schedule": "constant", "batch_size": 8}, "recipe batch_size: 8, not 16", "pass the same options"),
    ],
)
def test_a_longer_run_with_another_past_is_refused(
    short: dict[str, Any], problem: str, fix: str, tmp_path: Path
) -> None:
    epochs = 3 if "loss" in short else 2
    trainer(Recipe(**{"epochs": epochs, "batch_size": 16, **short}), tmp_path).run()
    with pytest.raises(UsageError, match=re.escape(problem)) as refused:
        trainer(Recipe(**{**short, "epochs": 4, "batch_size": 16}), tmp_path).resume()
    assert fix in str(refused.value.fix)
    if "--schedule" in fix:  # the line works
        spec, _, warmup = refused.value.fix.removeprefix("pass --schedule ").partition(" --warmup ")
        longer = trainer(Recipe(epochs=4, batch_size=16, schedule=spec, warmup=float(warmup or 0)), tmp_path)
        longer.resume()
        assert len(longer.run()) == 4
    if short["schedule"] == "constant" and "batch_size" not in short:
        return
    with pytest.raises(UsageError, match="another run"):
        trainer(Recipe(**{**short, "epochs": 1, "batch_size": 16}), tmp_path).resume()


@pytest.mark.regression
def test_a_run_that_stopped_at_its_nll_says_so_when_it_is_lengthened(tmp_path: Path) -> None:
    """It was said to have ended by --patience None."""
    recipe = Recipe(epochs=5, batch_size=16, stop_nll=10.0)
    assert len(trainer(recipe, tmp_path).run()) == 1
    with pytest.raises(UsageError, match="the run ended after 1 epochs by --stop-nll 10"):
        trainer(dataclasses.replace(recipe, epochs=9), tmp_path).resume()


def test_same_seed_same_run_other_seed_other_run() -> None:
    weights = []
    for seed in (0, 0, 1):
        made = trainer(Recipe(epochs=1, seed=seed))
        made.run()
        weights.append(content(made.model))
    assert weights[0] == weights[1] != weights[2]


def test_it_is_a_plain_loop() -> None:
    """Weights after two epochs equal those of the loop everyone writes."""
    recipe = Recipe(epochs=2, batch_size=16, lr=0.05, schedule="constant", clip_norm=0.5)
    (train, validation), net = rows(), nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    torch.manual_seed(0)
    for p in net.parameters():
        nn.init.normal_(p, std=0.1)
    import copy

    other = copy.deepcopy(net)
    Trainer(net, recipe, train, validation).run()
    optimizer = torch.optim.SGD(other.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    for epoch in range(2):
        for batch in torch.split(Batches(60, 16, 0).epoch(epoch), 16):
            inputs, labels = train(batch)
            optimizer.zero_grad()
            nn.functional.cross_entropy(other(inputs), labels).backward()
            nn.utils.clip_grad_norm_(other.parameters(), 0.5)
            optimizer.step()
    for a, b in zip(net.parameters(), other.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def in_float64(recipe: Recipe, step: Any) -> None:
    """Weights after two epochs of a run in float64 equal those of a loop with this step, to 1e-12."""
    import copy

    (train, validation), net = (
        rows(),
        nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 3)).double(),
    )
    (x, y), (x_, y_) = (one(torch.arange(len(one))) for one in (train, validation))
    train, validation = Loader.holding(x.double(), y), Loader.holding(x_.double(), y_)
    torch.manual_seed(0)
    for p in net.parameters():
        nn.init.normal_(p, std=0.3)
    other = copy.deepcopy(net)
    Trainer(net, recipe, train, validation).run()
    optimizer = torch.optim.SGD(other.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    number = 0
    for epoch in range(2):
        for batch in torch.split(Batches(60, 16, 0).epoch(epoch), 16):
            inputs, labels = train(batch)
            optimizer.zero_grad()
            step(other, optimizer, inputs, labels, number)
            optimizer.step()
            number += 1
    for a, b in zip(net.parameters(), other.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_sam_is_two_passes() -> None:
    def step(net: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor, number: int) -> None:
        weights = list(net.parameters())
        gradients = torch.autograd.grad(nn.functional.cross_entropy(net(inputs), labels), weights)
        length = sum((g * g).sum() for g in gradients) ** 0.5
        before = [w.detach().clone() for w in weights]
        with torch.no_grad():
            for w, g in zip(weights, gradients):
                w += 0.3 * g / length
        nn.functional.cross_entropy(net(inputs), labels).backward()
        with torch.no_grad():
            for w, old in zip(weights, before):
                w.copy_(old)

    recipe = Recipe(epochs=2, batch_size=16, lr=0.05, schedule="constant", optimizer="sgd+sam:rho=0.3")
    in_float64(recipe, step)
    assert Recipe(optimizer="sam:rho=0.3").optimizer == "sgd+sam:rho=0.3"


@pytest.mark.parametrize("alpha", [0.0, 0.4, 2.0])
def test_mixup_is_the_loss_of_both_labels(alpha: float) -> None:
    generator = torch.Generator().manual_seed(1)  # that of the run

    def step(net: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor, number: int) -> None:
        share = np.random.default_rng((0, number)).beta(alpha, alpha) if alpha else 1.0
        order = torch.randperm(len(inputs), generator=generator)
        targets = nn.functional.one_hot(labels, 3).double()
        mixed = share * targets + (1 - share) * targets[order]
        log_p = net(share * inputs + (1 - share) * inputs[order]).log_softmax(1)
        (-(mixed * log_p).sum(1).mean()).backward()

    in_float64(Recipe(epochs=2, batch_size=16, lr=0.05, schedule="constant", augment=f"mixup:alpha={alpha}"), step)


def test_mixup_goes_to_none_with_alpha() -> None:
    runs = {}
    for augment in ("", "mixup:alpha=0", "mixup:alpha=1e-6", "mixup:alpha=0.5"):
        made = trainer(Recipe(epochs=3, batch_size=16, augment=augment))
        made.model.eval()  # no batch statistics, which see rows in another order
        made.model.drop.p = 0.0  # type: ignore[union-attr]
        made.run()
        runs[augment] = torch.cat([p.detach().flatten() for p in made.model.parameters()])
    torch.testing.assert_close(runs["mixup:alpha=0"], runs[""], rtol=0, atol=0)
    torch.testing.assert_close(runs["mixup:alpha=1e-6"], runs[""], rtol=1e-4, atol=1e-5)
    assert float((runs["mixup:alpha=0.5"] - runs[""]).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("augment", "loss", "match"),
    [("mixup", "ce+mmce", "two labels"), ("mixup+flip+mixup", "ce", "mixup twice")],
)
def test_mixup_refuses(augment: str, loss: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        trainer(Recipe(epochs=1, augment=augment, loss=loss))


def test_sam_leaves_batch_statistics_to_the_first_pass() -> None:
    found = []
    for optimizer in ("sgd", "sgd+sam:rho=0.5"):
        made = trainer(Recipe(epochs=1, batch_size=60, optimizer=optimizer))
        made.run()
        found.append(made.model.body[1].running_mean)  # type: ignore[union-attr, index]
    assert torch.equal(*found)


def test_log_has_what_it_promises() -> None:
    history = trainer(Recipe(loss="focal:gamma=2+mmce", epochs=2)).run()
    keys = "epoch lr train_loss gamma penalty_mmce last_weight_norm last_gradient_norm loss gamma_mean nll nll_correct"
    keys += " nll_wrong entropy entropy_wrong accuracy ece adaece margin_tail error p_true temperature"
    assert [list(record) for record in history] == [keys.split()] * 2
    assert history[0]["gamma"] == "2"


def test_learning_rates() -> None:
    recipe = Recipe(lr=1.0, epochs=350)
    assert [recipe.learning_rate(e, 350, 350) for e in (0, 149, 150, 249, 250, 349)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )
    recipe = Recipe(lr=2.0, schedule="cosine", warmup=0.1, epochs=10)
    assert [recipe.learning_rate(s, 100, 10) for s in (0, 9, 50)] == pytest.approx([0.2, 2.0, 1.0])
    assert recipe.learning_rate(99, 100, 10) < 0.01


def test_best_weights_and_patience(tmp_path: Path) -> None:
    made = trainer(Recipe(epochs=40, lr=0.5, keep="best", select="nll", patience=4), tmp_path)
    history = made.run()
    best = min(range(len(history)), key=lambda i: history[i]["nll"])
    assert len(history) == best + 5 < 40
    made.model.eval()
    _, validation = rows()
    logits, labels = made.logits(validation)
    nll = float(nn.functional.cross_entropy(logits.double(), labels))
    assert nll == pytest.approx(history[best]["nll"], rel=1e-5)


def test_it_stops_at_a_training_nll(tmp_path: Path) -> None:
    whole = trainer(Recipe(epochs=8, lr=0.2, stop_nll=1e-9)).run()
    nll = [record["train_nll"] for record in whole]
    assert len(nll) == 8
    limit = float(np.mean([min(nll), max(nll)]))
    first = next(i for i, value in enumerate(nll) if value <= limit)
    assert 0 < first < 7
    made = trainer(Recipe(epochs=8, lr=0.2, stop_nll=limit), tmp_path)
    assert [record["train_nll"] for record in made.run()] == nll[: first + 1]
    logits, labels = made.logits(rows()[0])
    assert float(nn.functional.cross_entropy(logits, labels)) == pytest.approx(nll[first])
    again = trainer(Recipe(epochs=8, lr=0.2, stop_nll=limit), tmp_path)
    again.resume()
    assert len(again.run()) == first + 1
    assert "train_nll" not in trainer(Recipe(epochs=1)).run()[0]


def test_nan_keeps_the_last_good_state(tmp_path: Path) -> None:
    made = trainer(Recipe(epochs=50, lr=1e20, warmup=0.9, augment=""), tmp_path, save_every=1)
    with pytest.raises(InputError, match=r"the loss became .* at step|finite") as error:
        made.run()
    assert "lower --lr" in error.value.fix
    kept = torch.load(tmp_path / state.FILE, weights_only=True)
    assert all(torch.isfinite(v).all() for v in kept["model"].values() if v.is_floating_point())


def test_out_of_memory_says_what_to_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(Recipe(epochs=1, batch_size=32), tmp_path)

    def full(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(made.model, "forward", full)
    with pytest.raises(InputError, match="out of memory at batch size 32") as error:
        made.run()
    assert "--batch-size 16" in error.value.fix


def test_crop_and_flip_against_slices() -> None:
    x = torch.arange(5 * 2 * 4 * 6, dtype=torch.float32).view(5, 2, 4, 6)
    cropped = augmentations.crop(x, torch.Generator().manual_seed(1), pad=2)
    padded = nn.functional.pad(x, (2, 2, 2, 2))
    places = set()
    for image in range(5):
        windows = {(i, j): padded[image, :, i : i + 4, j : j + 6] for i in range(5) for j in range(5)}
        found = [place for place, window in windows.items() if torch.equal(window, cropped[image])]
        assert found
        places.add(found[0])
    assert len(places) > 1
    flipped = augmentations.flip(x, torch.Generator().manual_seed(1))
    assert {bool(torch.equal(a, b)) for a, b in zip(flipped, x)} == {True, False}
    assert all(torch.equal(a, b) or torch.equal(a, b.flip(2)) for a, b in zip(flipped, x))
    with pytest.raises(InputError, match="needs images"):
        augmentations.pipeline("flip", (64,))


def test_stratified_split() -> None:
    labels = np.repeat([0, 1, 2], [50, 20, 2])
    kept, held = Split("stratified", 0, 0.1)(labels)
    assert np.bincount(labels[held]).tolist() == [5, 2, 1]
    assert sorted([*kept, *held]) == list(range(72))
    assert not np.array_equal(held, Split("stratified", 1, 0.1)(labels)[1])
    with pytest.raises(InputError, match="class 1 has one row"):
        Split("stratified", 0, 0.5)(np.array([0, 0, 1]))
    for share in (0.0, 1.0):
        with pytest.raises(UsageError, match="is not a share"):
            Split("mukhoti", 0, share)(labels)
    with pytest.raises(UsageError, match=r"0\.01 of 72 rows is none"):
        Split("mukhoti", 1, 0.01)(labels)


def test_the_split_of_the_paper() -> None:
    """45,000 and 5,000 of CIFAR, against what the published code does, in its own steps."""
    places = list(range(50_000))
    np.random.RandomState(1).shuffle(places)
    kept, held = Split("mukhoti").after(None)(np.zeros(50_000, np.int64))
    assert (kept.tolist(), held.tolist()) == (sorted(places[5_000:]), sorted(places[:5_000]))


def test_batches_cover_every_row_once() -> None:
    batches = Batches(50, 16, seed=3)
    order = batches.epoch(2)
    seen = torch.cat([batches.batch(order, s) for s in range(batches.steps)])
    assert sorted(seen.tolist()) == list(range(50))
    assert Batches(49, 16, 0).steps == 3  # a last batch of one row is left out
    assert not torch.equal(order, batches.epoch(3))


def test_frozen_modules_keep_their_statistics() -> None:
    made = trainer(Recipe(epochs=1))
    assert head.freeze(made.model, ("body",)) == ["body.0.bias", "body.0.weight", "body.1.bias", "body.1.weight"]
    made = Trainer(made.model, Recipe(epochs=1), *rows())
    before = content(made.model.body)  # type: ignore[arg-type]
    made.run()
    assert content(made.model.body) == before  # type: ignore[arg-type]
    head.train_mode(made.model)
    assert made.model.drop.training
    with pytest.raises(InputError, match="matches no parameter"):
        head.freeze(made.model, ("nothing*",))
    for p in made.model.parameters():
        p.requires_grad_(False)
    with pytest.raises(InputError, match="every parameter is frozen"):
        Trainer(made.model, Recipe(epochs=1), *rows())


def test_head_features_make_the_logits() -> None:
    torch.manual_seed(0)
    model, (train, _) = Net().eval(), rows()
    found = head.features(model, train)
    with torch.no_grad():
        torch.testing.assert_close(model.linear(found(torch.arange(60))[0]), model(train(torch.arange(60))[0]))
    with pytest.raises(InputError, match="does not make the logits"):
        head.features(nn.Sequential(model, nn.ReLU()), train)
    with pytest.raises(InputError, match="no linear layer"):
        head.layer(nn.ReLU())


def arrays(tmp_path: Path, labels: list[int], **more: Any) -> str:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.random.default_rng(0).normal(3, 2, (len(labels), 5)), y=np.array(labels), **more)
    return str(path)


def test_parts_and_standardising(tmp_path: Path) -> None:
    source = arrays(tmp_path, [0, 1] * 30)
    parts = open_parts(source, None, None, named={}, split=Split(share=0.2))
    assert [(role, len(data)) for role, data in parts.items()] == [("train", 48), ("validation", 12)]
    x, _ = standardised(parts.train).batch(slice(None))
    assert isinstance(x, Tensor)
    torch.testing.assert_close(x.mean(0), torch.zeros(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(5))
    np.savez(tmp_path / "s.npz", train_x=np.ones((4, 2)), train_y=[0, 1, 0, 1], test_x=np.ones((2, 2)), test_y=[0, 1])
    assert dataset.splits(tmp_path / "s.npz") == ["train", "test"]
    parts = open_parts(str(tmp_path / "s.npz"), None, None, named={}, split=Split(share=0.5))
    assert [role for role, _ in parts.items()] == ["train", "validation", "test"]
    with pytest.raises(UsageError, match="no training rows"):
        open_parts(None, None, None, named={})


def test_empty_class_is_refused_unless_allowed(tmp_path: Path) -> None:
    source = arrays(tmp_path, [0, 0, 2, 2] * 5)
    options: dict[str, Any] = {"named": {}, "split": Split(share=0.2)}
    with pytest.raises(InputError, match="class 1 has no training rows"):
        open_parts(source, None, None, **options)
    assert "class 1" in open_parts(source, None, None, missing_classes=True, **options).notes[-1]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"epochs": 0}, "--epochs 0"),
        ({"lr": math.nan}, "--lr nan is out of range"),
        ({"warmup": 1.0}, "--warmup 1 is out of range"),
        ({"clip_norm": 0.0}, "--clip-norm 0 is out of range"),
        ({"patience": 0}, "--patience 0"),
        ({"stop_nll": 0.0}, "--stop-nll 0 is out of range"),
        ({"optimizer": "sdg"}, "unknown optimizer"),
        ({"schedule": "steps"}, "unknown schedule"),
        ({"optimizer": "sgd+adam"}, "several optimizers"),
        ({"optimizer": "sgd+sam+sam"}, "several optimizers"),
        ({"optimizer": "sam:rho=-1"}, "out of range"),
        ({"augment": "crop+rotate"}, "unknown augmentation"),
        ({"loss": "nope"}, "unknown loss"),
    ],
)
def test_wrong_recipes(options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Recipe(**options)


def test_sum_reduction_is_mean_times_rows() -> None:
    models = []
    for reduction, lr in (("mean", 0.16), ("sum", 0.01)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
        x, y = torch.randn(32, 1, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(32) % 3
        recipe = Recipe(epochs=2, batch_size=16, lr=lr, reduction=reduction, optimizer="sgd:weight_decay=0")  # type: ignore[arg-type]
        Trainer(net, recipe, Loader.holding(x, y)).run()
        models.append(net)
    torch.testing.assert_close(models[0][1].weight, models[1][1].weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", [{"keep": "best"}, {"patience": 2}, {"loss": "adafocal"}])
def test_what_needs_validation_rows_says_so(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="need validation rows"):
        Trainer(Net(), Recipe(epochs=2, **options), rows()[0])


def test_named_inputs(tmp_path: Path) -> None:
    """Rows of tokens and masks are passed to the model by name."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.linear = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            x = self.embed(input_ids) * attention_mask.unsqueeze(2)
            return self.linear(x.sum(1))  # type: ignore[no-any-return]

    rng = np.random.default_rng(0)
    ids, mask = rng.integers(0, 9, (40, 5)), rng.integers(0, 2, (40, 5))
    np.savez(tmp_path / "t.npz", input_ids=ids, attention_mask=mask, labels=(ids[:, 0] > 4).astype(int))
    loader = Loader(dataset.load(tmp_path / "t.npz"), torch.device("cpu"), torch.float32)
    history = Trainer(Tokens(), Recipe(epochs=3, batch_size=8), loader, loader).run()
    assert history[-1]["nll"] < history[0]["nll"]


def test_objective_matches_its_spec() -> None:
    assert Recipe(loss="FLA-53").loss == losses.objective("focal_sample").spec


def test_progress_says_the_loss_and_how_fast_rows_go_by() -> None:
    said: list[tuple[float, str]] = []
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    rows = (x, (x[:, 0] > 0).long())
    how = {"epochs": 2, "batch_size": 16, "device": "cpu", "progress": lambda *both: said.append(both)}
    calibcli.train(torch.nn.Linear(4, 2), rows, **how)
    trained = [text for _, text in said if "epoch" in text]
    assert len(trained) == 8
    assert all(re.search(r"epoch \d of 2, loss [\d.]+, [\d,]+ rows a second$", text) for text in trained), trained
