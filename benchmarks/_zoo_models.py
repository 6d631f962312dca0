"""Networks of torchvision, transformers and timm with random weights, as small as they can be configured."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

K = 3
Made = tuple[nn.Module, Any]  # a network and its inputs
Maker = Callable[[], Made]


def images(size: int, rows: int = 4, channels: int = 3) -> Tensor:
    return torch.randn(rows, channels, size, size)


def tokens(words: int = 40, length: int = 8, rows: int = 4) -> dict[str, Tensor]:
    """Token ids and masks, of rows of unequal lengths."""
    mask = (torch.arange(length) < torch.arange(length, length - rows, -1)[:, None]).long()
    return {"input_ids": torch.randint(3, words, (rows, length)) * mask, "attention_mask": mask}


def thin(made: tuple[Any, Any], by: int) -> Made:
    """A convolutional network that has one channel for every `by` it had, and batch norms that have met such inputs."""
    model, inputs = made
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            taken = module.in_channels if module.groups > 1 else max(module.in_channels, 3 * by)  # of RGB all
            weight = module.weight[: module.out_channels // by, : max(1, taken // module.groups // by)]
            scale = (module.weight[0].numel() / weight[0].numel()) ** 0.5  # signals keep their size
            module.weight = nn.Parameter(scale * weight.detach().clone())
            module.out_channels, module.in_channels = len(weight), taken // by
            module.groups = max(1, module.groups // by)
            if module.bias is not None:
                module.bias = nn.Parameter(module.bias.detach()[: len(weight)].clone())
        elif isinstance(module, nn.Linear):
            module.in_features //= by
            module.weight = nn.Parameter(by**0.5 * module.weight.detach()[:, : module.in_features].clone())
        elif isinstance(module, nn.BatchNorm2d):
            module.num_features //= by
            for name in ("weight", "bias", "running_mean", "running_var"):
                getattr(module, name).data = getattr(module, name).data[: module.num_features].clone()
            module.momentum = None
    model.train()(torch.randn(16, *inputs.shape[1:]))
    return model, inputs


def torchvision() -> dict[str, Maker]:
    """Every family of classifiers of torchvision."""
    from torchvision import models as m
    from torchvision.models import convnext, efficientnet, mobilenetv3, regnet, resnet, swin_transformer, vgg, video
    from torchvision.ops.misc import Permute  # noqa: F401 (declares what the rest needs)

    def cut(model: Any, *classifier: nn.Module) -> Any:
        model.classifier = nn.Sequential(*classifier)
        return model

    def flat(inputs: int) -> list[nn.Module]:
        return [nn.Dropout(), nn.Linear(inputs, 16), nn.ReLU(True), nn.Linear(16, K)]

    def small_vgg(norm: bool) -> Any:
        return cut(vgg.VGG(vgg.make_layers([8, "M", 16, "M"], norm), num_classes=K, init_weights=False), *flat(784))

    def swin(**options: Any) -> Any:
        shape: dict[str, Any] = {"patch_size": [2, 2], "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2]}
        return swin_transformer.SwinTransformer(**shape, window_size=[4, 4], num_classes=K, **options)

    layer, conf = convnext.CNBlockConfig, mobilenetv3.InvertedResidualConfig
    mb, fused = efficientnet.MBConvConfig, efficientnet.FusedMBConvConfig
    small, last = [1, 1, 1, 1], {"num_classes": K, "last_channel": 16}
    v2 = {
        "block": swin_transformer.SwinTransformerBlockV2, "downsample_layer": swin_transformer.PatchMergingV2
    }  # fmt: skip
    conv3d, stem = [video.resnet.Conv3DSimple] * 4, video.resnet.BasicStem
    bare = {"num_classes": K, "aux_logits": False, "init_weights": False}
    return {
        "alexnet": lambda: (cut(m.AlexNet(K), *flat(9216)), images(64)),
        "convnext": lambda: (m.ConvNeXt([layer(8, 16, 1), layer(16, None, 1)], num_classes=K), images(32)),
        "densenet": lambda: (m.DenseNet(4, (2, 2), 8, bn_size=2, num_classes=K), images(32)),
        "efficientnet": lambda: (
            m.EfficientNet([mb(1, 3, 1, 8, 8, 1, 1, 1), mb(4, 3, 2, 8, 16, 1, 1, 1)], 0.2, **last), images(32)
        ),
        "efficientnet_v2": lambda: (
            m.EfficientNet([fused(1, 3, 1, 8, 8, 1), fused(4, 3, 2, 8, 16, 1)], 0.2, **last), images(32)
        ),
        "googlenet": lambda: (m.googlenet(**bare), images(64, 2)),
        "inception_v3": lambda: thin((m.inception_v3(**bare), images(80, 2)), 8),
        "maxvit": lambda: (m.MaxVit((32, 32), 8, 4, [8, 16], [1, 1], 4, 0.0, num_classes=K), images(32)),
        "mnasnet": lambda: (m.MNASNet(0.1, K), images(64)),
        "mobilenet_v2": lambda: (m.MobileNetV2(K, 0.1, [[1, 8, 1, 1], [3, 16, 2, 2]]), images(32)),
        "mobilenet_v3": lambda: (
            m.MobileNetV3(
                [conf(8, 3, 16, 8, True, "RE", 2, 1, 1), conf(8, 3, 24, 16, False, "HS", 1, 1, 1)], 16, num_classes=K
            ),
            images(32),
        ),
        "regnet": lambda: (
            m.RegNet(regnet.BlockParams.from_init_params(4, 8, 8.0, 2.0, 8, 0.25), num_classes=K, stem_width=8),
            images(32),
        ),
        "resnet": lambda: (m.ResNet(resnet.BasicBlock, small, K), images(32)),
        "resnext": lambda: (m.ResNet(resnet.Bottleneck, small, K, groups=4, width_per_group=4), images(32)),
        "shufflenet_v2": lambda: (m.ShuffleNetV2([2, 2, 2], [8, 16, 32, 64, 64], K), images(64)),
        "squeezenet": lambda: (m.SqueezeNet("1_1", K), images(64)),
        "swin": lambda: (swin(), images(32)),
        "swin_v2": lambda: (swin(**v2), images(32)),
        "vgg": lambda: (small_vgg(False), images(32)),
        "vgg_bn": lambda: (small_vgg(True), images(32)),
        "vit": lambda: (m.VisionTransformer(16, 8, 2, 2, 16, 24, num_classes=K), images(16)),
        "video_resnet": lambda: (
            video.resnet.VideoResNet(video.resnet.BasicBlock, conv3d, small, stem, K), torch.randn(2, 3, 4, 24, 24)
        ),
        "swin3d": lambda: (
            video.SwinTransformer3d([2, 4, 4], 8, [2, 1], [2, 2], [2, 4, 4], num_classes=K),
            torch.randn(2, 3, 4, 32, 32),
        ),
    }  # fmt: skip


TEXT: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 16, "num_labels": K, "pad_token_id": 0,
}  # fmt: skip
PICTURE: dict[str, Any] = {**TEXT, "image_size": 16, "patch_size": 8}


def transformers() -> dict[str, Maker]:
    """Usual classifiers of transformers."""
    import transformers as t

    def text(name: str, **options: Any) -> Made:
        return _of(t, name, "ForSequenceClassification", {**TEXT, **options}), tokens()

    def picture(name: str, size: int = 16, **options: Any) -> Made:
        made = _of(t, name, "ForImageClassification", {**PICTURE, "image_size": size, **options})
        return made, {"pixel_values": images(size)}

    def sound(name: str, head: str, inputs: Tensor, **options: Any) -> Made:
        return _of(t, name, f"For{head}Classification", {**TEXT, **options}), {"input_values": inputs}

    def joint(name: str) -> Made:
        config = getattr(t, f"{name}Config")(text_config=words, vision_config=vision, num_labels=K)
        return getattr(t, f"{name}ForImageClassification")(config), {"pixel_values": images(16)}

    wave = {
        "conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 6), "num_conv_pos_embedding_groups": 2,
        "num_conv_pos_embeddings": 4, "classifier_proj_size": 8, "mask_time_prob": 0.0,
    }  # fmt: skip
    heads: dict[str, Any] = {"num_key_value_heads": 1, "head_dim": 6}
    swin = {
        "size": 32, "patch_size": 4, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4,
        "num_attention_heads": None, "num_hidden_layers": None, "hidden_size": None,
    }  # fmt: skip
    next_ = {"size": 32, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "patch_size": 4}
    vision = {k: v for k, v in PICTURE.items() if k not in ("num_labels", "vocab_size", "pad_token_id")}
    words = {k: v for k, v in TEXT.items() if k != "num_labels"}
    return {
        "bert": lambda: text("Bert"),
        "distilbert": lambda: text("DistilBert", dim=12, n_layers=2, n_heads=2, hidden_dim=16),
        "roberta": lambda: text("Roberta"),
        "albert": lambda: text("Albert", embedding_size=8),
        "electra": lambda: text("Electra", embedding_size=8),
        "mpnet": lambda: text("MPNet"),
        "deberta": lambda: text("Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
        "deberta_v2": lambda: text("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"]),
        "modernbert": lambda: text("ModernBert", global_attn_every_n_layers=2, local_attention=4),
        "xlnet": lambda: text("XLNet", d_model=12, n_layer=2, n_head=2, d_inner=16),
        "gpt2": lambda: text("GPT2", n_embd=12, n_layer=2, n_head=2, n_positions=16),
        "opt": lambda: text("OPT", ffn_dim=16, word_embed_proj_dim=12),
        "bloom": lambda: text("Bloom", n_layer=2, n_head=2),
        "llama": lambda: text("Llama", **heads),
        "mistral": lambda: text("Mistral", **heads),
        "qwen2": lambda: text("Qwen2", **heads),
        "gemma": lambda: text("Gemma", **heads),
        "t5": lambda: _ending(text(
            "T5", d_model=12, d_kv=6, d_ff=16, num_layers=2, num_heads=2, eos_token_id=2, decoder_start_token_id=0
        )),
        "bart": lambda: _ending(text(
            "Bart", d_model=12, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=16,
            decoder_attention_heads=2, decoder_ffn_dim=16, eos_token_id=2,
        )),
        "vit": lambda: picture("ViT"),
        "deit": lambda: picture("DeiT"),
        "beit": lambda: picture("Beit", use_relative_position_bias=True),
        "swin": lambda: picture("Swin", **swin),
        "swin_v2": lambda: picture("Swinv2", **swin),
        "convnext": lambda: picture("ConvNext", **next_),
        "convnext_v2": lambda: picture("ConvNextV2", **next_),
        "resnet": lambda: picture("ResNet", 32, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
        "dinov2": lambda: picture("Dinov2"),
        "mobilevit": lambda: picture(
            "MobileViT", 64, hidden_sizes=[8, 12, 16], neck_hidden_sizes=[4, 4, 8, 8, 12, 12, 16], patch_size=2
        ),
        "segformer": lambda: picture(
            "Segformer", 32, hidden_sizes=[4, 4, 8, 8], depths=[1] * 4, decoder_hidden_size=8,
            num_attention_heads=[1, 1, 2, 2],
        ),
        "levit": lambda: picture(
            "Levit", 64, hidden_sizes=[8] * 3, num_attention_heads=[2] * 3, depths=[1] * 3, key_dim=[4] * 3,
            patch_size=16,
        ),
        "poolformer": lambda: picture("PoolFormer", 32, hidden_sizes=[4, 8, 8, 8], depths=[1] * 4),
        "clip": lambda: joint("CLIP"),
        "siglip": lambda: joint("Siglip"),
        "wav2vec2": lambda: sound("Wav2Vec2", "Sequence", torch.randn(4, 400), **wave),
        "hubert": lambda: sound("Hubert", "Sequence", torch.randn(4, 400), **wave),
        "ast": lambda: sound(
            "AST", "Audio", torch.randn(4, 20, 16), max_length=20, num_mel_bins=16, patch_size=8, frequency_stride=8,
            time_stride=8,
        ),
    }  # fmt: skip


def _of(library: Any, name: str, head: str, options: dict[str, Any]) -> nn.Module:
    """A network with the options that its configuration knows."""
    config = getattr(library, f"{name}Config")
    known = set(vars(config())) | set(getattr(config, "attribute_map", {})) | {"num_labels", "decoder_start_token_id"}
    given = {k: v for k, v in options.items() if k in known and v is not None}
    model: nn.Module = getattr(library, f"{name}{head}")(config(**given))
    return model


def _ending(made: Made) -> Made:
    """Rows that end with the token that Bart looks for."""
    made[1]["input_ids"][:, -1] = 2
    made[1]["attention_mask"][:] = 1
    return made


# one network of each family of timm

TOKENS: dict[str, Any] = {"img_size": 32, "depth": 2, "embed_dim": 16, "num_heads": 2}
WINDOWS: dict[str, Any] = {"depths": (1, 1), "embed_dim": 8, "num_heads": (1, 1, 2, 2)}
STAGES: dict[str, Any] = {"depths": (1, 1, 1, 1), "embed_dims": (8, 8, 16, 16)}
SMALL: dict[str, tuple[str, int, dict[str, Any]]] = {
    "beit": ("beit_base_patch16_224", 32, {**TOKENS}),
    "byoanet": ("botnet26t_256", 64, {"img_size": 64, "width_factor": 0.125}),
    "byobnet": ("test_byobnet", 32, {"img_size": 32}),
    "cait": ("cait_xxs24_224", 32, {**TOKENS}),
    "coat": ("coat_tiny", 32, {"img_size": 32, "serial_depths": (1, 1, 1, 1), "parallel_depth": 1}),
    "convit": ("convit_tiny", 32, {**TOKENS}),
    "convmixer": ("convmixer.ConvMixer", 32, {"dim": 16, "depth": 2, "kernel_size": 7, "patch_size": 7}),
    "convnext": ("test_convnext", 32, {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}),
    "cpubone": ("cpubone_nano", 32, {"width_list": [4, 8, 16, 16, 16], "head_widths": (16, 16)}),
    "crossvit": ("crossvit_tiny_240", 48, {"img_size": 48, "img_scale": (1, 2 / 3), "embed_dim": (8, 16),
        "num_heads": (2, 2), "depth": ((1, 1, 0),)}),
    "csatv2": ("csatv2", 64, {"depths": (2, 2, 2, 2), "dims": (8, 8, 16)}),
    "cspnet": ("cs3darknet_focus_s", 32, {}),
    "cspnext": ("cspnext_tiny", 32, {"channels": (8, 16, 16, 16)}),
    "davit": ("davit_tiny", 32, {**STAGES, "num_heads": (1, 1, 2, 2)}),
    "deit": ("deit_tiny_patch16_224", 32, {**TOKENS}),
    "densenet": ("densenet121", 32, {"block_config": (2, 2, 2, 2), "growth_rate": 8}),
    "dla": ("dla46x_c", 32, {"cardinality": 1, "base_width": 4}),
    "dpn": ("dpn48b", 32, {"k_sec": (1, 1, 1, 1), "inc_sec": (4, 8, 8, 8), "k_r": 16, "groups": 2}),
    "edgenext": ("edgenext_xx_small", 32, {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}),
    "efficientformer": ("efficientformer_l1", 224, {"img_size": 224, **STAGES}),
    "efficientformer_v2": ("efficientformerv2_s0", 32, {"img_size": 32, **STAGES}),
    "efficientnet": ("test_efficientnet", 32, {"channel_multiplier": 0.1}),
    "efficientvim": ("efficientvim_m1", 32, {"depths": (1, 1, 1), "embed_dim": (16, 16, 32)}),
    "efficientvit_mit": ("efficientvit_b0", 32, {"depths": (1, 1)}),
    "efficientvit_msra": ("efficientvit_m0", 32, {"img_size": 32, "embed_dim": (16, 32, 32), "key_dim": (4,) * 3,
        "depth": (1,) * 3, "num_heads": (2,) * 3}),
    "eva": ("eva02_tiny_patch14_224", 32, {**TOKENS}),
    "fasternet": ("fasternet_t0", 32, {"depths": (1, 1), "embed_dim": 16}),
    "fastvit": ("fastvit_t8", 32, {"layers": (1, 1, 1, 1), "embed_dims": (8, 8, 16, 16)}),
    "focalnet": ("focalnet.FocalNet", 32, {"depths": (1, 1), "embed_dim": 8, "focal_levels": (2, 2),
        "focal_windows": (3, 3)}),
    "gcvit": ("gcvit_xxtiny", 32, {"img_size": 32, "embed_dim": 16}),
    "gemma4_vit": ("gemma4_vit_167m", 32, {**TOKENS}),
    "ghostnet": ("ghostnet_050", 32, {}),
    "hardcorenas": ("hardcorenas_b", 32, {}),
    "hgnet": ("hgnetv2_b0", 32, {"head_hidden_size": 32}),
    "hiera": ("hiera_tiny_224", 32, {"img_size": 32, "stages": (1, 1, 1, 1), "embed_dim": 16, "num_heads": 2}),
    "hieradet_sam2": ("sam2_hiera_tiny", 32, {"stages": (1, 1, 1, 1), "embed_dim": 16, "num_heads": 2}),
    "hrnet": ("hrnet_w18_small", 32, {"stem_width": 8}),
    "iformer": ("iformer_t", 32, {"dims": (8, 8, 16, 16)}),
    "inception_next": ("inception_next_atto", 32, {"depths": (1, 1), "dims": (8, 8, 16, 16)}),
    "inception_resnet_v2": ("inception_resnet_v2", 96, {}),
    "inception_v3": ("inception_v3", 96, {}),
    "inception_v4": ("inception_v4", 96, {}),
    "lcnetv2": ("lcnetv2_small", 32, {"depths": (1, 1, 1, 1)}),
    "levit": ("levit_128s", 32, {"img_size": 32, "embed_dim": (16,) * 3, "key_dim": 4, "num_heads": 2,
        "depth": (1,) * 3}),
    "lowformer": ("lowformer_b0", 32, {"width_list": [4, 8, 16, 16, 16], "depth_list": [0, 1, 1, 1, 1],
        "head_widths": (16, 16)}),
    "mambaout": ("test_mambaout", 32, {"depths": (1, 1), "dims": (8, 8, 16, 16)}),
    "maxxvit": ("maxvit_pico_rw_256", 32, {"img_size": 32, "depths": (1, 1, 1, 1), "stem_width": 8}),
    "metaformer": ("poolformerv2_s12", 32, {}),
    "mlp_mixer": ("mlp_mixer.MlpMixer", 32, {"img_size": 32, "num_blocks": 2, "embed_dim": 16}),
    "mobilenetv3": ("lcnet_035", 32, {}),
    "mobilenetv5": ("mobilenetv5_base", 32, {"channel_multiplier": 0.1, "num_features": 64}),
    "mobilevit": ("mobilevit_xxs", 32, {"img_size": 32, "width_factor": 0.25, "num_features": 64}),
    "naflexvit": ("naflexvit_base_patch16_parfac_gap", 32, {**TOKENS}),
    "nasnet": ("nasnetalarge", 32, {"stem_size": 8, "num_features": 384}),
    "nest": ("nest.Nest", 32, {"img_size": 32, "embed_dims": (8, 8, 16), "num_heads": (2,) * 3, "depths": (1,) * 3}),
    "nextvit": ("nextvit_small", 32, {"stem_chs": (8, 8, 8), "depths": (1, 1, 5, 1)}),
    "nfnet": ("test_nfnet", 32, {"depths": (1, 1), "width_factor": 0.25, "channels": (8, 16, 16, 16),
        "num_features": 64}),
    "pit": ("pit_ti_224", 32, {"img_size": 32, "base_dims": [8, 8, 8], "depth": [1, 1, 1], "heads": [1, 2, 2]}),
    "pnasnet": ("pnasnet5large", 32, {}),
    "pvt_v2": ("pvt_v2_b0", 32, {**STAGES, "num_heads": (1, 1, 2, 2)}),
    "qwen3_vit": ("qwen3_vit_88m", 32, {**TOKENS}),
    "rdnet": ("rdnet_tiny", 32, {"num_init_features": 16, "growth_rates": [8] * 7, "num_blocks_list": [1] * 7}),
    "regnet": ("regnetx_002", 32, {"stem_width": 8}),
    "repghost": ("repghostnet_050", 32, {}),
    "repvit": ("repvit_m1", 32, {"embed_dim": (8, 8, 16, 16), "depth": (1,) * 4}),
    "res2net": ("res2next50", 32, {"layers": (1, 1, 1, 1), "cardinality": 1, "base_width": 4}),
    "resnest": ("resnest14d", 32, {"channels": (8, 16, 16, 16), "stem_width": 8}),
    "resnet": ("resnet10t", 32, {"channels": (8, 16, 16, 16), "stem_width": 8}),
    "resnetv2": ("resnetv2_18", 32, {"layers": (1, 1, 1), "width_factor": 0.25, "channels": (8, 16, 16, 16)}),
    "rexnet": ("rexnet_100", 32, {"width_mult": 0.25}),
    "senet": ("legacy_seresnet18", 32, {"layers": (1, 1, 1, 1)}),
    "sequencer": ("sequencer2d_s", 32, {"img_size": 32, "layers": (1, 1, 1, 1), "embed_dims": (8, 8, 16, 16)}),
    "shvit": ("shvit_s1", 32, {"embed_dim": (16, 32, 48), "depth": (1,) * 3, "partial_dim": (4, 8, 12)}),
    "sknet": ("skresnet18", 32, {"layers": (1, 1, 1, 1), "channels": (8, 16, 16, 16)}),
    "starnet": ("starnet_s050", 32, {"depths": (1, 1)}),
    "swiftformer": ("swiftformer_xs", 32, {"img_size": 32, "layers": (1, 1, 1, 1), "embed_dims": (8, 8, 16, 16)}),
    "swin_transformer": ("swin_tiny_patch4_window7_224", 32, {"img_size": 32, **WINDOWS}),
    "swin_transformer_v2": ("swinv2_tiny_window8_256", 32, {"img_size": 32, **WINDOWS}),
    "swin_transformer_v2_cr": ("swinv2_cr_tiny_224", 32, {"img_size": 32, **WINDOWS}),
    "tiny_vit": ("tiny_vit_5m_224", 32, {**STAGES, "num_heads": (1, 1, 2, 2)}),
    "tnt": ("tnt_s_legacy_patch16_224", 32, {"img_size": 32, "depth": 2, "embed_dim": 24}),
    "tresnet": ("tresnet_m", 32, {"layers": (1, 1, 1, 1), "width_factor": 0.25}),
    "twins": ("twins_svt_small", 32, {"img_size": 32, **STAGES, "num_heads": (1, 1, 2, 2)}),
    "vgg": ("vgg.VGG", 32, {"cfg": [8, "M", 16, "M"], "mlp_ratio": 0.01}),
    "visformer": ("visformer_tiny", 32, {**TOKENS}),
    "vision_transformer": ("test_vit", 32, {**TOKENS}),
    "vision_transformer_hybrid": ("vit_tiny_r_s16_p8_224", 32, {**TOKENS}),
    "vision_transformer_relpos": ("test_vit_relpos", 32, {**TOKENS}),
    "vision_transformer_sam": ("samvit_base_patch16_224", 32, {**TOKENS}),
    "vitamin": ("vitamin_small_224", 32, {"img_size": 32, "depth": 2}),
    "volo": ("volo.VOLO", 32, {"img_size": 32, "layers": (1,) * 4, "embed_dims": (16, 32, 32, 32),
        "num_heads": (2,) * 4, "stem_hidden_dim": 8}),
    "vovnet": ("ese_vovnet19b_slim_dw", 32, {}),
    "xception": ("legacy_xception", 32, {}),
    "xception_aligned": ("xception_aligned.XceptionAligned", 32, {"block_cfg": [{"in_chs": 64, "out_chs": 32,
        "stride": 2}, {"in_chs": 32, "out_chs": 32, "stride": 1}], "preact": True}),
    "xcit": ("xcit_nano_12_p8_224", 32, {**TOKENS}),
}  # fmt: skip
"""Name, size of the pictures and options by family; module and class where the named one cannot be made smaller.
`deepseek_vit` starts at 412 M parameters and is left out."""

THIN = {"inception_resnet_v2": 8, "inception_v3": 8, "inception_v4": 8, "pnasnet": 6, "xception": 8}
"""Families of 20 to 86 M parameters without an option for their width: one channel for every so many.

As they are they have `-wide` in their names, and are measured when they are named.
"""


def timm() -> dict[str, Maker]:
    import timm as library

    def made(name: str, size: int, options: dict[str, Any]) -> Made:
        module, _, kind = name.partition(".")
        if not kind:
            return library.create_model(name, num_classes=K, **options), images(size, 2)
        network = getattr(importlib.import_module(f"timm.models.{module}"), kind)
        return network(num_classes=K, **options), images(size, 2)

    found: dict[str, Maker] = {family: lambda given=given: made(*given) for family, given in SMALL.items()}
    for family, by in THIN.items():
        found[f"{family}-wide"] = wide = found[family]
        found[family] = lambda wide=wide, by=by: thin(wide(), by)
    return {**found, "mvitv2": _mvitv2, "selecsls": _selecsls}


def _mvitv2() -> Made:
    from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

    small = MultiScaleVitCfg(depths=(1, 1, 1, 1), embed_dim=8)
    return MultiScaleVit(small, (64, 64), num_classes=K), images(64, 2)


def _selecsls() -> Made:
    from timm.models.selecsls import SelecSls, SelecSlsBlock

    blocks = [(32, 0, 8, 8, True, 2), (8, 8, 8, 16, False, 1)]
    small = {"block": SelecSlsBlock, "features": blocks, "head": [(16, 16, 3, 2)], "num_features": 16}
    return SelecSls({**small, "feature_info": []}, num_classes=K), images(32, 2)
