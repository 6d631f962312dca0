"""`calibcli.hessian`: products against a Hessian that torch.func forms, and what users of such operators trip over."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from curvature_models import K, cnn, dense, mlp, setup
from scipy.sparse.linalg import cg, eigsh
from torch import Tensor, nn
from torch.func import functional_call

import calibcli
from calibcli.core.errors import InputError, UsageError
from calibcli.networks.curvature.matrix import CurvatureOperator

WEIGHTS = torch.tensor([0.2, 1.0, 3.0])
FOCAL = "focal:gamma=2"


def weighted(z: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy with a weight for each label; torch's own mean would divide by their sum."""
    return nn.functional.cross_entropy(z, y, weight=WEIGHTS.to(z), reduction="none")


LOSSES: dict[str, Any] = {"ce": "ce", "focal": FOCAL, "brier": "brier", "weights": weighted}


def explicit(model: nn.Module, x: Tensor, y: Tensor, loss: Any) -> Tensor:
    """(P, P) Hessian of the mean loss by torch.func, of the parameters that require grad."""
    model = copy.deepcopy(model).eval()
    values = calibcli.loss(loss) if isinstance(loss, str) else loss
    moved = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    shapes = [p.shape for p in moved.values()]

    def mean(theta: Tensor) -> Tensor:
        pieces = theta.split([shape.numel() for shape in shapes])
        at = {name: piece.view(shape) for name, piece, shape in zip(moved, pieces, shapes)}
        return values(functional_call(model, at, x), y).mean()

    theta = torch.cat([p.reshape(-1) for p in moved.values()])
    return torch.func.hessian(mean)(theta)


def small(dtype: torch.dtype = torch.float32, n: int = 21) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return mlp().to(dtype), torch.randn(n, 4, dtype=dtype), torch.randint(0, K, (n,))


def operator(model: nn.Module, x: Any, y: Tensor, **options: Any) -> CurvatureOperator:
    return calibcli.hessian(model, (x, y), device="cpu", **options)


class TestProducts:
    @pytest.mark.one_in(4)
    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("name", ["mlp", "cnn", "tied"])
    def test_against_torch_func(self, name: str, loss: str) -> None:
        """21 rows in batches of 8, 8 and 5; batch norm with its running statistics; a matrix that is used twice."""
        model, x, y = setup(name, n=21)
        h = operator(model, x, y, loss=LOSSES[loss], dtype="float64", batch_size=8)
        true = explicit(model, x, y, LOSSES[loss])
        found = h @ torch.eye(h.shape[0], dtype=torch.float64)  # (P, P)
        assert torch.allclose(found, true, rtol=1e-9, atol=1e-12)
        assert not torch.allclose(found * 1.01, true, rtol=1e-9, atol=1e-12)

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("loss", ["ce", "focal"])
    @pytest.mark.parametrize("name", ["mlp", "cnn"])
    def test_of_the_gauss_newton_matrix(self, name: str, loss: str) -> None:
        model, x, y = setup(name, n=21)
        values = calibcli.loss(LOSSES[loss])
        _, true, _ = dense(model, x, y, values)
        h = operator(model, x, y, loss=LOSSES[loss], matrix="ggn", dtype="float64", batch_size=8)
        found = h @ torch.eye(h.shape[0], dtype=torch.float64)
        assert torch.allclose(found, true, rtol=1e-9, atol=1e-12)
        assert loss != "ce" or torch.linalg.eigvalsh(found)[0] > -1e-12

    def test_symmetric_and_linear(self) -> None:
        h = operator(*setup("cnn", n=21), dtype="float64")
        v, w = torch.randn(2, h.shape[0], dtype=torch.float64)
        assert v @ (h @ w) == pytest.approx(float(w @ (h @ v)), rel=1e-10)
        assert torch.allclose(h @ (2 * v - 3 * w), 2 * (h @ v) - 3 * (h @ w), rtol=1e-9, atol=1e-12)
        assert torch.equal(h @ torch.zeros_like(v), torch.zeros_like(v))

    def test_every_form_of_a_vector(self) -> None:
        h = operator(*small())
        block = torch.randn(h.shape[0], 3)
        v = block[:, 0]  # with a stride, for which a product might be rounded in another way
        true = h @ v.clone()
        assert torch.equal(h @ block, torch.stack([h @ column for column in block.T], 1))
        assert torch.equal(v @ h, true)
        assert torch.equal(block.T @ h, (h @ block).T)
        array = v.numpy()
        assert isinstance(h @ array, np.ndarray)
        assert (h @ array).dtype == np.float32
        np.testing.assert_array_equal(h @ array, true.numpy())
        np.testing.assert_array_equal(array @ h, true.numpy())
        np.testing.assert_array_equal(h @ block.numpy(), (h @ block).numpy())
        np.testing.assert_array_equal(h @ array[::-1][::-1], true.numpy())
        locked = array.copy()
        locked.flags.writeable = False
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(h @ locked, true.numpy())
        by_name = {key: v[at].view(h.shapes[key]) for key, at in h.slices.items()}
        found = h @ dict(reversed(by_name.items()))  # whatever its order
        assert list(found) == h.names
        assert torch.equal(torch.cat([piece.reshape(-1) for piece in found.values()]), true)
        listed = h @ list(by_name.values())
        assert all(torch.equal(a, b) for a, b in zip(listed, found.values(), strict=True))
        assert (h @ block[:, :0]).shape == (h.shape[0], 0)

    def test_names_and_slices_say_where_a_layer_is(self) -> None:
        model, x, y = small()
        h = operator(model, x, y)
        theta = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        assert h.names == [name for name, _ in model.named_parameters()]
        for name, p in model.named_parameters():
            assert torch.equal(theta[h.slices[name]].view(h.shapes[name]), p)
        assert (h.shape, h.dtype, h.device, h.rows) == ((43, 43), torch.float32, torch.device("cpu"), 21)
        assert repr(h) == "CurvatureOperator(hessian of ce, 43 x 43, 21 rows, float32, cpu)"


class TestEstimates:
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("memory", ["auto", "low"])
    def test_to_the_last_bit_those_of_curvature(self, memory: str) -> None:
        model, x, y = small(n=300)
        options: dict[str, Any] = {"loss": FOCAL, "seed": 3, "level": 0.9, "memory": memory, "device": "cpu"}
        h, g = (calibcli.hessian(model, (x, y), matrix=m, **options) for m in ("hessian", "ggn"))
        h @ torch.ones(43)  # products before leave no trace in the numbers
        for spec, found in {
            "trace": [h.trace()],
            "trace:precision=0.05,probes=4": [h.trace(precision=0.05, probes=4)],
            "trace:exact=true": [h.trace(exact=True)],
            "trace_ggn": [g.trace()],
            "top_ggn:k=2": g.top(2),
            "top:k=1": h.top(),
            "top:k=3,bound=estimate": h.top(3, bound="estimate"),
        }.items():
            assert found == list(calibcli.curvature(model, (x, y), spec, **options).estimates), spec

    def test_eigsh_finds_the_same_eigenvalues(self) -> None:
        h = operator(*small(n=100))
        top = [one.value for one in h.top(3)]
        for dtype in ("float32", "float64"):
            found = eigsh(operator(*small(n=100), dtype=dtype).to_scipy(), k=3, which="LA", return_eigenvectors=False)
            assert found[::-1] == pytest.approx(top, rel=1e-3)

    def test_the_trace_is_the_sum_of_the_diagonal(self) -> None:
        h = operator(*small(n=100), dtype="float64")
        true = float((h @ torch.eye(43, dtype=torch.float64)).trace())
        found, exact = h.trace(precision=0.05), h.trace(exact=True)
        assert exact.value == pytest.approx(true, rel=1e-9)
        assert found.low < true < found.high  # type: ignore[operator]
        assert abs(found.value - true) < 4 * float(found.detail["estimator_se"])  # type: ignore[operator,arg-type]

    def test_scipy_gives_float64_to_a_matrix_of_float32(self) -> None:
        g = operator(*small(), matrix="ggn").to_scipy()
        assert g.dtype == np.float32
        v = np.random.default_rng(0).normal(size=43)
        assert np.allclose(g @ v, g @ v.astype(np.float32), rtol=1e-6)
        assert (g.T @ v).shape == (43,)
        assert (g @ np.ones((43, 2))).shape == (43, 2)
        with pytest.raises(InputError, match="complex128"):
            g @ (v + 1j)
        shifted = operator(*small(torch.float64), matrix="ggn", dtype="float64").to_scipy()
        from scipy.sparse.linalg import aslinearoperator

        x, info = cg(shifted + aslinearoperator(np.eye(43)), v, rtol=1e-10)
        assert info == 0
        assert np.allclose(shifted @ x + x, v, atol=1e-8)

    def test_notes_reach_the_logger_once(self, caplog: pytest.LogCaptureFixture) -> None:
        model, x, y = setup("cnn", n=21)
        with caplog.at_level(logging.INFO, logger="calibcli"):
            h = operator(model, x, y)
            h.trace()
        said = [record.getMessage() for record in caplog.records]
        assert said.count("BatchNorm uses its running statistics (eval mode)") == 1
        assert set(h.notes) <= set(said)


def refusals() -> dict[str, tuple[Callable[[CurvatureOperator], Any], str, str]]:
    v = torch.ones(43)
    return {
        "length": (lambda h: h @ v[:7], "shape (7,), for 43 parameters", "(43,) or (43, k)"),
        "axes": (lambda h: h @ v.view(43, 1, 1), "(43, 1, 1)", "(43, k)"),
        "a row": (lambda h: h @ v[None], "(1, 43)", "(43, k)"),
        "dtype": (lambda h: h @ v.double(), "v is float64", "v.to(h.dtype), or dtype='float64'"),
        "half": (lambda h: h @ v.half(), "v is float16", "v.to(h.dtype)"),
        "array dtype": (lambda h: h @ np.ones(43), "v is float64", "v.astype('float32'), or dtype='float64'"),
        "whole": (lambda h: h @ np.ones(43, int), "v is int64", "v.astype('float32')"),
        "complex": (lambda h: h @ (v + 1j), "v is complex64", "real and imaginary"),
        "device": (lambda h: h @ v.to("meta"), "on meta", "v.to(h.device)"),
        "grad": (lambda h: h @ v.clone().requires_grad_(), "requires grad", "v.detach()"),
        "nan": (lambda h: h @ (v * torch.nan), "not finite", "v is computed"),
        "names": (lambda h: h @ {"0.wieght": v}, "'0.wieght'", "0.weight"),
        "missing": (lambda h: h @ {"0.weight": torch.ones(5, 4)}, "no '0.bias'", "zeros"),
        "pieces": (lambda h: h @ [v], "1 tensors, for 4 parameters", "h.names"),
        "piece": (
            lambda h: h @ [torch.ones(s) for s in ((4, 5), (5,), (3, 5), (3,))],
            "(4, 5) for '0.weight'",
            "h.names",
        ),
    }


@pytest.mark.parametrize("case", refusals())
def test_a_wrong_vector_is_refused_with_what_works(case: str) -> None:
    work, problem, fix = refusals()[case]
    with pytest.raises(InputError) as caught:
        work(operator(*small()))
    assert problem in caught.value.problem
    assert fix in caught.value.fix


def test_what_is_no_vector_is_a_type_error() -> None:
    h = operator(*small())
    for wrong in ("v", [1.0] * 43, 3, None):
        with pytest.raises(TypeError, match="pass a tensor or an array"):
            h @ wrong  # type: ignore[operator]


def test_refusals_are_those_of_curvature() -> None:
    model, x, y = small()
    for options in (
        {"memory": "much"},
        {"batch_size": -1},
        {"seed": -1},
        {"level": 2.0},
        {"kind": "probabilities"},
        {"params": "nothing"},
        {"tf32": True},
        {"dtype": "float16"},
        {"device": "gpu"},
        {"loss": "ce+mmce"},
    ):
        said = []
        for function in (calibcli.curvature, calibcli.hessian):
            with pytest.raises(calibcli.CalibError) as caught:
                function(model, (x, y), **{"device": "cpu", **options})  # type: ignore[operator]
            said.append(str(caught.value))
        assert said[0] == said[1]
    for call, about in (
        (lambda: operator(model, x, y, matrix="fisher"), "choose from: hessian, ggn"),
        (lambda: operator(model, x, y, matrix="ggn").top(0), "top_ggn:k=0 is out of range"),
        (lambda: operator(model, x, y, matrix="ggn").trace(probes=3), "no option 'probes'"),
        (lambda: operator(model, x, y).top(0), "top:k=0 is out of range"),
    ):
        with pytest.raises(UsageError, match=about):
            call()
    with pytest.raises(TypeError, match="'lloss': did you mean 'loss'"):
        operator(model, x, y, lloss="ce")


def test_processes_of_a_launch_have_to_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group for each product alone would wait for ever at the second."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="not joined") as caught:
        operator(*small())
    assert "init_process_group" in caught.value.fix


class TestWhatOthersTripOver:
    """Rebuilt from what users of such operators report."""

    def test_a_model_in_training_mode_is_measured_in_eval_mode_and_left_in_training(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, K)).train()
        x, y = torch.randn(20, 4), torch.randint(0, K, (20,))
        before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        h = operator(model, x, y)
        v = torch.ones(h.shape[0])
        assert torch.equal(h @ v, h @ v)
        assert model.training
        assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())
        assert all(p.grad is None for p in model.parameters())
        assert torch.equal(torch.get_rng_state(), state)

    def test_weights_and_buffers_that_change_afterwards_do_not_matter(self) -> None:
        model, x, y = setup("cnn", n=21)
        for memory in ("high", "low"):
            h = operator(model, x, y, dtype="float64", memory=memory)
            v = torch.ones(h.shape[0], dtype=torch.float64)
            true = h @ v
            with torch.no_grad():
                for tensor in (*model.parameters(), *model.buffers()):
                    tensor.mul_(2)
            assert torch.equal(h @ v, true)

    def test_frozen_parameters_have_no_rows_and_are_left_frozen(self) -> None:
        model, x, y = small(torch.float64)
        model[0].requires_grad_(False)  # type: ignore[index]
        h = operator(model, x, y, dtype="float64")
        assert h.names == ["2.weight", "2.bias"]
        true = explicit(model, x, y, "ce")
        assert torch.allclose(h @ torch.eye(18, dtype=torch.float64), true, rtol=1e-9, atol=1e-12)
        assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]

    def test_a_block_of_the_matrix_by_params(self) -> None:
        model, x, y = small(torch.float64)
        whole, block = operator(model, x, y, dtype="float64"), operator(model, x, y, dtype="float64", params="2.*")
        at = slice(whole.slices["2.weight"].start, None)
        eye = torch.eye(43, dtype=torch.float64)
        assert torch.allclose(block @ eye[:18, :18], (whole @ eye)[at, at], rtol=1e-9, atol=1e-12)

    def test_shared_weights_count_once(self) -> None:
        class Tied(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, K)
                self.second.weight = self.first.weight

            def forward(self, x: Tensor) -> Tensor:
                return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))

        torch.manual_seed(0)
        model = Tied().double()
        x, y = torch.randn(9, 4).double(), torch.randint(0, K, (9,))
        h = operator(model, x, y, dtype="float64")
        assert h.shape == (39, 39)
        eye = torch.eye(39, dtype=torch.float64)
        assert torch.allclose(h @ eye, explicit(model, x, y, "ce"), rtol=1e-9, atol=1e-12)

    def test_the_size_of_batches_and_a_smaller_last_one_change_nothing(self) -> None:
        model, x, y = small(torch.float64, n=21)
        v = torch.randn(43, dtype=torch.float64)
        one = operator(model, x, y, dtype="float64") @ v
        for size, memory in ((1, "high"), (4, "low"), (16, "auto")):
            assert torch.allclose(
                operator(model, x, y, dtype="float64", batch_size=size, memory=memory) @ v, one, rtol=1e-11
            )
        batches = list(zip(x.split(8), y.split(8)))  # lists of batches: 8, 8, 5
        assert torch.allclose(calibcli.hessian(model, batches, device="cpu", dtype="float64") @ v, one, rtol=1e-11)

    def test_a_loss_that_is_a_mean_already_is_refused(self) -> None:
        with pytest.raises(InputError, match="one value per row") as caught:
            operator(*small(), loss=lambda z, y: nn.functional.cross_entropy(z, y))
        assert 'reduction="none"' in caught.value.fix

    def test_a_data_set_that_draws_its_rows_is_refused(self) -> None:
        class Noisy(torch.utils.data.Dataset[Any]):
            def __len__(self) -> int:
                return 30

            def __getitem__(self, i: int) -> tuple[Tensor, int]:
                return torch.randn(4), i % K

        model, _, _ = small()
        with pytest.raises(InputError, match="draws its rows at random"):
            calibcli.hessian(model, Noisy(), device="cpu")

    def test_a_loader_that_shuffles_gives_its_rows_once(self) -> None:
        model, x, y = small(n=30)
        rows = torch.utils.data.TensorDataset(x, y)
        shuffled = torch.utils.data.DataLoader(rows, batch_size=7, shuffle=True, drop_last=False)
        h, v = calibcli.hessian(model, shuffled, device="cpu"), torch.ones(43)
        assert torch.equal(h @ v, h @ v)
        assert torch.allclose(h @ v, operator(model, x, y) @ v, atol=1e-6)

    def test_a_model_of_another_dtype_is_converted_in_a_copy(self) -> None:
        model, x, y = small(torch.float64)
        h = operator(model, x, y)  # float32
        assert (h @ torch.ones(43)).dtype == torch.float32
        assert model[0].weight.dtype == torch.float64  # type: ignore[index]
        narrow, x, y = small()
        assert (operator(narrow.half(), x, y) @ torch.ones(43)).dtype == torch.float32

    @pytest.mark.parametrize("memory", ["high", "low"])
    def test_memory_does_not_grow_between_products(self, memory: str) -> None:
        h = operator(*small(n=300), memory=memory)
        v = torch.ones(43)

        def alive() -> int:
            gc.collect()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return sum(isinstance(one, Tensor) for one in gc.get_objects())

        h @ v
        before = alive()
        for _ in range(20):
            h @ v
        assert alive() <= before

    def test_it_does_not_hear_modes_of_the_caller(self) -> None:
        h = operator(*small())
        v = torch.ones(43)
        true = h @ v
        with torch.no_grad():
            assert torch.equal(h @ v, true)
        with torch.inference_mode():
            h.drop()
            product = h @ torch.ones(43)
            assert torch.equal(product, true)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h.drop()
            assert torch.equal(h @ v, true)
        assert not product.requires_grad
        assert torch.is_grad_enabled()
        product += 1  # its own memory
        assert torch.equal(h @ v, true)

    def test_rows_that_are_changed_afterwards_are_not_mixed_with_those_before(self) -> None:
        """Either the old rows or the new ones, never a part of each; the docstring asks to leave them alone."""
        model, x, y = small(torch.float64, n=600)
        v = torch.randn(43, dtype=torch.float64)
        old = operator(model, x.clone(), y, dtype="float64") @ v
        h = operator(model, x, y, dtype="float64", memory="high")
        h @ v
        x.mul_(0.5)
        new = operator(model, x, y, dtype="float64") @ v
        found = h @ v
        assert torch.allclose(found, old, rtol=1e-10) or torch.allclose(found, new, rtol=1e-10)

    def test_it_is_copied_and_pickled_without_its_graphs(self) -> None:
        torch.manual_seed(0)
        model, x, y = cnn(), torch.randn(9, 2, 6, 6), torch.randint(0, K, (9,))
        h = operator(model, x, y)
        v = torch.ones(h.shape[0])
        true = h @ v
        for other in (copy.deepcopy(h), pickle.loads(pickle.dumps(h))):
            assert torch.equal(other @ v, true)
            assert other.top() == h.top()

    def test_a_saddle_has_negative_products(self) -> None:
        """Not a Gauss-Newton matrix under another name."""
        model, x, y = small(torch.float64)
        h = operator(model, x, y, dtype="float64")
        assert torch.linalg.eigvalsh(h @ torch.eye(43, dtype=torch.float64))[0] < -1e-4
