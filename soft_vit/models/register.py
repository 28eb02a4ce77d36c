"""Register attention types of one's own."""

from collections.abc import Callable

from soft_vit.layers import ATTENTIONS, Attention
from soft_vit.models import soft, vit


def register_attention(kind: str) -> Callable[[type[Attention]], type[Attention]]:
    """Register a class as an attention type, and its models with timm: `KIND_pyramid_*` and `KIND_vit_*_patch16`.

    The type then works wherever the package takes the name of one. A class that is defined again, as in a notebook,
    replaces itself. Raises ValueError for a name that another class has, or that is not an identifier.

    >>> @soft_vit.register_attention("relu")
    ... class ReluAttention(SelfAttention):
    ...     def attend(self, q, k, v, layout):
    ...         return (q @ k.mT * self.head_dim**-0.5).relu() @ v / k.shape[2]
    >>> model = timm.create_model("relu_vit_tiny_patch16")
    """

    def register(cls: type[Attention]) -> type[Attention]:
        old = ATTENTIONS.get(kind)
        if not kind.isidentifier() or (old is not None and old.__qualname__ != cls.__qualname__):
            raise ValueError(f"kind must be an identifier that names no other attention, got {kind!r}.")
        ATTENTIONS[kind] = cls
        if old is None:
            soft.register_pyramids(kind)
            vit.register_vits(kind)
        return cls

    return register
