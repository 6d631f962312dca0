"""`calib logits` end to end: files written, what it says, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import calibcli
from calibcli.cli.app import main
from calibcli.networks import checkpoint, dataset, inference
from calibcli.networks.architectures import build
from calibcli.networks.device import is_out_of_memory

torch.set_num_threads(1)
N, K = 23, 4


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a checkpoint that says where its data lies."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = build(f"mlp:inputs=6,hidden=5,classes={K}")
    np.savez(
        tmp_path / "d.npz",
        x_test=rng.integers(0, 17, (N, 2, 3), dtype=np.uint8),
        y_test=np.arange(N) % K,
        test_ids=np.array([f"r{i}" for i in range(N)]),
    )
    metadata = {
        "architecture": f"mlp:inputs=6,hidden=5,classes={K}",
        "preprocess": {"layout": "flat", "scale": 0.0625, "mean": [0.3], "std": [0.4]},
        "classes": list("abcd"),
        "data": {"test": "d.npz#test"},
    }
    checkpoint.save(tmp_path / "model.safetensors", model, metadata)
    return tmp_path


def expected(folder: Path) -> Any:
    model = checkpoint.load(folder / "model.safetensors").model.double()
    x = np.load(folder / "d.npz")["x_test"].reshape(N, 6) * 0.0625
    with torch.no_grad():
        return model(torch.from_numpy((x - 0.3) / 0.4)).numpy()


class Habits(torch.nn.Module):
    """A mean over all steps, filling too; and features that are a gradient, taken in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = torch.nn.Embedding(9, 4), torch.nn.Linear(4, K)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        mean = (self.table(input_ids) * attention_mask[..., None]).mean(1)
        with torch.enable_grad():
            x = mean.detach().requires_grad_()
            return self.head(torch.autograd.grad(x.tanh().square().sum(), x, create_graph=True)[0])


@pytest.mark.regression
@pytest.mark.parametrize("batch", [1, 3, 256])
def test_what_is_masked_counts_where_the_model_counts_it(tmp_path: Path, batch: int) -> None:
    """Columns that are masked in all rows of a batch were dropped, so that the logits followed the batch size."""
    torch.manual_seed(0)
    mask = (torch.arange(8) < torch.arange(8, 1, -1)[:, None]).long()  # rows of 8 to 2 words
    inputs = {"input_ids": torch.randint(1, 9, (7, 8)), "attention_mask": mask}
    model, out = Habits(), tmp_path / "o.npz"
    calibcli.logits(model, (inputs, torch.arange(7) % K), save=out, batch_size=batch, device="cpu")
    np.testing.assert_allclose(np.load(out)["logits"], model(**inputs).detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 5, 256])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".npy"])
def test_no_options_needed(files: Path, capsys: pytest.CaptureFixture[str], suffix: str, batch: int) -> None:
    out = files / f"out{suffix}"
    code = main(["logits", str(files / "model.safetensors"), "--save", str(out), "--json", "--batch-size", str(batch)])
    assert code == 0
    result = json.loads(capsys.readouterr().out)
    if suffix == ".npy":
        found = {"logits": np.load(out), "labels": np.load(out.with_suffix(".labels.npy"))}
        assert result["artefacts"] == {"logits": str(out), "labels": str(out.with_suffix(".labels.npy"))}
    else:
        found = dict(np.load(out)) if suffix == ".npz" else load_file(out)
        assert result["artefacts"] == {"logits": str(out)}
    assert found["logits"].dtype == np.float32
    assert found["labels"].dtype == np.int64
    np.testing.assert_allclose(found["logits"], expected(files), rtol=1e-5, atol=1e-6)
    assert found["labels"].tolist() == (np.arange(N) % K).tolist()
    if suffix == ".npz":
        assert found["ids"].tolist() == [f"r{i}" for i in range(N)]
        assert found["classes"].tolist() == list("abcd")
    accuracy = result["estimates"][0]
    right = float((expected(files).argmax(1) == np.arange(N) % K).mean())
    assert accuracy["value"] == pytest.approx(right, abs=1e-12)
    assert (accuracy["name"], accuracy["n"], accuracy["level"]) == ("accuracy", N, 0.95)
    facts = result["facts"]
    assert (facts["rows"], facts["classes"], facts["inputs"]) == (N, K, [6])
    assert [i["path"] for i in result["provenance"]["inputs"]] == [
        str(files / "model.safetensors"),
        str(files.resolve() / "d.npz#test"),
    ]
    assert any("as the checkpoint says" in note for note in result["notes"])


def test_interval_of_accuracy() -> None:
    from scipy.stats import binomtest

    from calibcli.api.networks import accuracy

    for right, rows in ((0, 5), (915, 1000), (7, 7), (1, 3)):
        oracle = binomtest(right, rows).proportion_ci(0.95, "exact")
        made = accuracy(right, rows)
        assert (made.low, made.high) == pytest.approx((oracle.low, oracle.high), abs=1e-12)


def test_options_reach_the_data(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["logits", str(files / "model.safetensors"), "--save", str(files / "o.npz"), "-q", "--json"]
    seen = set()
    for more in ([], ["--mean", "0.1"], ["--std", "0.9"], ["--subset", "9"], ["--subset", "9", "--split-seed", "5"]):
        assert main(base + more) == 0
        seen.add(np.load(files / "o.npz")["logits"].tobytes())
    assert len(seen) == 5
    assert main([*base, "--dtype", "float64"]) == 0
    np.testing.assert_allclose(np.load(files / "o.npz")["logits"], expected(files), rtol=1e-7, atol=1e-7)
    np.savez(files / "other.npz", a=np.ones((5, 6), np.float32), b=np.arange(5) % K, y=np.zeros(5, int))
    given = ["--data", str(files / "other.npz"), "--inputs", "a", "--labels", "b"]
    assert main(base + given) == 0
    assert np.load(files / "o.npz")["labels"].tolist() == [0, 1, 2, 3, 0]
    capsys.readouterr()


def test_memory_that_runs_out_halves_the_batch(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = checkpoint.load(files / "model.safetensors")
    data = loaded.open_data(None, "test")
    sizes: list[int] = []
    inner = inference.logits

    def limited(model: Any, inputs: Any) -> Any:
        sizes.append(len(inputs))
        if len(inputs) > 4:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")
        return inner(model, inputs)

    monkeypatch.setattr(inference, "logits", limited)
    out = torch.cat(list(inference.predict(loaded.model, data, batch_size=16)))
    assert sizes[:4] == [16, 8, 4, 4]
    np.testing.assert_allclose(out, expected(files), rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(inference, "logits", lambda model, inputs: limited(model, torch.zeros(5, 1)))
    with pytest.raises(Exception, match="out of memory with one row") as caught:
        list(inference.predict(loaded.model, data))
    assert not is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("argv", "code", "problem"),
    [
        (["{m}", "--save", "{d}/o.txt"], 2, "cannot write logits as 'o.txt'"),
        (["{m}", "--save", "{d}/no/o.npz"], 2, "no folder"),
        (["{m}", "--save", "{d}/o.npz", "--data", "{d}/no.npz"], 4, "no data set"),
        (["{m}", "--save", "{d}/o.npz", "--data", "{d}/d.npz"], 4, "holds the splits test"),
        (["{d}/moved.safetensors", "--save", "{d}/o.npz"], 4, "expects its data, does not exist"),
        (["{d}/no.pt", "--save", "{d}/o.npz"], 4, "cannot read"),
        (["{d}/plain.pt", "--save", "{d}/o.npz"], 4, "does not say which architecture"),
        (
            ["{d}/plain.pt", "--save", "{d}/o.npz", "--arch", "mlp:inputs=6,hidden=5,classes=4"],
            2,
            "does not name its data",
        ),
        (["{d}/plain.pt", "--save", "{d}/o.npz", "--arch", "mlp:inputs=6,hidden=5,classes=5"], 4, "does not fit"),
        (["{m}", "--save", "{d}/o.npz", "--device", "gpu"], 2, "unknown device"),
        (["{d}/nan.pt", "--save", "{d}/o.npz"], 4, "hold NaN or infinity"),
        (["{m}", "--save", "{d}/o.npz", "--data", "{d}/far.npz"], 4, "label 9 in row 1"),
        (["{m}", "--save", "{d}/o.npz", "--data", "{d}/wide.npz"], 4, "does not take rows of shape"),
        (["{m}", "--save", "{d}/o.npz", "--data", "{d}/nan.npz"], 4, "output for row 3 is NaN"),
        (["{d}/none.pt", "--save", "{d}/o.npz", "--arch", "mlp:inputs=6"], 4, "no state dict"),
    ],
)
def test_refusals(files: Path, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, problem: str) -> None:
    good = checkpoint.load(files / "model.safetensors")
    torch.save(good.model.state_dict(), files / "plain.pt")
    checkpoint.save(files / "moved.safetensors", good.model, {**good.metadata, "data": {"test": "gone.npz#test"}})
    torch.save({"epoch": 3}, files / "none.pt")
    np.savez(files / "far.npz", x=np.ones((2, 6)), y=np.array([0, 9]))
    np.savez(files / "wide.npz", x=np.ones((2, 7)), y=np.array([0, 1]))
    np.savez(files / "nan.npz", x=np.where(np.arange(5)[:, None] == 3, np.nan, np.ones((5, 6))), y=np.zeros(5, int))
    with torch.no_grad():
        next(iter(good.model.parameters()))[0] = torch.nan
    checkpoint.save(files / "nan.pt", good.model, good.metadata)
    before = sorted(p.name for p in files.iterdir())
    assert main(["logits", *(a.format(m=files / "model.safetensors", d=files) for a in argv)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert f"error: {problem}" in err or problem in err.splitlines()[-2]
    assert "  fix: " in err
    assert sorted(p.name for p in files.iterdir()) == before


def test_the_file_is_read_back_by_the_dataset_and_by_other_readers(files: Path) -> None:
    loaded = checkpoint.load(files / "model.safetensors")
    data = loaded.open_data(None, "test")
    written = inference.write_logits(loaded.model, data, files / "o.npz")
    assert (written.rows, written.classes) == (N, K)
    again = dataset.load(files / "o.npz", inputs="logits")
    np.testing.assert_allclose(again.batch(slice(None))[0], expected(files), rtol=1e-5, atol=1e-6)
