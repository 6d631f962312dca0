"""The callback of docs/python.md in a Hugging Face Trainer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli

pytestmark = pytest.mark.extra
PAGE = Path(__file__).parent.parent / "docs" / "python.md"


def test_the_callback_logs_what_measure_says(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    [code] = [c for c in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S) if "Callback" in c]
    names: dict[str, Any] = {}
    exec(code, names)

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
            z = self.linear(x)
            return {"loss": torch.nn.functional.cross_entropy(z, labels), "logits": z}

    rng = np.random.default_rng(0)
    rows = [{"x": rng.normal(size=4).astype("float32"), "labels": int(rng.integers(3))} for _ in range(300)]
    how = transformers.TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=2, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True
    )
    trainer = transformers.Trainer(Model(), how, train_dataset=rows, eval_dataset=rows)
    trainer.add_callback(names["CalibrationCallback"](trainer, rows, "nll", "ece"))
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "calibration_nll" in entry]
    assert len(logged) == 2
    last = trainer.predict(rows)
    expected = calibcli.measure(last.predictions, last.label_ids, "nll", "ece")
    assert logged[-1]["calibration_nll"] == pytest.approx(expected["nll"].value)
    assert logged[-1]["calibration_ece"] == pytest.approx(expected["ece"].value)
