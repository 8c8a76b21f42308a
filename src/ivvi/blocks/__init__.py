"""The blocks that feature maps are made of.

Each block is a frozen value with settings that are JSON; `of` says what it looks at:
``state``, ``input`` or ``both``. Blocks use only `__array_namespace__`, so the same
code runs on NumPy arrays, on JAX arrays and under `jax.grad` and `jax.jit`.
"""

from ivvi.blocks.block import Array, Block
from ivvi.blocks.custom import Custom, import_function, import_path
from ivvi.blocks.from_data import Fourier, OneHot, Spline
from ivvi.blocks.monomials import Constant, Interactions, Power

BLOCKS: dict[str | None, type] = {
    kind.__name__: kind for kind in (Constant, Power, Interactions, Spline, Fourier, OneHot, Custom)
}

__all__ = [
    "BLOCKS",
    "Array",
    "Block",
    "Constant",
    "Custom",
    "Fourier",
    "Interactions",
    "OneHot",
    "Power",
    "Spline",
    "import_function",
    "import_path",
]
