"""Models of other libraries as they come: a folder or a name given, and the logits of the library's own pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibcli.cli.app import main
from calibcli.core.errors import Exit, InputError
from calibcli.networks import checkpoint

pytestmark = pytest.mark.extra
Image = pytest.importorskip("PIL.Image")
torch.set_num_threads(1)
NAMES = ["cat", "ant", "bee"]  # of the models: another order than that of the folders
WORDS = ["a", "the", "dog", "cat", "sat", "ran", "on", "mat", "fast", "slow", "not", "very", "bad", "good", "film"]
CLOSE = 1e-5


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*args: str) -> dict[str, Any]:
    """The arrays that `calib logits` writes."""
    assert main(["logits", *args, "--save", "o.npz", "--device", "cpu", "-q"]) == Exit.OK
    with np.load("o.npz") as file:
        return dict(file)


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    assert main(["logits", *args, "--save", "o.npz", "--device", "cpu"]) in (Exit.REFUSED, Exit.USAGE)
    return capsys.readouterr().err


@pytest.fixture
def pictures() -> list[Path]:
    """Pictures of all sizes and kinds: colour, grey, palette, with an alpha channel, CMYK, turned by EXIF."""
    rng = np.random.default_rng(0)
    modes = {"ant": ["RGB", "L", "RGBA"], "bee": ["P", "1", "CMYK"], "cat": ["RGB", "turned", "LA"]}
    for name, kinds in modes.items():
        Path("pics", name).mkdir(parents=True)
        for i, mode in enumerate(kinds):
            small = Image.fromarray(rng.integers(0, 256, (9, 7, 3)).astype(np.uint8))
            picture = small.resize((60 + 7 * i, 51 + 4 * i), Image.BICUBIC)
            if mode == "turned":
                exif = picture.getexif()
                exif[0x0112] = 6
                picture.save(f"pics/{name}/{i}.jpg", exif=exif)
            elif mode == "CMYK":
                picture.convert(mode).save(f"pics/{name}/{i}.jpg")
            else:
                picture.convert(mode).save(f"pics/{name}/{i}.png")
    return sorted(Path("pics").rglob("*.[jp][pn]g"))


def spread(model: Any) -> Any:
    """The model with weights that tell rows apart."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.copy_(1.6 * torch.randn(p.shape, generator=generator) / p[0].numel() ** 0.5)
    return model.eval()


def labelled(kind: Any, **more: Any) -> Any:
    names = dict(enumerate(NAMES))
    return kind(num_labels=3, id2label=names, label2id={v: k for k, v in names.items()}, **more)


def vit(side: int = 32) -> Any:
    import transformers as t

    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = labelled(t.ViTConfig, image_size=side, patch_size=8, **size)
    return t.ViTForImageClassification(config), t.ViTImageProcessor(size={"height": 32, "width": 32})


def vit_pil() -> Any:
    model, _ = vit()
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    return model, ViTImageProcessorPil(size={"height": 32, "width": 32}, resample=3, image_mean=[0.2, 0.4, 0.6])


def convnext() -> Any:
    import transformers as t

    config = labelled(t.ConvNextConfig, hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1])
    return t.ConvNextForImageClassification(config), t.ConvNextImageProcessor(size={"shortest_edge": 64})


def swin() -> Any:
    import transformers as t

    config = labelled(
        t.SwinConfig, image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    return t.SwinForImageClassification(config), t.ViTImageProcessor(size={"height": 32, "width": 32}, resample=3)


def resnet() -> Any:
    """With statistics of its normalisation in the buffers."""
    import transformers as t

    config = labelled(t.ResNetConfig, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return t.ResNetForImageClassification(config), t.ConvNextImageProcessor(size={"shortest_edge": 224}, crop_pct=0.9)


def efficientnet() -> Any:
    """Rescaled with an offset, normalised twice: what calib's own reading of the file refuses."""
    import transformers as t

    processor = t.EfficientNetImageProcessor(size={"height": 40, "width": 40}, rescale_offset=True, include_top=True)
    return vit(40)[0], processor


def clip_like() -> Any:
    """Shorter side, then the middle; colour channels turned round."""
    import transformers as t

    processor = t.MobileViTImageProcessor(size={"shortest_edge": 50}, crop_size={"height": 48, "width": 48})
    return vit(48)[0], processor


def own_pipeline(folder: str, task: str, rows: Sequence[Any], **options: Any) -> Any:
    """Logits of `transformers.pipeline`, a row at a time, in the order of the model's classes."""
    import transformers

    pipe = transformers.pipeline(task, folder, device="cpu", dtype=torch.float32)
    labels = [pipe.model.config.id2label[i] for i in range(len(pipe.model.config.id2label))]
    found = []
    for row in rows:
        scores = {one["label"]: one["score"] for one in pipe(row, function_to_apply="none", top_k=None, **options)}
        found.append([scores[label] for label in labels])
    return np.array(found)


@pytest.mark.parametrize("make", [vit, vit_pil, convnext, swin, resnet, efficientnet, clip_like])
@pytest.mark.parametrize("given", ["m", "m/model.safetensors"])
def test_pictures_of_transformers(make: Callable[[], Any], given: str, pictures: list[Path]) -> None:
    model, processor = make()
    spread(model).save_pretrained("m")
    processor.save_pretrained("m")
    found = run(given, "--data", "pics")
    wanted = own_pipeline("m", "image-classification", [str(path) for path in pictures])
    assert np.ptp(wanted, axis=0).min() > 100 * CLOSE  # rows differ
    np.testing.assert_allclose(found["logits"], wanted, atol=CLOSE)
    assert found["labels"].tolist() == [1] * 3 + [2] * 3 + [0] * 3
    assert found["classes"].tolist() == NAMES


def test_pictures_in_arrays_and_tables(pictures: list[Path]) -> None:
    """The same pictures as bytes of an array, in parquet, in folders of parquet and of `save_to_disk`."""
    import pyarrow as pa
    from pyarrow import parquet

    model, processor = vit()
    spread(model).save_pretrained("m")
    processor.save_pretrained("m")
    raw = np.random.default_rng(1).integers(0, 256, (4, 40, 50, 3)).astype(np.uint8)
    wanted = own_pipeline("m", "image-classification", [Image.fromarray(one) for one in raw])
    np.savez("a.npz", images=raw, labels=[0, 1, 2, 0])
    np.testing.assert_allclose(run("m", "--data", "a.npz")["logits"], wanted, atol=CLOSE)
    np.savez("a.npz", images=np.moveaxis(raw, -1, 1), labels=[0, 1, 2, 0])
    np.testing.assert_allclose(run("m", "--data", "a.npz")["logits"], wanted, atol=CLOSE)

    wanted = own_pipeline("m", "image-classification", [str(path) for path in pictures])
    images = [{"bytes": path.read_bytes(), "path": path.name} for path in pictures]
    features = {"image": {"_type": "Image"}, "label": {"names": ["bee", "cat", "ant"], "_type": "ClassLabel"}}
    about = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    table = pa.table({"image": images, "label": [2] * 3 + [0] * 3 + [1] * 3}).replace_schema_metadata(about)
    for folder in ("hub/data", "disk/test", "disk/train"):
        Path(folder).mkdir(parents=True)
    parquet.write_table(table, "one.parquet", row_group_size=2)
    parquet.write_table(table.slice(0, 4), "hub/data/test-00000-of-00002.parquet")
    parquet.write_table(table.slice(4), "hub/data/test-00001-of-00002.parquet")
    parquet.write_table(table.slice(0, 1), "hub/data/train-00000-of-00001.parquet")
    for name in ("test", "train"):
        with (
            pa.OSFile(f"disk/{name}/data-00000-of-00001.arrow", "wb") as file,
            pa.ipc.new_stream(file, table.schema) as w,
        ):
            w.write_table(table)
        Path(f"disk/{name}/state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    Path("disk/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for source in ("one.parquet", "hub#test", "disk#test", "disk/test"):
        found = run("m", "--data", source)
        np.testing.assert_allclose(found["logits"], wanted, atol=CLOSE)
        assert found["labels"].tolist() == [1] * 3 + [2] * 3 + [0] * 3
    for source in ("hub", "disk"):
        with pytest.raises(InputError, match="holds the splits test, train") as caught:
            checkpoint.load("m").open_data(source)
        assert caught.value.fix == f"choose one: {source}#test"
    outside = pa.table({"image": [{"bytes": None, "path": "/x.png"}], "label": [0]}, schema=table.schema)
    parquet.write_table(outside, "outside.parquet")
    with pytest.raises(InputError, match=r"row 0 of 'image' in outside\.parquet names a picture outside"):
        checkpoint.load("m").open_data("outside.parquet")


def tokenizer(length: int = 12, **special: str) -> Any:
    """A tokenizer of words, with a frame as BERT's where it has the tokens for it."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokens = ["[UNK]", *special.values(), *WORDS]
    made = Tokenizer(models.WordLevel({token: i for i, token in enumerate(dict.fromkeys(tokens))}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if "sep_token" in special:
        ids = [(t, made.token_to_id(t)) for t in (special["cls_token"], special["sep_token"])]
        frame = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1"}
        made.post_processor = processors.TemplateProcessing(**frame, special_tokens=ids)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", model_max_length=length, **special
    )


FRAME = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
TINY = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def bert() -> Any:
    import transformers as t

    config = labelled(t.BertConfig, max_position_embeddings=12, pad_token_id=1, **TINY)
    return t.BertForSequenceClassification(config), tokenizer(10**30, **FRAME)


def roberta() -> Any:
    """Positions count from behind the padding token, and two rows of the table are never used."""
    import transformers as t

    config = labelled(t.RobertaConfig, max_position_embeddings=14, pad_token_id=1, type_vocab_size=1, **TINY)
    made = tokenizer(10**30, **FRAME)
    made.model_input_names = ["input_ids", "attention_mask"]
    return t.RobertaForSequenceClassification(config), made


def distilbert() -> Any:
    import transformers as t

    config = labelled(t.DistilBertConfig, vocab_size=40, dim=16, n_layers=1, n_heads=2, hidden_dim=16, pad_token_id=1)
    return t.DistilBertForSequenceClassification(config), tokenizer(12, **FRAME)


def gpt2() -> Any:
    """No token to fill up with, neither in the tokenizer nor in the configuration."""
    import transformers as t

    config = labelled(t.GPT2Config, vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=12)
    return t.GPT2ForSequenceClassification(config), tokenizer(10**30)


def llama() -> Any:
    """A tokenizer that fills up on the left."""
    import transformers as t

    config = labelled(t.LlamaConfig, pad_token_id=1, max_position_embeddings=12, num_key_value_heads=2, **TINY)
    made = tokenizer(12, pad_token="[PAD]")
    made.padding_side = "left"
    return t.LlamaForSequenceClassification(config), made


TEXTS = ["the cat sat", "a very bad film", "good", " ".join(WORDS * 2), "dog ran fast on the mat", "nothing known here"]
LABELS = ["bee", "ant", "cat", "cat", "ant", "bee"]


@pytest.mark.parametrize("make", [bert, roberta, distilbert, gpt2, llama])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_texts_of_transformers(make: Callable[[], Any], suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    import pandas

    model, made = make()
    spread(model).save_pretrained("m")
    made.save_pretrained("m")
    frame = pandas.DataFrame({"text": TEXTS, "label": LABELS, "length": [len(t) for t in TEXTS]})
    write = {"csv": lambda: frame.to_csv("d.csv", index=False), "parquet": lambda: frame.to_parquet("d.parquet")}
    write.get(suffix, lambda: frame.to_json("d.jsonl", orient="records", lines=True))()
    found = run("m", "--data", f"d.{suffix}", "--batch-size", "4")
    wanted = own_pipeline("m", "text-classification", TEXTS, truncation=True, max_length=12)
    assert np.ptp(wanted, axis=0).min() > 100 * CLOSE
    np.testing.assert_allclose(found["logits"], wanted, atol=CLOSE)
    assert found["labels"].tolist() == [NAMES.index(label) for label in LABELS]
    capsys.readouterr()
    assert main(["logits", "m", "--data", f"d.{suffix}", "--save", "o.npz"]) == Exit.OK
    assert "1 of 6 texts have more than the 12 tokens of the model: cut off" in capsys.readouterr().err


def test_pairs_of_texts(capsys: pytest.CaptureFixture[str]) -> None:
    import pandas

    model, made = bert()
    spread(model).save_pretrained("m")
    made.save_pretrained("m")
    pairs = {"premise": TEXTS, "hypothesis": TEXTS[::-1]}
    rows = [{"text": a, "text_pair": b} for a, b in zip(*pairs.values())]
    wanted = own_pipeline("m", "text-classification", rows, truncation=True, max_length=12)
    pandas.DataFrame({**pairs, "label": LABELS, "idx": range(6)}).to_csv("d.csv", index=False)
    np.testing.assert_allclose(run("m", "--data", "d.csv")["logits"], wanted, atol=CLOSE)
    pandas.DataFrame({"b": pairs["hypothesis"], "a": pairs["premise"], "c": TEXTS, "label": LABELS}).to_csv("d.csv")
    np.testing.assert_allclose(run("m", "--data", "d.csv", "--inputs", "a,b")["logits"], wanted, atol=CLOSE)
    said = refused(capsys, "m", "--data", "d.csv")
    assert "b, a, c are texts" in said
    assert "--inputs" in said


def test_curvature_of_texts_and_pictures(pictures: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    import pandas

    model, made = gpt2()
    model.save_pretrained("m")
    made.save_pretrained("m")
    pandas.DataFrame({"text": TEXTS, "label": LABELS}).to_csv("d.csv", index=False)
    assert main(["curvature", "m", "--data", "d.csv", "-w", "grad_norm", "--device", "cpu", "--json"]) == Exit.OK
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert facts["preprocess"]["longest"] == 12
    model, processor = vit()
    model.save_pretrained("v")
    processor.save_pretrained("v")
    assert main(["curvature", "v", "--data", "pics", "-w", "grad_norm", "--device", "cpu", "--json"]) == Exit.OK
    assert "ViTImageProcessor" in json.loads(capsys.readouterr().out)["facts"]["preprocess"]["by"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_shards(dtype: torch.dtype, capsys: pytest.CaptureFixture[str]) -> None:
    import pandas

    model, made = bert()
    spread(model).to(dtype).save_pretrained("m", max_shard_size="5KB")
    made.save_pretrained("m")
    assert Path("m/model.safetensors.index.json").exists()
    pandas.DataFrame({"text": TEXTS, "label": LABELS}).to_csv("d.csv", index=False)
    wanted = own_pipeline("m", "text-classification", TEXTS, truncation=True, max_length=12)
    for given in ("m", "m/model.safetensors.index.json"):
        np.testing.assert_allclose(run(given, "--data", "d.csv")["logits"], wanted, atol=CLOSE)
    assert main(["logits", "m", "--data", "d.csv", "--save", "o.npz"]) == Exit.OK
    name = str(dtype).removeprefix("torch.")
    assert f"weights stored as {name} were converted to float32" in capsys.readouterr().err


def test_one_logit_and_heads_that_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    import pandas
    import transformers as t

    made = tokenizer(12, **FRAME)
    for kind, names in (("one", {0: "LABEL_0"}), ("named", {0: "toxic"})):
        config = t.BertConfig(num_labels=1, max_position_embeddings=12, pad_token_id=1, id2label=names, **TINY)
        model = spread(t.BertForSequenceClassification(config))
        model.save_pretrained(kind)
        made.save_pretrained(kind)
        wanted = own_pipeline(kind, "text-classification", TEXTS[:3])[:, 0]
        labels = [0, 1, 0] if kind == "one" else ["not toxic", "toxic", "not toxic"]
        pandas.DataFrame({"text": TEXTS[:3], "label": labels}).to_csv("d.csv", index=False)
        found = run(kind, "--data", "d.csv")
        np.testing.assert_allclose(found["logits"][:, 1] - found["logits"][:, 0], wanted, atol=CLOSE)
        assert found["labels"].tolist() == [0, 1, 0]
    for problem, said in (("multi_label_classification", "--multilabel"), ("regression", "predicts numbers")):
        config.problem_type = problem
        config.save_pretrained("named")
        assert said in refused(capsys, "named", "--data", "d.csv")


def test_labels_of_models_without_names() -> None:
    import pandas

    model, made = bert()
    model.config.id2label = {i: f"LABEL_{i}" for i in range(3)}
    model.save_pretrained("m")
    made.save_pretrained("m")
    pandas.DataFrame({"text": TEXTS[:2], "label": ["LABEL_2", "LABEL_1"]}).to_csv("d.csv", index=False)
    assert run("m", "--data", "d.csv")["labels"].tolist() == [2, 1]


def test_folders_that_lack_something(pictures: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file, save_file

    model, processor = vit()
    spread(model).save_pretrained("m")
    said = refused(capsys, "m", "--data", "pics")
    assert "no preprocessor_config.json" in said
    assert "--mean" in said
    processor.save_pretrained("m")
    Path("t.csv").write_text("text,label\na,ant\nb,bee\n")
    bert()[0].save_pretrained("t")
    assert "t has no tokenizer" in refused(capsys, "t", "--data", "t.csv")
    tensors = load_file("m/model.safetensors")
    Path("m/model.safetensors").unlink()
    torch.save(tensors, "m/pytorch_model.bin")  # of old: read without running what it names
    wanted = own_pipeline("m", "image-classification", [str(path) for path in pictures])
    np.testing.assert_allclose(run("m", "--data", "pics")["logits"], wanted, atol=CLOSE)
    shaken = {key: value + 1 for key, value in tensors.items()}
    save_file(tensors, "m/model.safetensors", {"format": "pt"})
    torch.save(shaken, "m/pytorch_model.bin")  # beside safetensors, which come first, as for transformers
    np.testing.assert_allclose(run("m", "--data", "pics")["logits"], wanted, atol=CLOSE)
    del tensors["classifier.weight"]
    save_file(tensors, "m/model.safetensors", {"format": "pt"})
    said = refused(capsys, "m", "--data", "pics")
    assert "lacks 1 weights of ViTForImageClassification, first 'classifier.weight'" in said
    Path("m/adapter_config.json").write_text("{}")
    assert "adapter" in refused(capsys, "m", "--data", "pics")


def test_a_pickle_with_code_in_a_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return (Path("ran").touch, ())

    model, processor = vit()
    model.save_pretrained("m")
    processor.save_pretrained("m")
    Path("m/model.safetensors").unlink()
    Path("m/pytorch_model.bin").write_bytes(pickle.dumps({"x": Evil()}))
    assert "nothing was executed" in refused(capsys, "m", "--data", "x.npz")
    assert not Path("ran").exists()


TIMM = ["test_resnet", "test_vit", "test_efficientnet"]


@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str, pictures: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A folder as timm writes it, its weights alone beside their config.json, and weights with `--arch`."""
    import timm

    model = spread(timm.create_model(name, num_classes=3))
    timm.models.save_for_hf(model, "m", model_config={"label_names": NAMES}, safe_serialization=True)
    own = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    with torch.no_grad():
        rows = torch.stack([own(Image.open(path).convert("RGB")) for path in pictures])
        wanted = model(rows).numpy()
    assert np.ptp(wanted, axis=0).min() > 100 * CLOSE
    for given in ("m", "m/model.safetensors"):
        found = run(given, "--data", "pics")
        np.testing.assert_allclose(found["logits"], wanted, atol=CLOSE)
        assert found["labels"].tolist() == [1] * 3 + [2] * 3 + [0] * 3
    torch.save({"state_dict": model.state_dict()}, "w.pth.tar")
    for arch in (f"timm:{name}", f"timm.{name}", f"timm:{name}.r160_in1k"):
        found = run("w.pth.tar", "--arch", arch, "--data", "pics")
        np.testing.assert_allclose(found["logits"], wanted, atol=CLOSE)
        assert found["labels"].tolist() == [0] * 3 + [1] * 3 + [2] * 3  # names that it does not know: in their order
    capsys.readouterr()
    assert main(["logits", "w.pth.tar", "--arch", f"timm:{name}", "--data", "pics", "--save", "o.npz"]) == Exit.OK
    said = capsys.readouterr().err
    assert "3 classes, as in the weights" in said
    assert "pictures as timm.data.create_transform makes them" in said


@pytest.mark.parametrize(
    ("channels", "mode", "border"),
    [(1, "center", False), (3, "squash", False), (3, "border", False), (3, "center", True)],
)
def test_timm_transforms(channels: int, mode: str, border: bool, pictures: list[Path]) -> None:
    """Grey models, crop modes that calib does not write out itself, pictures that are not square."""
    import timm

    config = {"crop_mode": mode, "crop_pct": 0.8, "interpolation": "bilinear", "num_classes": 3}
    config |= {"input_size": (channels, 64, 96 if border else 64), "mean": (0.3,) * channels, "std": (0.6,) * channels}
    model = spread(timm.create_model("test_resnet", num_classes=3, in_chans=channels, pretrained_cfg_overlay=config))
    timm.models.save_for_hf(model, "m", safe_serialization=True)
    own = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    with torch.no_grad():
        rows = torch.stack([own(Image.open(path).convert("L" if channels == 1 else "RGB")) for path in pictures])
        wanted = model(rows).numpy()
    np.testing.assert_allclose(run("m", "--data", "pics")["logits"], wanted, atol=CLOSE)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "squeezenet1_1"])
def test_torchvision(name: str, pictures: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    from torchvision import models

    model = models.get_model(name, num_classes=3).eval()
    torch.save(model.state_dict(), "w.pth")
    preset = models.get_model_weights(name).DEFAULT.transforms()
    with torch.no_grad():
        rows = torch.stack([preset(Image.open(path).convert("RGB")) for path in pictures])
        wanted = model(rows).numpy()
    arch = f"torchvision:{name}" if name != "mobilenet_v3_small" else name  # a bare name that nothing else has
    stated = ["--kind", "logits"] if (wanted >= 0).all() and (wanted <= 1).all() else []  # a last ReLU, untrained
    np.testing.assert_allclose(run("w.pth", "--arch", arch, "--data", "pics", *stated)["logits"], wanted, atol=CLOSE)
    capsys.readouterr()
    assert main(["logits", "w.pth", "--arch", f"torchvision:{name},weights=V9", "--save", "o.npz"]) == Exit.USAGE
    assert "has no weights 'V9'" in capsys.readouterr().err


def test_weights_of_torchvision_by_name(pictures: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Weights of one architecture differ in their pictures: by file name, by option, and a note where neither tells."""
    from torchvision import models

    kinds = models.ResNet50_Weights
    first, second = kinds.IMAGENET1K_V1, kinds.IMAGENET1K_V2
    torch.save(models.resnet50(num_classes=3).state_dict(), "w.pth")
    for path, arch, wanted in (
        ("w.pth", "torchvision:resnet50", second),
        ("w.pth", "torchvision:resnet50,weights=IMAGENET1K_V1", first),
        (Path(first.url).name, "torchvision:resnet50", first),
    ):
        if path != "w.pth":
            Path("w.pth").rename(path)
        loaded = checkpoint.load(path, arch=arch)
        found, _ = loaded.open_data("pics").batch([0])
        preset = wanted.transforms()
        torch.testing.assert_close(found, preset(Image.open(pictures[0]).convert("RGB"))[None])
        note = any("IMAGENET1K_V1" in note and "weights=" in note for note in loaded.notes)
        assert note == (arch == "torchvision:resnet50" and path == "w.pth")


def test_options_come_before_what_a_library_publishes(pictures: list[Path]) -> None:
    """`--mean` says that the model was trained in another way: nothing of the published preprocessing is left."""
    from torchvision import models

    torch.save(models.resnet18(num_classes=3).state_dict(), "w.pth")
    loaded = checkpoint.load("w.pth", arch="torchvision:resnet18")
    data = loaded.open_data("pics", mean="0.5", std="0.5", resize="40x40")
    assert data.shape == (3, 40, 40)
    assert (data.preprocess.mean, data.preprocess.std) == ((0.5,), (0.5,))
    data = loaded.open_data("pics", crop="100x90", interpolation="bicubic")
    assert data.shape == (3, 100, 90)
    assert data.preprocess.mean == (0.485, 0.456, 0.406)
    assert str(data.preprocess.resize) == "resized to 256 (shorter side), bicubic, the middle 100x90"


def inspected(capsys: pytest.CaptureFixture[str], path: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["inspect", path, "--json"]) == Exit.OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert len(found["provenance"]["inputs"][0]["sha256"]) in (0, 64)
    return {**found["facts"], "notes": found["notes"]}


def test_inspect(pictures: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    import timm

    model, made = bert()
    model.half().save_pretrained("m", max_shard_size="5KB")
    made.save_pretrained("m")
    for given in ("m", "m/model.safetensors.index.json"):
        found = inspected(capsys, given)
        assert (found["what"], found["architecture"]) == ("a Hugging Face model", "BertForSequenceClassification")
        assert (found["class_names"], found["stored as"]) == (NAMES, "float16")
        assert found["parameters"] == sum(p.numel() for p in model.parameters())
        assert "logits" in found["used_by"]
    model.config.problem_type = "multi_label_classification"
    model.config.save_pretrained("m")
    found = inspected(capsys, "m")
    assert found["used_by"].startswith("none")
    assert "multi_label_classification" in found["notes"][0]
    model, processor = vit()
    model.save_pretrained("v")
    processor.save_pretrained("v")
    assert "resized to 32x32, bilinear" in inspected(capsys, "v/model.safetensors")["pictures"]
    timm.models.save_for_hf(timm.create_model("test_resnet", num_classes=3), "t", safe_serialization=True)
    found = inspected(capsys, "t")
    assert (found["what"], found["architecture"], found["classes"]) == ("a timm model", "timm:test_resnet", 3)
    found = inspected(capsys, "pics")
    assert (found["what"], found["rows"], found["class_names"]) == ("a data set", 9, ["ant", "bee", "cat"])


def test_inspect_tables(capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    Path("hub/data").mkdir(parents=True)
    parquet.write_table(pa.table({"image": [{"bytes": b"x", "path": "p"}], "label": [0]}), "hub/data/test.parquet")
    parquet.write_table(pa.table({"image": [b"x"], "label": [0]}), "hub/data/train.parquet")
    assert inspected(capsys, "hub")["splits"] == "test, train"
    for name in ("test", "train"):
        found = inspected(capsys, f"hub/data/{name}.parquet")
        assert (found["what"], found["pictures"], found["rows"]) == ("a data set", "image", 1)
    Path("d.csv").write_text("text,label\ngood,1\nbad,0\n")
    Path("d.jsonl").write_text('{"premise": "a", "hypothesis": "b", "label": 0}\n')
    assert inspected(capsys, "d.csv")["texts"] == "text"
    assert inspected(capsys, "d.jsonl")["texts"] == "premise, hypothesis"


CODE = "from pathlib import Path\nPath('ran').touch()\nclass X: pass\n"


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json", "tokenizer_config.json"])
def test_code_in_a_folder_is_never_run(file: str, pictures: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """`auto_map` names code in the folder: transformers' own class is taken, or the folder is refused."""
    own = vit if file != "tokenizer_config.json" else bert
    model, processor = own()
    model.save_pretrained("m")
    processor.save_pretrained("m")
    Path("m/evil.py").write_text(CODE)
    Path("t.csv").write_text("text,label\na,ant\nb,bee\n")
    about = json.loads(Path("m", file).read_text())
    kinds = ("AutoConfig", "AutoModelForImageClassification", "AutoImageProcessor", "AutoFeatureExtractor")
    about["auto_map"] = dict.fromkeys(kinds, "evil.X") | {"AutoTokenizer": ["evil.X", "evil.X"]}
    for name in ("", "own"):  # known to transformers by its type, and not
        if name:
            about |= {"model_type": "own", "image_processor_type": "X", "tokenizer_class": "X"}
        Path("m", file).write_text(json.dumps(about))
        data = "t.csv" if own is bert else "pics"
        code = main(["logits", "m", "--data", data, "--save", "o.npz", "-q"])
        assert code in (Exit.OK, Exit.REFUSED)
        assert not Path("ran").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"model_args": {"checkpoint_path": "evil.pth"}},
        {"model_args": {"pretrained": True}},
        {"attn_implementation": "someone/kernel"},
    ],
)
def test_what_lies_elsewhere_is_not_fetched(change: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    import timm

    vit()[0].save_pretrained("v")
    timm.models.save_for_hf(timm.create_model("test_resnet", num_classes=3), "t", safe_serialization=True)
    for folder in ("v", "t"):
        about = json.loads(Path(folder, "config.json").read_text())
        Path(folder, "config.json").write_text(json.dumps(about | change))
        assert "names files or code outside its folder" in refused(capsys, folder, "--data", "x.npz")


def test_fit_goes_on_from_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """What it writes is a model again once the files of the first one lie beside it."""
    import shutil

    import pandas

    model, made = bert()
    model.save_pretrained("m")
    made.save_pretrained("m")
    pandas.DataFrame({"text": TEXTS * 4, "label": LABELS * 4}).to_csv("d.csv", index=False)
    line = ["--epochs", "2", "--lr", "0.01", "--device", "cpu", "--batch-size", "8", "--val-fraction", "0.2"]
    assert main(["fit", "m", "--data", "d.csv", "--save", "out", *line]) == Exit.OK
    assert "put the files of m beside model.safetensors" in capsys.readouterr().err
    for file in Path("m").iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, "out")
    first, after = run("m", "--data", "d.csv")["logits"], run("out", "--data", "d.csv")["logits"]
    assert np.abs(first - after).max() > 100 * CLOSE
    from safetensors.torch import load_file

    model.load_state_dict(load_file("out/model.safetensors"))
    encoded = made(TEXTS[:1], return_tensors="pt", truncation=True, max_length=12)
    np.testing.assert_allclose(after[0], model.eval()(**encoded).logits[0].detach().numpy(), atol=CLOSE)


def test_fit_of_a_name_is_read_with_that_name(pictures: list[Path]) -> None:
    """The library prepares the pictures again: no other preprocessing is written beside the weights."""
    import timm

    torch.save(timm.create_model("test_resnet", num_classes=3).state_dict(), "w.pth")
    line = ["--arch", "timm:test_resnet", "--data", "pics", "--device", "cpu"]
    for path in pictures:
        for i in range(3):
            path.with_name(f"{i}-{path.name}").write_bytes(path.read_bytes())
    pictures = sorted(Path("pics").rglob("*.[jp][pn]g"))
    assert main(["fit", "w.pth", *line, "--epochs", "1", "--save", "out", "-q", "--val-fraction", "0.3"]) == Exit.OK
    model = timm.create_model("test_resnet", num_classes=3).eval()
    from safetensors.torch import load_file

    model.load_state_dict(load_file("out/model.safetensors"))
    own = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    with torch.no_grad():
        wanted = model(torch.stack([own(Image.open(path).convert("RGB")) for path in pictures])).numpy()
    np.testing.assert_allclose(run("out/model.safetensors", *line[:4])["logits"], wanted, atol=CLOSE)


def test_torchvision_builds_some_models_in_another_way_for_its_weights() -> None:
    from torchvision import models

    from calibcli.networks.checkpoint import factory

    model = models.googlenet(num_classes=3, init_weights=False, aux_logits=False)
    known = factory.published("torchvision:googlenet", model, "w.pth")
    assert known is not None
    assert any("transform_input=True" in note for note in known.notes)
    known = factory.published("torchvision:googlenet,transform_input=True", model, "w.pth")
    assert known is not None
    assert not known.notes
    assert factory.published("mine:make", torch.nn.Linear(2, 2), "w.pth") is None


def test_a_graph_with_a_tokenizer_beside_it() -> None:
    """As exporters write it: inputs that the graph does not take are left out."""
    pytest.importorskip("onnxruntime")
    import onnx
    from onnx import TensorProto, helper

    model, made = bert()
    model.config.save_pretrained("m")
    made.save_pretrained("m")
    table = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    nodes = [("Gather", ["table", "input_ids"], ["rows"]), ("Cast", ["attention_mask"], ["mask"]),
             ("Unsqueeze", ["mask", "last"], ["wide"]), ("Mul", ["rows", "wide"], ["kept"]),
             ("ReduceSum", ["kept", "first"], ["logits"])]  # fmt: skip
    more = {"Cast": {"to": 1}, "ReduceSum": {"keepdims": 0}}
    taken = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "t"]) for name in ("input_ids", "attention_mask")
    ]
    weights = {"table": table, "last": np.array([2]), "first": np.array([1])}
    graph = helper.make_graph(
        [helper.make_node(*node, **more.get(node[0], {})) for node in nodes], "g", taken,
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m/model.onnx")
    Path("d.csv").write_text("text,label\n" + "".join(f"{t},{y}\n" for t, y in zip(TEXTS, LABELS)))
    found = run("m/model.onnx", "--data", "d.csv")
    encoded = [made(text, truncation=True, max_length=12)["input_ids"] for text in TEXTS]
    np.testing.assert_allclose(found["logits"], [table[ids].sum(0) for ids in encoded], atol=CLOSE)
    assert found["labels"].tolist() == [NAMES.index(label) for label in LABELS]
