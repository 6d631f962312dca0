"""Networks of the registry: sizes known from the papers, the functions they compute, and refused options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from calibcli.core.errors import UsageError
from calibcli.networks import checkpoint
from calibcli.networks.architectures import ARCHITECTURES, build

torch.set_num_threads(1)
DOCS = Path(__file__).parent.parent / "docs" / "checkpoints-details.md"


# He et al. 2016 (.27, .46, .66, .85, 1.7 M), torchvision's ResNets with another stem and head, Zagoruyko & Komodakis
# 2016 (36.5 M); those of Mukhoti et al. 2020 from the layers that their code lists; the others layer by layer
PARAMETERS = {
    "mlp:inputs=64,hidden=32/16,classes=10": 64 * 32 + 32 + 32 * 16 + 16 + 16 * 10 + 10,
    "cnn:channels=1,widths=4/8,classes=5": 9 * 4 + 2 * 4 + 9 * 4 * 8 + 2 * 8 + 8 * 5 + 5,
    "resnet:depth=20": 269_722,
    "resnet:depth=56": 853_018,
    "resnet:depth=110": 1_727_962,
    "resnet18": 11_173_962,
    "resnet18:stem=imagenet,classes=1000": 11_689_512,
    "resnet34:stem=imagenet,classes=1000": 21_797_672,
    "resnet50:stem=imagenet,classes=1000": 25_557_032,
    "wide_resnet:depth=28,widen=10": 36_479_194,
    "resnet50:blocks=3/4/26/3": 45_864_522,
    "resnet50:blocks=3/4/26/3,classes=100": 46_048_932,
    "resnet50:stem=tiny,classes=200": 25_138_952,
    "wide_resnet:depth=26,block=post": 36_481_434,
    "wide_resnet:depth=26,block=post,classes=100": 36_539_124,
    "densenet": 6_956_298,
    "densenet:classes=100": 7_048_548,
    "densenet:depth=161,classes=1000": 28_681_000
    - 96 * 3 * (49 - 9)
    - 2 * 96,  # torchvision's with a 3x3 stem and no norm after it
    "vgg:classes=100": 20_086_692,
    "mobilenet": 2_296_922,
    "mobilenet:classes=100": 2_412_212,
    "linear:inputs=12,classes=3": 12 * 3 + 3,
    "linear:inputs=2,classes=2,bias=false": 4,
    "text_cnn": 247_316,  # as Mukhoti et al. 2020 train it, without its vectors
    "tree_lstm": 271_953,  # likewise
    "vit:image=224,patch=16,dim=192,depth=12,heads=3,classes=1000": 5_717_416,
}


@pytest.mark.slow
@pytest.mark.parametrize("spec", PARAMETERS)
def test_parameter_counts(spec: str) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in build(spec).parameters()) == PARAMETERS[spec]


def test_every_architecture_has_its_count() -> None:
    assert {spec.partition(":")[0] for spec in PARAMETERS} == set(ARCHITECTURES.entries)


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ("mlp:inputs=12,classes=5", (3, 12)),
        ("mlp:inputs=12,classes=5,activation=silu,dropout=0.5", (3, 3, 2, 2)),
        ("cnn:classes=5,widths=4/8", (3, 3, 9, 9)),
        ("cnn:classes=5,widths=4/8,norm=group,channels=1", (3, 1, 8, 8)),
        ("cnn:classes=5,widths=4,norm=none,activation=gelu", (3, 3, 8, 8)),
        ("resnet:depth=8,width=4,classes=5,channels=1", (3, 1, 8, 8)),
        ("resnet:depth=8,width=4,classes=5,shortcut=B", (3, 3, 8, 8)),
        ("resnet18:width=0.0625,classes=5", (3, 3, 8, 8)),
        ("resnet50:width=0.0625,classes=5,stem=imagenet", (3, 3, 32, 32)),
        ("wide_resnet:depth=10,widen=1,classes=5,dropout=0.3", (3, 3, 8, 8)),
        ("resnet50:width=0.0625,classes=5,stem=tiny,blocks=1/1/2/1,init=default", (3, 3, 16, 16)),
        ("wide_resnet:depth=8,widen=1,classes=5,block=post", (3, 3, 8, 8)),
        ("densenet:width=0.0625,classes=5,channels=1", (3, 1, 8, 8)),
        ("vgg:depth=11,width=0.0625,classes=5", (3, 3, 32, 32)),
        ("mobilenet:width=0.0625,classes=5", (3, 3, 8, 8)),
        ("linear:inputs=12,classes=5,bias=false", (3, 3, 2, 2)),
        ("vit:image=8,dim=12,heads=2,depth=2,classes=5", (3, 3, 8, 8)),
    ],
)
def test_rows_are_independent_and_twice_differentiable(spec: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = build(spec).double().eval()
    x = torch.randn(shape, dtype=torch.float64)
    out = model(x)
    assert out.shape == (3, 5)
    torch.testing.assert_close(model(x[1:2]), out[1:2], rtol=1e-10, atol=1e-10)
    weights = list(model.parameters())
    first = torch.autograd.grad(out.logsumexp(1).sum(), weights, create_graph=True)
    second = torch.autograd.grad(sum((g * g).sum() for g in first), weights, allow_unused=True)
    assert all(torch.isfinite(s).all() for s in second if s is not None)


def test_resnet_has_the_usual_names_and_option_a_pads() -> None:
    model = build("resnet:depth=20")
    names = set(model.state_dict())
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer3.2.bn2.bias", "linear.bias"} <= names
    assert not any("shortcut" in name for name in names)
    assert any("layer2.0.shortcut.0" in name for name in build("resnet:depth=20,shortcut=B").state_dict())
    x = torch.arange(2 * 16 * 4.0).view(1, 16, 4, 2)
    padded = model.get_submodule("layer2.0.shortcut")(x)
    assert padded.shape == (1, 32, 2, 1)
    assert torch.equal(padded[:, 8:24], x[:, :, ::2, ::2])
    assert padded[:, :8].count_nonzero() == padded[:, 24:].count_nonzero() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["resnet:depth=8", "resnet18:width=0.25", "wide_resnet:depth=10,widen=2", "vgg", "densenet"]
)
def test_weights_are_drawn_as_asked(name: str) -> None:
    for init, spread in (
        ("fan_out", lambda o, i, k: (2 / (k * o)) ** 0.5),
        ("default", lambda o, i, k: (3 * i * k) ** -0.5),
    ):
        torch.manual_seed(0)
        model = build(f"{name}{',' if ':' in name else ':'}init={init}")
        for module in model.modules():
            if isinstance(module, nn.Conv2d) and module.weight.numel() > 2000:
                outputs, inputs, a, b = module.weight.shape
                assert module.weight.std().item() == pytest.approx(spread(outputs, inputs, a * b), rel=0.1)


def test_a_linear_layer_of_zeros_is_the_same_for_every_class() -> None:
    assert build("linear:inputs=3,init=zeros")(torch.randn(2, 3)).count_nonzero() == 0


def test_attention_equals_torch() -> None:
    torch.manual_seed(0)
    ours = build("vit:dim=12,heads=3,depth=1").get_submodule("blocks.0.attn")
    theirs = nn.MultiheadAttention(12, 3, batch_first=True)
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = ours.qkv.weight.data, ours.qkv.bias.data
    theirs.out_proj.weight.data, theirs.out_proj.bias.data = ours.proj.weight.data, ours.proj.bias.data
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(ours(x), theirs(x, x, x, need_weights=False)[0])


def test_every_option_has_an_effect_on_the_spec_and_defaults_fill_in() -> None:
    assert ARCHITECTURES.choose("mlp", inputs=64, classes=3, channels=9).spec == "mlp:inputs=64,classes=3"
    assert build("mlp:inputs=8", classes=3).get_submodule("linear").out_features == 3


@pytest.mark.parametrize(
    ("spec", "fix"),
    [
        ("resnet:depth=21", "pass depth=20"),
        ("wide_resnet:depth=27", "pass depth=28"),
        ("wide_resnet:depth=26", "pass depth=28,block=post for the one with ReLU last"),
        ("wide_resnet:depth=28,block=post", "pass depth=26"),
        ("wide_resnet:depth=26,block=post,dropout=0.1", "leave dropout out, or block=post"),
        ("resnet50:blocks=3/4", "pass blocks=3/4/6/3"),
        ("vit:patch=5", "pass a patch that divides it"),
        ("vit:heads=5", "pass heads that divide dim"),
        ("mlp:inputs=0", "pass a whole number from 1 to 10000000"),
        ("resnet:width=0", "pass a whole number from 1 to 10000000"),
        ("resnt", "did you mean 'resnet'?"),
    ],
)
def test_refused(spec: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(spec)
    assert caught.value.fix == fix


def test_the_docs_metadata_is_accepted(tmp_path: Path) -> None:
    text = DOCS.read_text().partition("```json\n")[2].partition("```")[0]
    checkpoint.save(tmp_path / "m.safetensors", build("mlp:inputs=64"), json.loads(text))
    assert checkpoint.load(tmp_path / "m.safetensors").metadata == json.loads(text)
