"""Memory of the device runs out: the plan backs off to smaller micro-batches with the same numbers, or it is said."""

from __future__ import annotations

from collections.abc import Iterator

import pretend
import pytest
import torch
from both import CUDA, images, network

from calibcli.core.errors import InputError
from calibcli.core.result import Result
from calibcli.networks.curvature import measure

pytestmark = pytest.mark.pretended
MIB = 1 << 20


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    """As much memory after a test as before it."""
    before = pretend.limit(1 << 37)
    yield
    pretend.limit(before)


def curvature(limit: int | None = None, **options: object) -> Result:
    """In float64, 128 rows; with `limit` bytes beyond what is in use."""
    pretend.limit(1 << 37 if limit is None else pretend.used() + limit)
    pretend.reset()
    return measure(
        network(8), images(128, 16), "lambda_max:bound=estimate", device=CUDA, dtype=torch.float64, **options
    )  # type: ignore[arg-type]


def values(result: Result) -> list[float]:
    return [e.value for e in result.estimates if e.value is not None]


def test_less_and_less_memory() -> None:
    """Down to where it is refused; in between the numbers stay, and allocations were refused on the way."""
    base = pretend.used()
    free = values(curvature())
    most = pretend.peak() - base
    refusals, backed_off = [], False
    for share in (0.6, 0.3, 0.1, 0.03, 0.01):
        try:
            found = curvature(int(share * most))
        except InputError as error:
            refusals.append((error.problem, error.fix))
            continue
        assert not refusals, "with less memory it ran again"
        assert values(found) == pytest.approx(free, rel=1e-9)
        backed_off |= pretend.refused() > 0
    assert refusals
    assert backed_off
    assert all("out of memory on cuda:0" in problem and "--params" in fix for problem, fix in refusals)


def test_every_pass_backs_off_or_says_so() -> None:
    """Gradients, traces, probes, certificates and Krylov vectors, from memory for all down to next to none."""
    what = ("grad_norm", "trace:probes=2", "lambda_max", "density:steps=12")

    def found(limit: int) -> list[float]:
        pretend.limit(pretend.used() + limit)
        return values(measure(network(), images(64, 12), *what, device=CUDA, dtype=torch.float64))

    free = found(200 * MIB)
    ran, said = [], []
    for limit in (16 * MIB, 4 * MIB, 2 * MIB, MIB, MIB // 3, MIB // 10):
        try:
            ran.append(found(limit))
        except InputError as error:
            said.append(str(error))
    assert len(ran) >= 2
    assert all(one == pytest.approx(free, rel=1e-8) for one in ran)
    assert said
    assert all("out of memory on cuda:0" in one for one in said)


def test_memory_that_ran_out_is_given_back() -> None:
    used = pretend.used()
    with pytest.raises(InputError, match="out of memory"):
        curvature(64 << 10)
    assert pretend.used() <= used + MIB
    assert values(curvature())
