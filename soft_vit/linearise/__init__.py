"""Linearise a frozen ViT of timm or transformers with unlabelled images."""

from soft_vit.linearise.backbone import Backbone, load_backbone, make_student, save_backbone
from soft_vit.linearise.errors import attention_errors, neighbour_agreement, token_errors, tokens_of
from soft_vit.linearise.images import UnlabelledImages
from soft_vit.linearise.plan import Plan
from soft_vit.linearise.run import linearise
from soft_vit.linearise.train import Linearisation

__all__ = [
    "Backbone",
    "Linearisation",
    "Plan",
    "UnlabelledImages",
    "attention_errors",
    "linearise",
    "load_backbone",
    "make_student",
    "neighbour_agreement",
    "save_backbone",
    "token_errors",
    "tokens_of",
]
