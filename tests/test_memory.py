"""What memory is free: the machine's, and the limits of containers and batch systems, which end a process beyond."""

from __future__ import annotations

import gc
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark_scripts import script
from torch import nn

from calibcli.core import memory
from calibcli.core.errors import InputError
from calibcli.networks import device
from calibcli.networks.architectures import build
from calibcli.networks.curvature import engine, measure

MIB = 1 << 20


def machine(root: Path, available: int, groups: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {available // 1024} kB\nCached: 1 kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    return root


def group(folder: Path, names: tuple[str, str, str], limit: int | str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cached}\nactive_file 7\n")


def v2(folder: Path, limit: int | str, used: int = 0, cached: int = 0) -> None:
    group(folder, memory.UNIFIED, limit, used, cached)


def v1(folder: Path, limit: int, used: int = 0, cached: int = 0) -> None:
    group(folder, memory.DIVIDED, limit, used, cached)


def test_the_machine_alone(tmp_path: Path) -> None:
    assert memory.free_memory(str(machine(tmp_path, 300 * MIB, "0::/\n"))) == 300 * MIB


def test_limit_less_use_and_what_is_cached_of_files(tmp_path: Path) -> None:
    root = machine(tmp_path, 900 * MIB, "0::/job\n")
    v2(root / "sys/fs/cgroup/job", 200 * MIB, 150 * MIB, 30 * MIB)
    assert memory.free_memory(str(root)) == 80 * MIB


def test_groups_above_count(tmp_path: Path) -> None:
    """The step of a job has no limit, the job has one, the user another."""
    root = machine(tmp_path, 900 * MIB, "0::/user/job/step\n")
    v2(root / "sys/fs/cgroup/user/job/step", "max", 1 * MIB)
    v2(root / "sys/fs/cgroup/user/job", 500 * MIB, 100 * MIB)
    v2(root / "sys/fs/cgroup/user", 600 * MIB, 590 * MIB)
    assert memory.free_memory(str(root)) == 10 * MIB


def test_a_container_that_sees_its_group_as_the_root(tmp_path: Path) -> None:
    root = machine(tmp_path, 900 * MIB, "0::/docker/0123\n")
    v2(root / "sys/fs/cgroup", 64 * MIB, 10 * MIB)
    assert memory.free_memory(str(root)) == 54 * MIB


@pytest.mark.parametrize("above", ["/../../other", "/"])
def test_a_name_space_of_its_own(tmp_path: Path, above: str) -> None:
    root = machine(tmp_path, 900 * MIB, f"0::{above}\n")
    v2(root / "sys/fs/cgroup", 64 * MIB, 10 * MIB)
    v2(root / "sys/other", 1 * MIB)
    assert memory.free_memory(str(root)) == 54 * MIB


def test_version_one_and_both_at_once(tmp_path: Path) -> None:
    text = "12:pids:/a\n4:cpu,memory:/slurm/job_7\n1:name=systemd:/b\n0::/c\n"
    root = machine(tmp_path, 900 * MIB, text)
    v1(root / "sys/fs/cgroup/memory", (1 << 63) - 4096)
    v1(root / "sys/fs/cgroup/memory/slurm/job_7", 100 * MIB, 90 * MIB, 20 * MIB)
    assert memory.free_memory(str(root)) == 30 * MIB
    assert len(memory._limits(str(root))) == 1  # the largest number of pages is no limit: its use is not read each time
    v2(root / "sys/fs/cgroup/unified/c", 25 * MIB, 5 * MIB)
    assert memory.free_memory(str(root)) == 30 * MIB  # limits are read once
    memory._limits.cache_clear()
    assert memory.free_memory(str(root)) == 20 * MIB
    v1(root / "sys/fs/cgroup/memory/slurm/job_7", 100 * MIB, 190 * MIB)
    assert memory.free_memory(str(root)) == 0


def test_where_nothing_is_said(tmp_path: Path) -> None:
    assert memory.free_memory(str(tmp_path)) > 0


def test_files_that_are_decoded_take_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 100 * MIB)
    assert memory.memory_limit() == 50 * MIB
    monkeypatch.setattr(memory, "free_memory", lambda: 1 << 50)
    assert memory.memory_limit() == memory.MOST_DECODED


def test_torchs_own_cache_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * MIB, 99 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50 * MIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20 * MIB)
    assert device.free_bytes(torch.device("cuda", 0)) == 33 * MIB
    monkeypatch.setattr(memory, "free_memory", lambda: 7 * MIB)  # what is free changes from call to call
    assert device.free_bytes(torch.device("cpu")) == device.free_bytes() == 7 * MIB


def test_a_krylov_run_that_does_not_fit_is_refused_before_it_allocates(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(20, 500), nn.Tanh(), nn.Linear(500, 3))
    size = sum(p.numel() for p in model.parameters())
    data = torch.randn(16, 20), torch.arange(16) % 3
    least = size * (10 * 4 + engine.WORKING)
    monkeypatch.setattr(engine, "free_bytes", lambda device: least - 1)
    monkeypatch.setattr(engine, "normal", None)  # no start vector is drawn
    with pytest.raises(
        InputError, match=rf"in {size:,} parameters takes at least .* GiB, of .* that are free"
    ) as caught:
        measure(model, data, "lambda_max")
    assert "--params" in caught.value.fix
    monkeypatch.undo()
    monkeypatch.setattr(engine, "free_bytes", lambda device: least)
    found = measure(model, data, "lambda_max")
    assert "at most 10 vectors in float32" in found.facts["krylov_basis"]


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_what_ulimit_leaves_is_free(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    plain, number = resource.getrlimit, getattr(resource, limit)
    used = memory.free_memory()
    most = int(Path("/proc/self/statm").read_text().split()[0 if limit == "RLIMIT_AS" else 5]) * 4096 + 64 * MIB
    monkeypatch.setattr(resource, "getrlimit", lambda which: (most, -1) if which == number else plain(which))
    assert 32 * MIB < memory.free_memory() <= 65 * MIB < used
    monkeypatch.undo()
    assert memory._left_by_ulimit() == [] or resource.getrlimit(number)[0] != resource.RLIM_INFINITY


def resident(field: str) -> int:
    """`VmHWM` (the peak) or `VmRSS`, in bytes."""
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


@pytest.fixture
def told() -> Iterator[None]:
    """Say that 200 MiB are free, and begin to look for the peak."""
    gc.collect()  # what other tests left would be freed within, and more be free than is said
    try:
        memory.trim()
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("the kernel does not set the peak of a process back")
    memory.limit_memory(memory.taken_memory() + 200 * MIB)
    yield
    memory.limit_memory(None)


MODELS: dict[str, Any] = {  # model, rows, and whether curvature fits
    "perceptron": (lambda: nn.Sequential(nn.Linear(300, 600), nn.ReLU(), nn.Linear(600, 10)), (1024, 300), True),
    "resnet": (lambda: build("resnet:depth=8"), (12, 3, 32, 32), True),
    "25 million": (lambda: nn.Linear(5000, 5000), (16, 5000), False),
    "50,000 words": (lambda: nn.Sequential(nn.Linear(16, 96), nn.Tanh(), nn.Linear(96, 50_000)), (32, 16), False),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "resnet")) for n in MODELS])
def test_a_run_is_planned_within_what_is_free_or_refused(name: str, told: None) -> None:
    make, shape, fits = MODELS[name]
    torch.manual_seed(0)
    model, data = make(), (torch.randn(shape), torch.arange(shape[0]) % 10)
    before = resident("VmRSS")
    if fits:
        found = measure(model, data, "lambda_max:tol=0.3,bound=estimate")
        assert found["lambda_max"].value
    else:
        with pytest.raises(InputError, match=r"parameters takes at least .* GiB, of .* that are free on cpu") as caught:
            measure(model, data, "lambda_max")
        assert "--params" in caught.value.fix
    assert resident("VmHWM") - before <= 200 * MIB


@pytest.mark.slow
def test_the_peak_of_a_run_is_near_what_its_plan_adds_up_to() -> None:
    found = script("_harness").child(script("memory").worker, "mlp", "auto", "lambda_max:tol=0.1", 0.0)
    assert 0.6 < found["peak"] / sum(found["parts"]) < 1.3
