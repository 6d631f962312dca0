"""Hugging Face model folders: `config.json` beside their weights, read with transformers when it is installed.

Only what transformers itself has is built: code in the folder is never run, and of pickled weights the tensors alone
are read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from calibcli.core.errors import InputError, refusing
from calibcli.networks.checkpoint import adapters, processor, usable
from calibcli.networks.checkpoint.processor import LibraryModel
from calibcli.networks.dataset.library_preparation import VOCABULARY, PicturePreparation, Preparation, TextPreparation
from calibcli.networks.user_code import FAILURES
from calibcli.scores.files.formats import safetensors

HEADS = ("ForSequenceClassification", "ForImageClassification", "ForAudioClassification", "ForMultipleChoice")
CAUSAL = ("ForCausalLM", "LMHeadModel")
POSITIONS = ("ForTokenClassification", "ForSemanticSegmentation", "ForMaskedLM", *CAUSAL)
"""Heads with logits for every position, of tokens or pixels."""
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model",
              "sentencepiece.bpe.model")  # fmt: skip
LAYERS, SIZES = 1000, 10_000_000  # numbers of layers, and sizes, that are accepted without a look at the weights
OF_LAYERS = re.compile(r"(^n|num|encoder|decoder)_(\w+_)?(layer|block|group|stage)s?$|layers$|depths?$|group_num$")
NO_SIZE = re.compile(r"_ids?$|length|theta|position|period|base|timeout|seed")  # numbers that size nothing
LONGEST = 1 << 20  # tokens; tokenizers without a limit name a far larger number


def is_model(path: Path) -> bool:
    return os.path.isfile(path / "config.json")


def model(path: Path, adapter: Path | None = None) -> LibraryModel:
    """Load the classifier of a folder, in float32.

    Args:
        adapter: the folder of an adapter that is added to it. Its own head and its own tokenizer then come first.

    Raises:
        InputError: transformers is missing, the model is not a classifier of one class per row, it needs code, or
            weights are missing.
    """
    fix = "pip install transformers pillow, or pass --arch to load its weights into a model of yours"
    with refusing(ImportError, f"{path} is a Hugging Face model, and transformers is not installed", fix):
        import transformers
    transformers.utils.logging.disable_progress_bar()
    with _loading(path, "check its config.json"):
        return _model(path, transformers, adapter)


def _model(path: Path, transformers: Any, adapter: Path | None) -> LibraryModel:
    config = _config(path)
    name = next(iter(config.architectures or []), "")
    changes = adapters.tensors(adapter) if adapter else {}
    if (trained := adapters.classes(changes)) is not None:
        mapping = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
        if not name.endswith(HEADS) and type(config) in mapping:  # a language model under a head of the adapter
            name = mapping[type(config)].__name__
        if trained != config.num_labels:
            config.num_labels = trained
    with _loading(path, "check the installation: torchvision must be made for this torch, or not be there"):
        architecture = getattr(transformers, name, None)
    if architecture is None and name.endswith((*HEADS, *POSITIONS)):
        problem = f"{path} is a '{name}', which transformers {transformers.__version__} does not have"
        raise InputError(problem, _of_version(path, "check its config.json"))
    if architecture is None or not name.endswith((*HEADS, *POSITIONS)):
        heads = ", ".join(f"...{head}" for head in (*HEADS, *POSITIONS[:-1]))
        raise InputError(f"{path} is a '{name or 'model without a head'}', not a classifier", f"pass one of {heads}")
    _refuse_problem(path, config)
    asked = config._attn_implementation
    if usable.fused(asked):  # kernels without float32, or without derivatives: transformers chooses another
        config._attn_implementation = None
    _refuse_missing(path, architecture, config)
    packed = getattr(config, "quantization_config", None) is not None
    fix = f"install what it names, or {usable.UNQUANTISED}" if packed else "check its config.json"
    with _loading(path, fix):
        network, stored, report = _weights(path, architecture, config, bool(changes))
    lacking = [*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])]
    given = {key.replace(".modules_to_save.", ".") for key in changes}
    missing = [k for k in lacking if not k.endswith("position_ids") and f"base_model.model.{k}" not in given]
    if missing:
        fix = "save the whole model: model.save_pretrained(folder)"
        problem_text = f"{path} lacks {len(missing)} weights of {name}, first '{missing[0]}'"
        raise InputError(f"{problem_text}: transformers would draw them at random", fix)
    notes = [f"weights stored as {dtype} were converted to float32" for dtype in sorted(stored - {"float32"})]
    if usable.fused(asked):
        chosen = getattr(network.config, "_attn_implementation", "another form")
        notes.append(f"config.json names {asked}; attention runs in {chosen} instead")
    if report["unexpected_keys"]:
        left = sorted(report["unexpected_keys"])
        notes.append(f"{len(left)} tensors that {name} does not have were left out, such as '{left[0]}'")
    taken = inspect.signature(network.forward).parameters
    home = path
    if adapter:
        network = adapters.added(network, adapter, changes)
        own = any((adapter / file).is_file() for file in TOKENIZERS) or processor.description(adapter)
        home = adapter if own else path
        free = sum(p.numel() for p in network.parameters() if p.requires_grad)
        notes.append(f"{free:,} parameters can be trained: those of the adapter")
    whole = network if getattr(network, "is_quantized", False) else network.float()  # packed weights have no such form
    words = name.endswith((*CAUSAL, "ForMaskedLM"))  # whose classes are the words of a vocabulary
    preparation = dataclasses.replace(_own(home, config, network, taken), next_token=name.endswith(CAUSAL))
    return LibraryModel(name, None if words else _labels(config), preparation, notes, model=whole)


def _config(path: Path) -> Any:
    """Read the configuration, as one of the classes of transformers itself.

    Raises:
        InputError: it is damaged, or needs code that transformers does not have, or settings that it would ignore.
    """
    import transformers

    content = processor.read_json(path / "config.json")
    processor.refuse_code(path / "config.json", content)
    _refuse_huge(path, content)
    fix = "build it in code of yours: --arch-file net.py:make" if "auto_map" in content else "check its config.json"
    config, here = _made("AutoConfig", path, fix), transformers.__version__
    old = _numbers(here) < (5,) and "rope_theta" not in content
    rope = content.get("rope_parameters") if old else None  # which an old version ignores without a word
    if rope and (rope.get("rope_theta"), rope.get("rope_type")) != (getattr(config, "rope_theta", None), "default"):
        problem = f"{path / 'config.json'} has rope_parameters, which transformers {here} ignores"
        raise InputError(problem, _of_version(path, "install transformers 5"))
    return config


def _made(kind: str, path: Path, fix: str) -> Any:
    """Load a class of transformers from a folder. Nothing is downloaded, and no code in the folder is run."""
    import transformers

    with _loading(path, fix):
        return getattr(transformers, kind).from_pretrained(path, local_files_only=True, trust_remote_code=False)


@contextlib.contextmanager
def _loading(path: Path, fix: str) -> Iterator[None]:
    """Refuse what transformers cannot load inside the block. Its warnings are hidden, because each is either refused or
    reported as a note."""
    from transformers.utils import logging

    def problem(error: BaseException) -> str:
        return f"{path} cannot be loaded by transformers ({str(error).strip().partition(chr(10))[0][:200]})"

    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with refusing(_failures(), problem, _of_version(path, fix)), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.set_verbosity(before)


def _of_version(path: Path, fix: str) -> str:
    """Add to `fix` the version of transformers that wrote a folder, if it is a newer one, or an older major version."""
    import transformers

    here, written = transformers.__version__, ""
    with contextlib.suppress(InputError):  # a damaged file, which is refused where it is read
        written = str(processor.read_json(path / "config.json").get("transformers_version"))
        written = written if re.fullmatch(r"[0-9]{1,4}(\.[0-9a-z]{1,9}){1,4}", written) else ""
        # a class of tokenizers that only version 5 has, also where it was saved beside the model of an older one
        if processor.read_json(path / "tokenizer_config.json").get("tokenizer_class") == "TokenizersBackend":
            written = max(written, "5.0.0", key=_numbers)
    was = f"it was written by transformers {written}, and {here} is installed"
    if _numbers(written) > _numbers(here):
        return f"{was}: pip install -U 'transformers>={written}'; if that does not help, {fix}"
    if written and _numbers(written)[0] < _numbers(here)[0]:
        return f"{fix}; {was}: if the old one loads it, save it again with that, as safetensors"
    return fix


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version, (0,) for none."""
    return tuple(map(int, re.findall(r"\d+", version)[:3])) or (0,)


def _failures() -> tuple[type[BaseException], ...]:
    """The exceptions that transformers and the libraries below it raise for damaged files."""
    from huggingface_hub import errors
    from safetensors import SafetensorError

    return (*FAILURES, MemoryError, SafetensorError, getattr(errors, "StrictDataclassError", SafetensorError))


def _stored_bytes(path: Path) -> int:
    """Count the bytes of the weights in a folder."""
    return sum(file.stat().st_size for file in path.iterdir() if file.suffix in (".safetensors", ".bin", ".onnx"))


def _refuse_huge(path: Path, config: Any, name: str = "config.json") -> None:
    """Refuse sizes that the weights in the folder cannot have, before anything of that size is allocated.

    Raises:
        InputError: more layers, or a larger size, than the bytes of the weights allow.
    """
    for key, value in config.items() if isinstance(config, Mapping) else ():
        within = f"{name}: {key}"
        _refuse_huge(path, value, within)
        numbers = value if isinstance(value, list) else [value]
        whole = [n for n in numbers if isinstance(n, int | float) and not isinstance(n, bool)]
        if not whole or NO_SIZE.search(str(key)):
            continue
        stored = _stored_bytes(path)
        most = max(LAYERS, stored // 1000) if OF_LAYERS.search(str(key)) else max(SIZES, stored)
        if not all(abs(n) <= most for n in whole):
            problem = f"{path / name}: {key} is {str(value)[:40]}, and its weights have {stored:,} bytes"
            raise InputError(problem, "check its config.json, or fetch all of its weights")


def _refuse_missing(path: Path, architecture: Any, config: Any) -> None:
    """Refuse a configuration with far more parameters than the folder has bytes of weights.

    Raises:
        InputError: it has.
    """
    asked, stored = 0, _stored_bytes(path)
    with contextlib.suppress(*_failures()), torch.device("meta"), torch.random.fork_rng(devices=[]):
        asked = sum(p.numel() for p in architecture(config).parameters())
    if asked > 4 * stored + SIZES:
        problem = f"{path / 'config.json'} asks for {asked:,} parameters, and its weights have {stored:,} bytes"
        raise InputError(problem, "check its config.json, or fetch all of its weights")


def _weights(
    path: Path, architecture: Any, config: Any, replaced: bool
) -> tuple[nn.Module, set[str], Mapping[str, Any]]:
    """Load the model in float32; also the stored types of its weights, and the loading report of transformers.

    Args:
        replaced: whether an adapter may have weights of other sizes, for the same names.
    """
    from calibcli.networks.checkpoint import containers, weights

    options = {"config": config, "torch_dtype": torch.float32, "output_loading_info": True}
    if replaced:
        options["ignore_mismatched_sizes"] = True  # which are reported, and refused where the adapter lacks them
    if any(path.glob("*.safetensors")):
        network, report = architecture.from_pretrained(path, local_files_only=True, use_safetensors=True, **options)
        return network, _stored(path), report
    contents = containers.read(path, trust=False)
    tensors = weights.main(weights.tables(contents.tensors, str(path)))
    stored = {str(t.dtype).removeprefix("torch.") for t in tensors.values() if t.is_floating_point()}
    network, report = architecture.from_pretrained(None, state_dict=tensors, **options)
    return network, stored, report


def _stored(path: Path) -> set[str]:
    """Return the floating-point types of the tensors in safetensors files."""
    kinds = {tensor["dtype"] for part in path.glob("model*.safetensors") for tensor in safetensors.described(part)}
    return {safetensors.FLOATS[kind] for kind in kinds & safetensors.FLOATS.keys()}


def _refuse_problem(path: Path, config: Any) -> None:
    """Refuse a head whose outputs are not logits of mutually exclusive classes.

    Raises:
        InputError: the head is multi-label, or a regression.
    """
    problem = getattr(config, "problem_type", None)
    if problem == "multi_label_classification":
        fix = "record sigmoid(logits) with targets (N, L) yourself: calib metrics FILE --multilabel"
        raise InputError(f"{path} has a multi-label head (problem_type multi_label_classification)", fix)
    if problem == "regression":
        raise InputError(f"{path} predicts numbers (problem_type regression), not classes", "pass a classifier")


def _labels(config: Any) -> list[str] | None:
    """Return the class names, or None if there are none. A single logit is that of class 1; both classes are named."""
    labels = [str(config.id2label[i]) for i in sorted(config.id2label)]
    if all(label == f"LABEL_{i}" for i, label in enumerate(labels)):
        return None
    return [f"not {labels[0]}", labels[0]] if len(labels) == 1 else labels


def beside(path: Path, model: nn.Module, taken: Collection[str]) -> tuple[Preparation, list[str] | None]:
    """Read how the folder of a graph with inputs of these names prepares rows, and the class names."""
    fix = "pip install transformers pillow, or move the graph out of the folder to go without them"
    with refusing(ImportError, f"{path} has files of transformers, which is not installed", fix):
        import transformers  # noqa: F401
    with _loading(path, "check its config.json"):
        config = _config(path)
        _refuse_problem(path, config)
        return _own(path, config, model, taken), _labels(config)


def _own(path: Path, config: Any, model: nn.Module, taken: Collection[str]) -> Preparation:
    """Return how the folder says that images and texts become inputs."""
    head = next(iter(config.architectures or []), "")
    pictures: Callable[[], PicturePreparation] | None = None
    texts: Callable[[], TextPreparation] | None = None
    if processor.description(path):
        pictures = functools.partial(_pictures, path, config)
    elif head.endswith(("ForImageClassification", "ForSemanticSegmentation")):
        fix = "put it there (AutoImageProcessor.save_pretrained), or pass --mean, --std, --resize and --crop"
        pictures = functools.partial(_lacking, path, "preprocessor_config.json, which says how to read pictures", fix)
    if any((path / name).is_file() for name in TOKENIZERS):
        texts = functools.partial(_texts, path, config, model, taken)
    elif head.endswith(("ForSequenceClassification", "ForMultipleChoice")):
        fix = "put it there (AutoTokenizer.save_pretrained), or pass input_ids and attention_mask as arrays"
        texts = functools.partial(_lacking, path, "tokenizer", fix)
    return Preparation(pictures, texts)


def _lacking(path: Path, missing: str, fix: str) -> NoReturn:
    raise InputError(f"{path} has no {missing}", fix)


def _pictures(path: Path, config: Any) -> PicturePreparation:
    """Load the image processor of a folder. As in the pipelines of transformers, images are first rotated as EXIF says
    and converted to colour."""
    fix = "pip install pillow torchvision, or say what it does: --mean, --std, --resize, --crop"
    image_processor = _made("AutoImageProcessor", path, fix)

    def make(picture: Any) -> NDArray[np.float32]:
        with warnings.catch_warnings(action="ignore"):
            rows = image_processor(images=[picture], return_tensors="pt")["pixel_values"]
        return np.asarray(rows[0], np.float32)

    name = f"{type(image_processor).__name__} of transformers"
    mode = "L" if getattr(config, "num_channels", 3) == 1 else "RGB"
    return PicturePreparation(name, make, mode, upright=True, steps=processor.words(image_processor.to_dict()))


def _texts(path: Path, config: Any, model: nn.Module, taken: Collection[str]) -> TextPreparation:
    """Load the tokenizer of a folder. Rows are padded on the right, where a mask hides the padding; XLNet, which reads
    the last token of a row, is padded on the left."""
    if next(iter(config.architectures or [""])).endswith("ForMultipleChoice"):
        fix = "pass input_ids (N, choices, tokens) and attention_mask as arrays"
        raise InputError(f"{path} takes a text for every choice, which calib does not tokenize", fix)
    tokenizer = _made("AutoTokenizer", path, "check its tokenizer files")
    with _loading(path, "check its config.json and its tokenizer files"):
        _refuse_empty(path, tokenizer)
        longest = _longest(tokenizer, config, model)

    def encode(texts: Sequence[str], second: Sequence[str] | None, cut: bool) -> Mapping[str, list[list[int]]]:
        limits = {"truncation": True, "max_length": longest} if cut else {"truncation": False}
        pair = [list(part) for part in (texts, second) if part is not None]
        encoded = tokenizer(*pair, padding=False, verbose=False, **limits)
        return {name: values for name, values in encoded.items() if name in taken}

    def settle(used: NDArray[Any], last: NDArray[Any]) -> int:
        """Choose the padding token: the model's, else the tokenizer's, else one that no row has, or that no row ends
        with, because heads look for the last token before the padding."""
        occurring, chosen = set(used.tolist()), getattr(config, "pad_token_id", None)
        if chosen is None and tokenizer.pad_token_id not in occurring:
            chosen = tokenizer.pad_token_id
        if chosen is None:
            words, ends = range(int(getattr(config, "vocab_size", len(occurring)))), set(last.tolist())
            no_end = next(i for i in range(len(ends) + 1) if i not in ends)
            chosen = next((i for i in words if i not in occurring), no_end)
        config.pad_token_id = getattr(model, "config", config).pad_token_id = chosen
        return int(chosen)

    pad = {"token_type_ids": int(getattr(tokenizer, "pad_token_type_id", 0) or 0)}
    left = config.model_type == "xlnet"
    empty = frozenset(int(i) for i in tokenizer.all_special_ids if i is not None)
    return TextPreparation(f"{type(tokenizer).__name__} of transformers", encode, longest, pad, settle, left, empty)


def _refuse_empty(path: Path, tokenizer: Any) -> None:
    """Refuse a tokenizer without a vocabulary.

    If the vocabulary file is missing, the library builds a tokenizer of special tokens alone, and all texts become
    equal.

    Raises:
        InputError: it has no words, or no token for unknown words.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = tokenizer.get_vocab() if backend is None else backend.get_vocab(with_added_tokens=False)
    unknown = getattr(getattr(backend, "model", None), "unk_token", None)
    if set(words) <= set(tokenizer.all_special_tokens):
        raise InputError(f"{path} has a tokenizer without its vocabulary", VOCABULARY)
    if isinstance(unknown, str) and unknown not in words:
        problem = f"{path} has a tokenizer whose vocabulary of {len(words):,} entries lacks '{unknown}'"
        raise InputError(problem, VOCABULARY)


def _longest(tokenizer: Any, config: Any, model: nn.Module) -> int | None:
    """Return the most tokens that tokenizer, configuration and learned positions all allow; None for no limit."""
    candidates = [tokenizer.model_max_length, getattr(config, "max_position_embeddings", None)]
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in ("position_embeddings", "wpe"):
            skipped = 0 if module.padding_idx is None else module.padding_idx + 1  # RoBERTa counts from there
            candidates.append(module.num_embeddings - skipped)
    limits = [int(n) for n in candidates if isinstance(n, int | float) and 0 < n < LONGEST]
    return min(limits) if limits else None
