"""Architectures whose blocks attend from token to token: one network of each stands for it.

The list is fixed: docs/coverage.md counts how many of these have a token map, and names the others.
Not on it: attention over channels alone (XCiT's blocks, EdgeNeXt), linear attention (MobileViT v2,
EfficientViT of MIT, CoaT), gates, state spaces, and networks that mix tokens by fixed weights.
"""

__all__ = ["NETWORKS"]

TIMM = """
    test_vit test_vit_relpos vit_tiny_r_s16_p8_224 samvit_base_patch16 deit_tiny_patch16_224
    deit_tiny_distilled_patch16_224 beit_base_patch16_224 eva02_tiny_patch14_224
    naflexvit_so150m2_patch16_reg1_gap convit_tiny cait_s24_224 visformer_tiny levit_128
    efficientformer_l1 swin_tiny_patch4_window7_224 swin_s3_tiny_224 swinv2_tiny_window16_256
    swinv2_cr_tiny_224 coatnet_pico_rw_224 resnet50_clip hiera_tiny_224 hieradet_small
    caformer_s18 nest_tiny nextvit_small test_maxvit twins_svt_small twins_pcpvt_small
    mobilenetv4_hybrid_medium tiny_vit_5m_224 fastvit_sa12 pvt_v2_b0 pit_xs_224 mobilevit_xxs
    mvitv2_tiny gcvit_xxtiny davit_tiny efficientvit_m0 volo_d1_224 efficientformerv2_s0
    crossvit_tiny_240 tnt_s_legacy_patch16_224 iformer_t lowformer_b0 shvit_s1 vitamin_small_224
    botnet26t_256 halonet26t
"""
TRANSFORMERS = """
    ViT:sdpa ViTMSN:sdpa DeiT:sdpa Beit:sdpa Data2VecVision:sdpa Dinov2:sdpa
    Dinov2WithRegisters:sdpa IJepa:sdpa DINOv3ViTModel:sdpa CLIP:sdpa MetaClip2:sdpa Siglip:sdpa
    Aimv2VisionModel:sdpa Swin:sdpa Swinv2:eager DonutSwin:eager Levit:eager Hiera:eager
    ViTMAEModel:sdpa Segformer:sdpa Pvt:eager PvtV2:eager MobileViT:eager Cvt:eager
"""
VIT_PYTORCH = """
    vit simple_vit simple_vit_with_register_tokens simple_vit_with_patch_dropout
    simple_vit_with_qk_norm simple_vit_with_fft simple_vit_with_value_residual
    simple_vit_with_hyper_connections simple_flash_attn_vit simple_vit_attn_residual
    simple_vit_orthog_residual_update simple_vit_with_relative_proj_pos_bias
    simple_vit_with_sparse_gating simple_vit_with_specialized_cls simple_uvit deepvit
    vit_with_patch_dropout vit_with_patch_merger vit_with_keel_post_ln vit_detpool
    vit_for_small_dataset parallel_vit normalized_vit looped_vit cait levit cct jumbo_vit pit t2t
    rvt cvt cross_vit nest max_vit mobile_vit regionvit scalable_vit look_vit ats_vit
"""
NETWORKS = [
    *(f"timm:{name}" for name in TIMM.split()),
    *(f"torchvision:{name}" for name in ("vit_b_16", "swin_t", "maxvit_t")),
    *(f"transformers:{name}" for name in TRANSFORMERS.split()),
    *(f"vit-pytorch:{name}" for name in VIT_PYTORCH.split()),
]
