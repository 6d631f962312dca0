"""Networks as people have them: what PyTorch lacks is written out, what has no curvature is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from curvature_models import dense
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import calibcli
from calibcli.core.errors import InputError
from calibcli.networks.curvature import measure
from calibcli.networks.losses import CrossEntropy

N, D, K = 6, 4, 3


class Net(nn.Module):
    """A forward pass that is a function of the network and its input."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, *args: Tensor, **named: Tensor) -> Any:
        return self.function(self, *args, **named)


def mlp(*middle: nn.Module, out: int = K) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 5), *(middle or [nn.Tanh()]), nn.Linear(5, out)).double()


def rows() -> tuple[Tensor, Tensor]:
    return torch.randn(N, D, generator=torch.Generator().manual_seed(1)).double(), torch.arange(N) % 2


def directions() -> nn.Parameter:
    return nn.Parameter(torch.randn(D, D, generator=torch.Generator().manual_seed(2)).double())


def top(model: nn.Module) -> float:
    """λmax of the dense Hessian."""
    h, _, _ = dense(model, *rows(), CrossEntropy())
    return float(torch.linalg.eigvalsh(h)[-1])


def found(model: nn.Module, inputs: Any = None) -> float:
    x, y = rows()
    value = measure(model, (x if inputs is None else inputs, y), "lambda_max")["lambda_max"].value
    assert value is not None
    return value


@pytest.mark.regression
@pytest.mark.parametrize(
    "wrap",
    [
        lambda net: Net(lambda m, x: {"logits": m.net(x), "hidden": x}, net=net),
        lambda net: Net(lambda m, x: (m.net(x), x), net=net),
        lambda net: torch.compile(net, backend="aot_eager"),
        lambda net: nn.Sequential(torch.compile(net, backend="aot_eager")),
        lambda net: [net.compile(backend="aot_eager"), net][1],
    ],
    ids=["dict", "tuple", "compiled", "compiled part", "compiled in place"],
)
def test_measure_takes_what_the_command_takes(wrap: Callable[[nn.Module], nn.Module]) -> None:
    assert found(wrap(mlp())) == pytest.approx(top(mlp()), rel=1e-3)


@pytest.mark.regression
@pytest.mark.parametrize("kind", ["registered twice", "complex view"])
def test_layers_that_run_twice_and_complex_views(kind: str) -> None:
    """`functional_call` leaves other weights in a layer that is registered twice; a view as complex numbers must start
    at an even place of a vector."""
    torch.manual_seed(0)
    if kind == "registered twice":
        layer = nn.Linear(4, 4)
        net: nn.Module = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(4, K))
    else:
        net = Net(
            lambda m, x: m.last(torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(m.filter), n=4)) * m.scale,
            filter=nn.Parameter(torch.randn(3, 2)), scale=nn.Parameter(torch.tensor(1.5)), last=nn.Linear(4, 4),
        )  # fmt: skip
    net, (x, y) = net.double(), rows()
    assert sum(p.numel() for p in net.parameters()) % 2  # the second vector of several starts at an odd place
    h, g, gradient = dense(net, x, y, CrossEntropy())
    found = measure(net, (x, y), "lambda_max:tol=1e-6", "trace:exact=true", "trace_ggn:exact=true", "grad_norm")
    truth = [torch.linalg.eigvalsh(h)[-1], h.trace(), g.trace(), gradient.norm()]
    assert [e.value for e in found.estimates] == pytest.approx([float(t) for t in truth], rel=1e-5)
    difference = found.facts["self_test"]["difference"]
    assert difference is not None
    assert difference < 1e-3


@pytest.mark.regression
def test_measure_takes_one_logit_for_the_log_odds() -> None:
    one = mlp(out=1)
    assert found(one) == pytest.approx(top(Net(lambda m, x: F.pad(m.net(x), (1, 0)), net=one)), rel=1e-3)


@pytest.mark.regression
def test_inputs_by_name_from_memory() -> None:
    torch.manual_seed(0)
    head = Net(lambda m, ids, mask: m.last((m.table(ids) * mask[..., None]).mean(1).tanh()),
               table=nn.Embedding(9, 3), last=nn.Linear(3, K))  # fmt: skip
    inputs, labels = {"ids": torch.randint(0, 9, (N, 5)), "mask": torch.ones(N, 5).long()}, torch.arange(N) % 2
    both = [
        measure(head, (inputs, labels), "lambda_max"),
        calibcli.curvature(head, (inputs, labels), "lambda_max", device="cpu"),
    ]
    assert both[0]["lambda_max"].value == both[1]["lambda_max"].value
    with pytest.raises(InputError, match="unexpected keyword argument 'labels'") as caught:
        calibcli.curvature(head, ({**inputs, "labels": labels}, labels), "lambda_max", device="cpu")
    assert "leave others out of the dict" in caught.value.fix
    looks_up = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(15, K))
    both = [
        measure(looks_up, (inputs["ids"], labels), "lambda_max"),
        calibcli.curvature(looks_up, (inputs["ids"], labels), "lambda_max", device="cpu"),
    ]
    assert both[0]["lambda_max"].value == both[1]["lambda_max"].value
    with pytest.raises(InputError, match="expects whole numbers") as caught:
        calibcli.curvature(looks_up, (inputs["ids"].float(), labels))
    assert "input_ids" in caught.value.fix


@pytest.mark.regression
def test_a_layer_that_begins_with_a_parameter_of_its_own_looks_up_too() -> None:
    torch.manual_seed(0)
    net = Net(lambda m, x: m.scale * m.last(m.table(x).mean(1)), table=nn.Embedding(9, 3), last=nn.Linear(3, K))
    net.scale = nn.Parameter(torch.tensor(2.0))
    words, labels = torch.randint(0, 9, (N, 5)), torch.arange(N) % 2
    given = calibcli.curvature(net, (words, labels), "grad_norm", device="cpu")
    assert given["grad_norm"].value == measure(net, (words, labels), "grad_norm")["grad_norm"].value
    calibcli.train(net, (words.repeat(10, 1), labels.repeat(10)), loss="ce", epochs=1, device="cpu")


@pytest.mark.regression
def test_a_graph_convolution_over_a_sparse_matrix() -> None:
    """It was refused: what the graph holds of a sparse matrix cannot be asked for its storage."""
    torch.manual_seed(0)
    edges, features = torch.rand(N, N).double().round(), torch.randn(N, 4).double()
    layers = nn.Linear(4, 3, bias=False).double(), nn.Linear(3, K).double()
    both = [
        Net(lambda m, nodes: (m.edges @ m.last((m.edges @ m.first(features)).tanh()))[nodes],
            edges=matrix, first=layers[0], last=layers[1])
        for matrix in (edges.to_sparse(), edges)
    ]  # fmt: skip
    data = {"nodes": torch.arange(N)}, torch.arange(N) % 2
    found = [calibcli.curvature(net, data, "lambda_max", device="cpu", dtype="float64") for net in both]
    assert found[0]["lambda_max"].value == pytest.approx(found[1]["lambda_max"].value, rel=1e-9)
    assert found[0].facts["self_test"]["difference"] < 1e-3


@pytest.mark.regression
def test_functions_without_a_second_derivative_are_written_out() -> None:
    true = top(mlp(Net(lambda m, x: (x / 6 + 0.5).clamp(0, 1))))
    for act in (nn.Hardsigmoid(), Net(lambda m, x: F.hardsigmoid(x))):
        assert found(mlp(act)) == pytest.approx(true, rel=1e-3)


@pytest.mark.regression
def test_sums_of_exponentials_of_which_the_last_is_read() -> None:
    """PyTorch's second derivative is NaN there, as a scan by logarithms has it: it was refused."""
    true = top(mlp(Net(lambda m, x: x * (x[:, -1:] - x.logsumexp(1, keepdim=True)).exp())))
    for sums in (lambda x: x.logcumsumexp(1), lambda x: torch.logcumsumexp(x.T, dim=0).T):
        act = Net(lambda m, x, sums=sums: x * (x - sums(x)).exp()[:, -1:])
        assert found(mlp(act)) == pytest.approx(true, rel=1e-3)


@pytest.mark.regression
def test_weight_norm_is_symmetric() -> None:
    normed = mlp(nn.Tanh(), parametrizations.weight_norm(nn.Linear(5, 5)), nn.Tanh())
    with torch.no_grad():
        normed[2].parametrizations.weight.original0.mul_(1.5)

    def by_hand(self: Any, x: Tensor) -> Tensor:
        weight = self.g * self.v / self.v.square().sum(1, keepdim=True).sqrt()
        return self.last((F.linear(self.first(x).tanh(), weight, self.bias)).tanh())

    inner = normed[2]
    parts = inner.parametrizations.weight
    same = Net(by_hand, first=normed[0], g=parts.original0, v=parts.original1, bias=inner.bias, last=normed[-1])
    assert found(normed) == pytest.approx(top(same), rel=1e-3)


@pytest.mark.regression
def test_rows_for_padding_are_held() -> None:
    """Their gradient is none by PyTorch's definition, so that differences along them would disagree."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 3, padding_idx=0), nn.Flatten(), nn.Tanh(), nn.Linear(9, K)).double()
    with torch.no_grad():
        model[0].weight[0] = 1.0
    tokens = torch.tensor([[0, 1, 2], [3, 0, 0]]).repeat(3, 1)
    assert found(model, tokens) > 0


@pytest.mark.regression
def test_sparse_gradients_are_made_dense() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 3, sparse=True), nn.Flatten(), nn.Tanh(), nn.Linear(9, K)).double()
    tokens = torch.randint(0, 4, (N, 3))
    value = found(model, tokens)
    assert model[0].sparse
    model[0].sparse = False
    assert value == found(model, tokens)


@pytest.mark.regression
def test_parameters_without_axes_and_without_elements() -> None:
    """A learnt temperature, and what is left of a part that is switched off."""
    torch.manual_seed(0)
    parts = {"scale": nn.Parameter(torch.tensor(0.3)), "empty": nn.Parameter(torch.zeros(0))}
    model, (x, y) = Net(lambda m, x: m.net(x) * m.scale.exp() + m.empty.sum(), net=mlp(), **parts).double(), rows()
    h, g, slope = dense(model, x, y, CrossEntropy())
    result = measure(model, (x, y), "lambda_max", "trace:exact", "trace_ggn:exact", "grad_norm")
    true = [float(torch.linalg.eigvalsh(h)[-1]), float(h.trace()), float(g.trace()), float(slope.norm())]
    assert [e.value for e in result.estimates] == pytest.approx(true, rel=1e-3)


@pytest.mark.regression
def test_a_table_that_is_asked_for_one_entry_a_row() -> None:
    """As for the kind of each row; measuring it ended in an IndexError."""
    torch.manual_seed(0)
    model = Net(lambda m, x: m.last((m.table(x[:, 0]) if x.ndim == 2 else m.table(x)).tanh()),
                table=nn.Embedding(5, 4), last=nn.Linear(4, K)).double()  # fmt: skip
    ids, y = torch.arange(N) % 5, torch.arange(N) % K
    _, g, _ = dense(model, ids, y, CrossEntropy())
    for inputs in ({"x": ids}, {"x": ids[:, None]}):
        assert measure(model, (inputs, y), "trace_ggn:exact")["trace_ggn"].value == pytest.approx(float(g.trace()))


@pytest.mark.regression
def test_members_that_the_network_stacks_for_vmap() -> None:
    """Norms of rows ended in an error: what its layers gave within vmap has no gradient outside it."""
    members = nn.ModuleList(mlp() for _ in range(2))
    with torch.no_grad():
        members[1][0].weight.mul_(-1.5)

    def stacked(m: Any, x: Tensor) -> Tensor:
        weights = [dict(member.named_parameters()) for member in m.members.children()]
        both = {name: torch.stack([w[name] for w in weights]) for name in weights[0]}
        mapped: Tensor = torch.vmap(lambda w: torch.func.functional_call(m.members[0], w, (x,)))(both)
        return mapped.mean(0)

    same = Net(lambda m, x: (m.members[0](x) + m.members[1](x)) / 2, members=members)
    both = [measure(net, rows(), "trace_ggn:exact") for net in (Net(stacked, members=members), same)]
    assert both[0]["trace_ggn"].value == pytest.approx(both[1]["trace_ggn"].value, rel=1e-9)


class Experts(nn.Module):
    """Each row goes to one of four experts; some get none."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(D, 4), nn.ModuleList(nn.Linear(D, K) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        share, out = self.gate(x).softmax(1), x.new_zeros(len(x), K)
        for i, expert in enumerate(self.experts):
            own = (share.argmax(1) == i).nonzero()[:, 0]
            out = out.index_add(0, own, expert(x[own]) * share[own, i : i + 1])
        return out


@pytest.mark.regression
def test_layers_that_see_no_row() -> None:
    torch.manual_seed(0)
    model, (x, y) = Experts().double(), rows()
    h, g, _ = dense(model, x, y, CrossEntropy())
    result = measure(model, (x, y), "lambda_max", "trace_ggn:exact")
    true = [float(torch.linalg.eigvalsh(h)[-1]), float(g.trace())]
    assert [e.value for e in result.estimates] == pytest.approx(true, rel=1e-3)


@pytest.mark.regression
def test_a_layer_without_outputs() -> None:
    """As the last cluster of an adaptive softmax over few features has."""
    torch.manual_seed(0)
    net = Net(
        lambda m, x: m.last(x) + m.back(m.none(x)), last=nn.Linear(D, K), none=nn.Linear(D, 0), back=nn.Linear(0, K)
    )
    data = torch.randn(N, D), torch.arange(N) % 2
    whole = measure(net, data, "lambda_max", "trace:exact", params="last.*,none.*")
    assert whole["trace"].value == pytest.approx(measure(net, data, "trace:exact", params="last.*")["trace"].value)


@pytest.mark.regression
def test_complex_buffers_stay_complex() -> None:
    turn = torch.polar(torch.ones(K), torch.tensor([0.1, 0.7, 1.3]))
    model = Net(lambda m, x: (m.net(x) * m.turn).real, net=mlp(), turn=turn)
    true = top(Net(lambda m, x: m.net(x) * turn.real, net=mlp()))
    assert found(model) == pytest.approx(true, rel=1e-3)


@pytest.mark.regression
@pytest.mark.parametrize(
    ("model", "problem", "fix"),
    [
        (lambda: mlp(nn.BatchNorm1d(5, track_running_stats=False)), "'1' is a batch norm without running", "GroupNorm"),
        (
            lambda: Net(lambda m, x: m.net(x - x.mean(0)), net=mlp()),
            "output for a row depends on the rows beside it",
            "other rows",
        ),
        (  # the longest row sees nothing, as where a mean is taken over the steps of the longest
            lambda: Net(lambda m, x: m.net(x) / x.sum(1, keepdim=True).sub(x.sum(1).max()).exp(), net=mlp()),
            "output for a row depends on the rows beside it",
            "other rows",
        ),
        (
            lambda: Net(lambda m, x: (x.to(m.w.dtype) @ m.w).abs(), w=nn.Parameter(torch.ones(D, K) + 1j)),
            "parameter 'w' is complex",
            "view_as_real",
        ),
        (lambda: Net(lambda m, x: m.net(x).detach(), net=mlp()), "no gradient in 'net.0.weight'", "detach()"),
        (lambda: nn.Sequential(nn.LazyLinear(K)), "'0.weight' of a lazy module has no shape yet", "on a batch first"),
        (lambda: Net(lambda m, x: m.net(x).relu().mul_(2), net=mlp()), "an inplace operation has modified", "backward"),
        (lambda: Net(lambda m, x: m.net(x)[:, 0], net=mlp()), "has shape (4,) for 4 rows", "z[:, None]"),
        (lambda: Net(lambda m, x: {"digit": m.net(x), "size": x}, net=mlp()), "dict of digit, size, not", "'logits'"),
        (  # the length of each column of weights taken for a constant, as DoRA does
            lambda: Net(lambda m, x: m.net(x @ (m.w / m.w.norm(dim=0).detach())), net=mlp(), w=directions()),
            "disagrees with a difference of gradients",
            "detach()",
        ),
    ],
    ids=[
        "batch-norm",
        "other-rows",
        "longest-row",
        "complex",
        "detached",
        "lazy",
        "inplace",
        "one-logit",
        "tasks",
        "length-held",
    ],
)
def test_refused_by_name(model: Callable[[], nn.Module], problem: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        found(model())
    assert problem in caught.value.problem
    assert fix in caught.value.fix
