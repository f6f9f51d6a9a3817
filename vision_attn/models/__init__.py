"""Networks made of attention: Vision Transformer, SE-ResNet, spatial-attention CNN, timm's."""

from vision_attn.models.errors import ModelError
from vision_attn.models.pooled_cnn import PooledCNN
from vision_attn.models.rebuild import build, describe
from vision_attn.models.senet import BasicBlock, Bottleneck, SEResNet, seresnet18, seresnet50
from vision_attn.models.spatial_cnn import SpatialCNN
from vision_attn.models.timm_model import TimmModel, vit_from_timm
from vision_attn.models.vit import ViT
