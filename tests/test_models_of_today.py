"""Networks as people have them now: weights that are not at hand, attention kernels, versions, adapters of peft."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import calibcli
from calibcli.core.errors import InputError
from calibcli.networks import checkpoint
from calibcli.networks.curvature.operator import culprit

torch.set_num_threads(1)
X, Y = torch.randn(24, 8, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "logits": lambda model, data: calibcli.logits(model, data, save="o.npz", device="cpu"),
    "curvature": lambda model, data: calibcli.curvature(model, data, "grad_norm", device="cpu"),
    "hessian": lambda model, data: calibcli.hessian(model, data, device="cpu"),
    "train": lambda model, data: calibcli.train(
        model, data, validation=data, test=data, epochs=1, batch_size=8, device="cpu"
    ),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).eval()


def refused(call: str, model: Any, data: Any = (X, Y)) -> str:
    with pytest.raises(InputError) as caught:
        CALLS[call](model, data)
    return f"{caught.value.problem}; {caught.value.fix}"


@pytest.mark.regression
@pytest.mark.parametrize("call", CALLS)
def test_weights_on_meta_are_refused_with_a_line_that_helps(call: str) -> None:
    with torch.device("meta"):
        model = plain()
    said = refused(call, model)
    assert "device meta" in said
    assert "layout" not in said
    assert "to_empty(device='cpu') and then model.load_state_dict(weights)" in said
    model = model.to_empty(device="cpu")  # as it says
    model.load_state_dict(plain().state_dict())
    CALLS[call](model, (X, Y))


@pytest.mark.regression
def test_sharded_weights_are_refused_and_gathered_as_the_fix_says() -> None:
    """Parameters of `fully_shard` are DTensors, which no copy can be made of."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo", init_method=f"file://{os.getcwd()}/together", rank=0, world_size=1)
    try:
        model = plain()
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        for call in CALLS:
            said = refused(call, model)
            assert "sharded" in said
        line = said.partition("not sharded: ")[2]
        gathered = plain()
        nn.init.zeros_(gathered[0].weight)  # type: ignore[index]
        exec(line, {"model": model, "plain": gathered})
        torch.testing.assert_close(gathered.state_dict(), plain().state_dict())
    finally:
        distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_distributed_checkpoints_are_refused_with_a_line_that_makes_a_file() -> None:
    """A folder of `torch.distributed.checkpoint`, and a file of it, which was called damaged."""
    from torch.distributed import checkpoint

    checkpoint.save(plain().state_dict(), checkpoint_id="parts", no_dist=True)
    for path in ("parts", "parts/__0_0.distcp"):
        said = refused("curvature", path)
        assert "distributed checkpoint" in said
        assert "format_utils dcp_to_torch parts model.pt" in said


@pytest.mark.regression
@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore:torch.quantize_per_tensor")
def test_quantised_layers_have_logits_and_no_derivatives() -> None:
    whole = nn.Sequential(nn.LayerNorm(8), plain()).eval()
    nn.init.constant_(whole[1][2].bias, 3)  # type: ignore[index]  # outputs far from 0, of which rounding is a small part
    packed = torch.ao.quantization.quantize_dynamic(whole, {nn.Linear}, dtype=torch.qint8)
    for call in ("curvature", "hessian", "train"):
        assert "quantised, first '1.0'" in refused(call, packed)
    written = CALLS["logits"](packed, (X, Y))
    with np.load("o.npz") as file:
        np.testing.assert_array_equal(file["logits"], packed(X).detach().numpy())
    assert any("quantised as they run" in note for note in written.notes)


@pytest.mark.parametrize(("name", "first"), [("Linear8bitLt", "curvature"), ("Linear4bit", "train")])
def test_layers_of_bitsandbytes_have_no_second_derivative(name: str, first: str) -> None:
    """Those of 8 bits can be trained around, as adapters are; those of 4 bits have a state that does not load again."""
    kind = type(name, (nn.Linear,), {"__module__": "bitsandbytes.nn.modules"})
    model = nn.Sequential(nn.Linear(8, 8), kind(8, 8), nn.Linear(8, 3)).eval()
    for call in CALLS:
        if call == "logits" or (call == "train" and first != "train"):
            CALLS[call](model, (X, Y))
        else:
            assert "quantised, first '1'" in refused(call, model)


@pytest.mark.regression
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_python_is_converted_with_a_note(dtype: torch.dtype) -> None:
    model = plain().to(dtype)
    wanted = calibcli.curvature(plain().to(dtype).float(), (X, Y), "grad_norm", device="cpu")["grad_norm"].value
    note = f"weights stored as {str(dtype).removeprefix('torch.')} were converted to float32"
    for call in CALLS:
        given = CALLS[call](model if call != "train" else plain().to(dtype), (X, Y))
        assert given.notes.count(note) == 1
        if call == "curvature":
            assert given["grad_norm"].value == wanted
    assert next(model.parameters()).dtype == dtype


class Bad(nn.Module):
    """A network in which an operation is at a point where its slope is infinite, for the row of zeros."""

    def __init__(self, operation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.operation = nn.Linear(8, 6), nn.Linear(6, 3), operation
        with torch.no_grad():
            self.first.bias.fill_(-0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.operation(self.first(x).relu()))  # type: ignore[no-any-return]


@pytest.mark.regression
@pytest.mark.parametrize("quantity", ["lambda_max", "trace"])
@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("Sqrt", lambda h: h * h.square().sum(1, keepdim=True).sqrt()),
        ("Acos", lambda h: h + torch.acos(torch.cos(h).clamp(-1, 1))),
        ("", lambda h: h * (h.square().sum(1, keepdim=True) + 1e-6).sqrt()),
    ],
)
def test_a_product_that_is_not_finite_names_the_operation(
    name: str, operation: Callable[[torch.Tensor], torch.Tensor], quantity: str
) -> None:
    torch.manual_seed(0)
    x = X.clone()
    x[17] = 0
    if not name:
        assert calibcli.curvature(Bad(operation), (x, Y), quantity, device="cpu")[quantity].value
        return
    with pytest.raises(InputError, match=f"is not finite: the gradient of '{name}' is not") as caught:
        calibcli.curvature(Bad(operation), (x, Y), quantity, device="cpu")
    assert "sqrt(x + 1e-12)" in caught.value.fix


def test_where_all_is_finite_there_is_no_culprit() -> None:
    from calibcli.networks.curvature import posed
    from calibcli.networks.curvature.operator import hessian_scalar

    problem, [loss] = posed(plain(), (X, Y), ["ce"])
    assert culprit(problem, hessian_scalar(loss)) == ""


# What needs transformers, and peft

WORDS = ["a", "the", "dog", "cat", "sat", "ran", "on", "mat", "fast", "slow", "not", "very", "bad", "good", "film"]
TINY = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
TEXTS = [f"{a} {b}" for a in WORDS for b in WORDS[:3]]
extra = pytest.mark.extra


def make(kind: str = "Bert", head: str = "ForSequenceClassification", labels: int = 3, **more: Any) -> Any:
    t = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(t, f"{kind}Config")(max_position_embeddings=12, pad_token_id=1, num_labels=labels, **TINY, **more)
    model = getattr(t, f"{kind}{head}")(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape))
    return model


def tokenizer() -> Any:
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["[UNK]", "[PAD]", *WORDS])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", model_max_length=12
    )


def folder(name: str = "m", model: Any = None, tokens: dict[str, Any] | None = None, **settings: Any) -> Path:
    """Save a model and its tokenizer, with other settings in their files; write the rows to d.csv."""
    (make() if model is None else model).save_pretrained(name)
    tokenizer().save_pretrained(name)
    for file, changes in (("config.json", settings), ("tokenizer_config.json", tokens or {})):
        path = Path(name, file)
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    rows = "".join(f"{text},{i % 3}\n" for i, text in enumerate(TEXTS))
    Path("d.csv").write_text(f"text,label\n{rows}")
    return Path(name)


def written(path: Path | str, **options: Any) -> tuple[np.ndarray, list[str]]:
    notes = calibcli.logits(path, "d.csv", save="o.npz", device="cpu", **options).notes
    with np.load("o.npz") as file:
        return file["logits"], notes


@extra
@pytest.mark.regression
@pytest.mark.parametrize("kind", ["Bert", "Llama"])
@pytest.mark.parametrize("named", ["flash_attention_2", "flash_attention_3", "flex_attention"])
def test_attention_that_a_configuration_names_is_replaced(kind: str, named: str) -> None:
    plainly, notes = written(folder("m", make(kind)))
    assert not any("attention" in note for note in notes)
    given, notes = written(folder("n", make(kind), attn_implementation=named))
    np.testing.assert_array_equal(given, plainly)
    assert f"config.json names {named}; attention runs in sdpa instead" in notes
    curved = calibcli.curvature("n", "d.csv", "lambda_max", device="cpu")
    assert (
        curved["lambda_max"].value == calibcli.curvature("m", "d.csv", "lambda_max", device="cpu")["lambda_max"].value
    )


def tokens() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    ids = torch.randint(2, 40, (24, 8), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, Y


@extra
@pytest.mark.regression
@pytest.mark.parametrize("call", ["curvature", "hessian", "train"])
def test_flex_attention_in_python_says_how_to_load_the_model(call: str) -> None:
    model = make(attn_implementation="flex_attention")
    said = refused(call, model, tokens())
    assert "flex_attention, which has no second derivative" in said
    assert "attn_implementation='sdpa'" in said
    model.set_attn_implementation("sdpa")  # as it says
    CALLS[call](model, tokens())


@extra
@pytest.mark.regression
@pytest.mark.parametrize("where", ["disk_offload", "cpu_offload"])
def test_offloaded_weights_are_refused(where: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = make()
    getattr(accelerate, where)(model, **({"offload_dir": "kept"} if where == "disk_offload" else {}))
    for call in CALLS:
        assert "offloaded" in refused(call, model, tokens())


@extra
@pytest.mark.regression
@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "bert9", "architectures": ["Bert9ForSequenceClassification"]},
        {"architectures": ["Bert9ForSequenceClassification"]},
        {"hidden_act": "gelu9"},
    ],
)
def test_a_folder_of_a_newer_transformers_says_so(settings: dict[str, Any]) -> None:
    path = folder("m", transformers_version="99.1.0.dev0", **settings)
    with pytest.raises(InputError) as caught:
        checkpoint.load(path)
    assert "written by transformers 99.1.0.dev0" in caught.value.fix
    assert "pip install -U 'transformers>=99.1.0.dev0'" in caught.value.fix


@extra
@pytest.mark.regression
def test_a_quantised_folder_says_what_to_install() -> None:
    path = folder("m", quantization_config={"quant_method": "hqq"})
    with pytest.raises(InputError, match="HQQ") as caught:
        checkpoint.load(path)
    assert caught.value.fix == "install what it names, or pass the network as it was before quantisation"


@extra
@pytest.mark.regression
def test_a_tokenizer_of_version_5_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version does not know the class that version 5 names; the model beside it may be of that older one."""
    import transformers

    path = folder("m", tokens={"tokenizer_class": "TokenizersBackend"}, transformers_version="4.57.6")
    monkeypatch.setattr(transformers, "__version__", "4.57.6")

    def missing(*_: Any, **__: Any) -> Any:
        raise ValueError("Tokenizer class TokenizersBackend does not exist or is not currently imported.")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", missing)
    with pytest.raises(InputError, match="TokenizersBackend does not exist") as caught:
        written(path)
    assert "pip install -U 'transformers>=5.0.0'" in caught.value.fix


@extra
@pytest.mark.regression
def test_an_older_transformers_does_not_ignore_the_positions_of_version_5(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    path = folder("m", make("Llama"), rope_parameters={"rope_type": "default", "rope_theta": 7.0})
    assert len(written(path)[0]) == len(TEXTS)
    both = folder("n", make("Llama"), rope_parameters={"rope_type": "default", "rope_theta": 7.0}, rope_theta=7.0)
    monkeypatch.setattr(transformers, "__version__", "4.57.6")
    with pytest.raises(InputError, match=r"rope_parameters, which transformers 4\.57\.6 ignores") as caught:
        checkpoint.load(path)
    assert "pip install -U 'transformers>=5" in caught.value.fix
    checkpoint.load(both)  # which also says it as the old version reads it


@extra
@pytest.mark.parametrize("version", [None, "5", 7, "1" * 5000, "4.20.0'; rm -r x", ["4.20.0"], "4.20.0"])
def test_a_folder_of_an_older_transformers_says_which(version: Any) -> None:
    path = folder("m", tokens={"tokenizer_class": "BertTokenizer"}, transformers_version=version, hidden_act="gelu9")
    with pytest.raises(InputError) as caught:
        checkpoint.load(path)
    assert caught.value.fix.startswith("check its config.json")
    assert ("written by transformers 4.20.0" in caught.value.fix) == (version == "4.20.0")
    assert "rm -r" not in caught.value.fix


def adapted(base: Path, name: str = "a", config: str = "LoraConfig", labels: int = 3, **options: Any) -> Any:
    """Train an adapter, as it were, on the model of a folder, and save it."""
    peft, t = pytest.importorskip("peft"), pytest.importorskip("transformers")
    model = t.AutoModelForSequenceClassification.from_pretrained(base, num_labels=labels, ignore_mismatched_sizes=True)
    torch.manual_seed(1)
    changed = peft.get_peft_model(model, getattr(peft, config)(task_type="SEQ_CLS", **options))
    with torch.no_grad():
        for p in changed.parameters():
            if p.requires_grad:
                p.add_(0.2 * torch.randn(p.shape))
    changed.save_pretrained(name)
    changed.config.pad_token_id = 1
    return changed.eval()


def own(model: Any) -> np.ndarray:
    rows = tokenizer()(TEXTS, return_tensors="pt", padding=True)
    with torch.no_grad():
        out = model(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"]).logits
    return out.numpy()  # type: ignore[no-any-return]


LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"]}


@extra
@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("LoraConfig", LORA),
        ("LoraConfig", LORA | {"use_dora": True}),
        ("LoraConfig", LORA | {"init_lora_weights": "pissa"}),
        ("LoraConfig", LORA | {"bias": "lora_only", "use_rslora": True}),
        ("IA3Config", {"target_modules": ["q_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
        ("LoHaConfig", {"target_modules": ["q_proj"]}),
    ],
)
def test_an_adapter_is_added_to_its_model(config: str, options: dict[str, Any]) -> None:
    model = adapted(folder("base", make("Llama")), "a", config, **options)
    given, notes = written("a")
    np.testing.assert_allclose(given, own(model), atol=1e-5)
    assert np.abs(given - written("base")[0]).max() > 0.01
    free = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert notes[0].startswith("the adapter changes base (sha256 ")
    assert f"{free:,} parameters can be trained: those of the adapter" in notes
    if not options.get("use_dora"):  # which detaches a norm: its second derivative is not that of its outputs
        assert calibcli.curvature("a", "d.csv", "lambda_max", device="cpu").facts["parameters"] == free
    assert calibcli.inspect("a").facts["used_by"] == "logits, curvature, fit"


@extra
@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter_finds_its_model_where_the_user_says(weights: str) -> None:
    model = adapted(folder("base"), "a", r=4, target_modules=["query"])
    tokenizer().save_pretrained("a")
    if weights.endswith("bin"):
        from safetensors.torch import load_file

        torch.save(load_file("a/adapter_model.safetensors"), "a/adapter_model.bin")
        Path("a/adapter_model.safetensors").unlink()
    Path("base").rename("moved")
    with pytest.raises(InputError) as caught:
        checkpoint.load(Path("a", weights))
    assert "stored elsewhere (base)" in caught.value.problem
    assert "--arch FOLDER" in caught.value.fix
    for path in (Path("a"), Path("a", weights)):
        np.testing.assert_allclose(written(path, arch="moved")[0], own(model), atol=1e-5)
    Path("a", "inside").mkdir()
    shutil.move("moved", "a/inside/base")  # beside the adapter, and named from its folder
    config = json.loads(Path("a/adapter_config.json").read_text()) | {"base_model_name_or_path": "inside/base"}
    Path("a/adapter_config.json").write_text(json.dumps(config))
    np.testing.assert_allclose(written("a")[0], own(model), atol=1e-5)


@extra
@pytest.mark.parametrize(("head", "labels"), [("ForCausalLM", 3), ("ForSequenceClassification", 7)])
def test_an_adapter_brings_its_own_head(head: str, labels: int) -> None:
    """The model is a language model, or a classifier of other classes; the number of classes is that of the adapter."""
    base = folder("base", make("Llama", head, labels))
    model = adapted(base, **LORA)
    given, _ = written("a")
    assert given.shape == (len(TEXTS), 3)
    np.testing.assert_allclose(given, own(model), atol=1e-5)


@extra
@pytest.mark.regression
def test_an_adapter_brings_the_words_that_were_added() -> None:
    peft, t = pytest.importorskip("peft"), pytest.importorskip("transformers")
    model = t.AutoModelForSequenceClassification.from_pretrained(folder("base", make("Llama")), num_labels=3)
    words = tokenizer()
    words.add_tokens([f"new{i}" for i in range(30)])
    model.resize_token_embeddings(len(words))
    changed = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", **LORA)).eval()
    changed.save_pretrained("a", save_embedding_layers=True)
    words.save_pretrained("a")
    Path("e.csv").write_text("text,label\n" + "".join(f"new{i} cat,{i % 3}\n" for i in range(30)))
    calibcli.logits("a", "e.csv", save="o.npz", device="cpu")
    with torch.no_grad(), np.load("o.npz") as file:
        rows = words([f"new{i} cat" for i in range(30)], return_tensors="pt")["input_ids"]
        np.testing.assert_allclose(file["logits"], changed(input_ids=rows).logits.numpy(), atol=1e-5)


@extra
@pytest.mark.regression
def test_an_adapter_that_does_not_fit_is_refused() -> None:
    from safetensors.torch import load_file, save_file

    adapted(folder("base", make("Llama")), **LORA)
    stored = load_file("a/adapter_model.safetensors")
    first = next(iter(stored))
    for changed in (
        {k: v for k, v in stored.items() if k != first},
        stored | {first.replace("q_proj", "z_proj"): stored[first].clone()},
        stored | {first: stored[first][:, :5].contiguous()},
        {k: v for k, v in stored.items() if "score" not in k},
    ):
        save_file(changed, "a/adapter_model.safetensors")
        with pytest.raises(InputError, match="cannot be added to its model by peft") as caught:
            checkpoint.load("a")
        assert "--arch FOLDER" in caught.value.fix
    save_file(stored, "a/adapter_model.safetensors")
    settings = json.loads(Path("a/adapter_config.json").read_text())
    for odd in ({"peft_type": "PROMPT_TUNING"}, {"megatron_config": {"a": 1}, "megatron_core": "os"}, {"peft_type": 3}):
        Path("a/adapter_config.json").write_text(json.dumps(settings | odd))
        with pytest.raises(InputError, match="which is not added here"):
            checkpoint.load("a")
    Path("a/adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": "a"}))
    shutil.copy("base/config.json", "a/config.json")  # an adapter of itself
    with pytest.raises(InputError, match="stored elsewhere"):
        checkpoint.load("a")


@pytest.mark.regression
def test_without_peft_an_adapter_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    Path("a").mkdir()
    Path("a/adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "some/bert"}')
    with pytest.raises(InputError) as caught:
        checkpoint.load("a")
    assert "stored elsewhere (some/bert); peft is not installed" in caught.value.problem
    assert caught.value.fix.startswith("pip install peft, and pass --arch FOLDER of that model; or merge both: ")
