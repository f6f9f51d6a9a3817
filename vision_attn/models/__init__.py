"""Networks made of attention: Vision Transformer, SE-ResNet, spatial-attention CNN, timm's."""

from vision_attn.errors import ModelError
from vision_attn.models.checkpoint import build, describe
from vision_attn.models.decoding import SequenceModel, beam, greedy
from vision_attn.models.encoders import (
    ConvEncoder,
    Encoder,
    ImageEncoder,
    RecurrentEncoder,
    SelfAttentionEncoder,
    ViTEncoder,
)
from vision_attn.models.fast_cnn import FastCNN, Whitening, WideEmbed
from vision_attn.models.pooled_cnn import PooledCNN
from vision_attn.models.questions import QuestionAnswerer
from vision_attn.models.senet import (
    BasicBlock,
    Bottleneck,
    SEResNet,
    seresnet18,
    seresnet34,
    seresnet50,
    seresnet101,
    seresnet152,
)
from vision_attn.models.seq2seq import Seq2Seq
from vision_attn.models.spatial_cnn import SpatialCNN
from vision_attn.models.timm_model import TimmModel, vit_from_timm
from vision_attn.models.transformer import Transformer
from vision_attn.models.vit import ConvEmbed, PatchEmbed, ViT

__all__ = [
    "BasicBlock",
    "Bottleneck",
    "ConvEmbed",
    "ConvEncoder",
    "Encoder",
    "FastCNN",
    "ImageEncoder",
    "ModelError",
    "PatchEmbed",
    "PooledCNN",
    "QuestionAnswerer",
    "RecurrentEncoder",
    "SEResNet",
    "SelfAttentionEncoder",
    "Seq2Seq",
    "SequenceModel",
    "SpatialCNN",
    "TimmModel",
    "Transformer",
    "ViT",
    "ViTEncoder",
    "Whitening",
    "WideEmbed",
    "beam",
    "build",
    "describe",
    "greedy",
    "seresnet18",
    "seresnet34",
    "seresnet50",
    "seresnet101",
    "seresnet152",
    "vit_from_timm",
]
