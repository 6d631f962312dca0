"""One network of each family of timm with random weights, with the options that make it small."""

from __future__ import annotations

import importlib
from typing import Any

from _zoo_models import K, Made, Maker, images, thin

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
